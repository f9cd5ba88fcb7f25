"""The time of the first call of a compiled model, forward and backward pass, compared with `torch.compile`.

Invariant: prints figures and judges none. Every first call is one of a fresh process; those of a round take turns:
`torch.compile(backend="aot_eager")`, tightfit with nothing cached from earlier starts, and tightfit in a second process
that finds what the first one measured and planned. So each is paired with one of `aot_eager` from the same round. The
clock runs from the call that compiles to the end of the backward pass; PyTorch's compiler is imported before that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

from tables import head, paired, row  # noqa: E402

# The stages of a first call of tightfit besides the capture, and the functions that perform them.
STAGES = {"costs": "costed", "plan": "held", "code": "code"}
KINDS = ("aot_eager", "tightfit", "second start")
HEAD = ("model", "budget", "eager s", "aot_eager s", "tightfit s", "÷ aot_eager", "CPU ÷ aot_eager", "second start s",
        "÷ aot_eager", "CPU ÷ aot_eager", "of it costs and plan s", "first start: capture s", *(f"{stage} s" for stage in STAGES))


# In the process that is measured.


def first_call(options: argparse.Namespace) -> dict[str, Any]:
    """The seconds of the first call, and those of its stages."""
    import torch
    import torch._dynamo.backends.common  # noqa: F401
    import zoo

    torch.set_num_threads(options.threads)
    work = zoo.build(options.name, tiny=options.tiny)
    batch = work.batch(0)
    stages: dict[str, float] = {}
    step = _step(work, batch)
    # The cost of PyTorch's own first call, of kernels and threads, is not the compiler's.
    eager = _timed(step)["seconds"]
    work.model.zero_grad()
    run: Callable[[], Any] = step
    if options.kind == "aot_eager":
        def run() -> None:
            work.model.compile(backend="aot_eager")
            step()
    elif options.kind != "eager":
        def run() -> None:
            tightfit = zoo.use_tightfit()
            budget = "min" if options.budget == "min" else int(options.budget)
            tightfit.compile(work.model, budget)
            _watch(stages)
            step()
    found = _timed(run)
    found |= {"stages": stages, "eager": eager, "torch": torch.__version__}
    if options.budget == "min":
        [plan] = zoo.use_tightfit().plans(work.model)[:1]
        found |= {"least": plan.peak, "most": plan.unplanned_peak}
    return found


def _step(work: Any, batch: dict[str, Any]) -> Callable[[], None]:
    def step() -> None:
        work.loss(work.model(**batch)).backward()

    return step


def _timed(run: Callable[[], Any]) -> dict[str, Any]:
    began, busy = time.perf_counter(), time.process_time()
    run()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - busy}


def _watch(stages: dict[str, float]) -> None:
    from tightfit.training import execution

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                stages[stage] = stages.get(stage, 0.0) + time.perf_counter() - began

        return run

    for stage, name in STAGES.items():
        setattr(execution, name, timed(stage, getattr(execution, name)))


# In the process that starts the measurements.


def measure(name: str, kind: str, cache: str, options: argparse.Namespace, budget: int | str = 0) -> dict[str, Any]:
    """A first call in a fresh process, which has its cache in a given folder."""
    command = [sys.executable, str(Path(__file__).resolve()), name, "--kind", kind, "--budget", str(budget),
               "--threads", str(options.threads), *(["--tiny"] if options.tiny else [])]
    done = subprocess.run(command, env=os.environ | {"XDG_CACHE_HOME": cache}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the first call of {name} by {kind} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rounds(name: str, options: argparse.Namespace) -> None:
    """The row of one model."""
    with tempfile.TemporaryDirectory(prefix="tightfit-") as cache:
        ends = measure(name, "least", cache, options, "min")
    budget = ends["least"] + int(options.share * (ends["most"] - ends["least"]))
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for at in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="tightfit-") as cache:
            # What PyTorch leaves in the machine's caches helps later processes, so the order alternates.
            for kind in [KINDS, KINDS[1:] + KINDS[:1]][at % 2]:
                found[kind].append(measure(name, kind, cache, options, budget))
    theirs = found["aot_eager"]
    cells = [name, f"{budget / 1e6:.2f} MB", f"{_median(theirs, 'eager'):.2f}", f"{_median(theirs, 'seconds'):.2f}"]
    for kind in KINDS[1:]:
        ours = found[kind]
        ratios = (paired([run[key] for run in ours], [run[key] for run in theirs]) for key in ("seconds", "cpu"))
        cells += [f"{_median(ours, 'seconds'):.2f}", *(f"{ratio:.2f}" for ratio in ratios)]
    first, second = (_stages(found[kind]) for kind in KINDS[1:])
    rest = [run["seconds"] - sum(run["stages"].values()) for run in found["tightfit"]]
    row(*cells, f"{second['costs'] + second['plan']:.2f}", f"{statistics.median(rest):.2f}",
        *(f"{seconds:.2f}" for seconds in first.values()))


def _stages(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {stage: statistics.median(run["stages"].get(stage, 0.0) for run in runs) for stage in STAGES}


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["gpt_small", "gpt2", "bert", "resnet50"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.5,
                        help="where the budget lies between the smallest and the peak of the step as it is")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument("--kind", choices=["least", *KINDS], help="measure one first call, in this process")
    parser.add_argument("--budget", default="min", help="with --kind: bytes, or `min`")
    options = parser.parse_args()
    if options.kind is not None:
        [options.name] = options.models
        print(json.dumps(first_call(options)))
        return
    print(f"First calls, forward and backward pass, {options.threads} threads, medians of {options.rounds} rounds; budgets "
          f"at {options.share:g} between the smallest and the peak of the step as it is. `capture` is all of a first call "
          "of tightfit that is no other stage, the step itself included. `eager` is the step that each process runs "
          "before: PyTorch's own first call of its kernels is no part of the others.\n")
    head(HEAD)
    for name in options.models:
        rounds(name, options)


if __name__ == "__main__":
    main()
