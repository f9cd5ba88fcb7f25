"""Training steps of one model of the zoo in a fresh process: the bytes at their peak, the bits of every gradient and
buffer, and the seconds. `python measured.py gpt2 --mode eager` prints them as JSON; `measure` and `Worker` do that from
another process.

Invariant: bytes are counted by an allocator that is installed before the first tensor exists, so a peak is absolute: it
includes parameters, gradients, buffers, batch, the optimizer's state and whatever else PyTorch's allocator handed out
in this process. A peak is that of forward and backward; the optimizer's own step has a separate figure. The seed is set
once, before the first step, and each step has another batch, so runs of different modes have the same random numbers
only if they make the same draws. Nothing here knows what a mode should reach.

On CUDA the bytes are the figures of PyTorch's caching allocator, allocated and reserved; after the first step its cache
is emptied, in every mode, so that what a compiler tried out counts only in the first step. The clock stops when the
device is done.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import allocator
import zoo
from fresh import Fresh

# `blocks` is what transformers models call gradient checkpointing.
MODES = ("eager", "checkpoint", "blocks", "tightfit", "aot", "inductor")
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


# In the measuring process.


def digest(tensor: torch.Tensor | None) -> str | None:
    """SHA-256 of a tensor's bits in the order of its elements, shortened; `None` if there is none."""
    if tensor is None:
        return None
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy()).hexdigest()[:24]


def prepare(work: zoo.Workload, options: argparse.Namespace, optimizer: torch.optim.Optimizer | None) -> None:
    """Makes the model run in the requested mode. Only `tightfit` may do anything before the first call."""
    if options.mode == "checkpoint":
        for block in work.blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    elif options.mode == "blocks":
        work.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif options.mode == "tightfit":
        budget = int(options.budget) if options.budget.isdecimal() else options.budget
        more = ({"optimizer": optimizer} if optimizer else {}) | json.loads(options.more)
        zoo.use_tightfit().compile(work.model, budget=budget, **more)
    elif options.mode in ("aot", "inductor"):
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        if options.share is not None:
            torch._functorch.config.activation_memory_budget = options.share
        work.model.compile(backend={"aot": "aot_eager_decomp_partition"}.get(options.mode, options.mode), dynamic=False)


class Loop:
    """A plain training loop, a step at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seed = options.seed
        self.sizes = options.batch, options.length
        self.device = torch.device(options.device)
        if options.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        if options.limit is not None:
            whole = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(options.limit / whole, self.device.index or 0)
        # Addresses are planned only if nothing is on the device yet.
        is_placed = options.mode == "tightfit" and json.loads(options.more).get("addresses", False)
        self.work = zoo.build(options.name, tiny=options.tiny, seed=options.seed,
                              device="cpu" if options.moved else self.device)
        make = OPTIMIZERS.get(options.optimizer)
        self.optimizer = make(self.work.model.parameters()) if make else None
        prepare(self.work, options, self.optimizer)
        self.work.model.to(self.device)
        # The package's own allocator keeps its own counts: PyTorch has no figures for it.
        self.native = zoo.use_tightfit()._native.Addresses(self.device.index or 0) if is_placed else None
        self.done = 0
        self.counted = options.counted
        # On CUDA, the most bytes, allocated and reserved, before the last reset of the statistics (counting resets
        # them).
        self.highest = (0, 0)
        if self.counted and self.device.type == "cuda" and self.native is None:
            self._watch()
        torch.manual_seed(options.seed + 1)

    def step(self, digests: bool) -> dict[str, Any]:
        """One training step and its measurements."""
        model = self.work.model
        model.zero_grad(set_to_none=True)
        batch = zoo.sized(self.work.batch(self.seed + self.done), *self.sizes)
        batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
        before = self._reset()
        self._wait()
        began, busy = time.perf_counter(), time.process_time()
        loss = self.work.loss(model(**batch))
        loss.backward()
        self._wait()
        record: dict[str, Any] = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - busy}
        record.update(before=before, peak=self._peak(), reserved=self._reserved())
        record["loss"] = loss.item()
        if digests:
            record["gradients"] = {name: digest(parameter.grad) for name, parameter in model.named_parameters()}
            record["buffers"] = {name: digest(buffer) for name, buffer in model.named_buffers()}
            record["generator"] = digest(torch.get_rng_state())
        del loss
        if self.optimizer is not None:
            self._reset()
            self.optimizer.step()
            record["update_peak"] = self._peak()
        self.done += 1
        return record

    def settle(self) -> None:
        """Frees what CUDA's allocator caches."""
        if self.device.type == "cuda" and self.native is None:
            torch.cuda.empty_cache()

    def _watch(self) -> None:
        """Notes the most bytes before each reset of CUDA's statistics."""
        reset = torch.cuda.reset_peak_memory_stats

        def kept(device: Any = None) -> None:
            self.highest = self._figures()
            reset(device)

        torch.cuda.reset_peak_memory_stats = kept

    def _figures(self) -> tuple[int, int]:
        allocated, reserved = self.highest
        return (max(allocated, torch.cuda.max_memory_allocated(self.device)),
                max(reserved, torch.cuda.max_memory_reserved(self.device)))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _reset(self) -> int | None:
        if not self.counted:
            return None
        if self.native is not None:
            self.native.reset_peak()
            return self.native.counters()["reserved"]
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.highest = (0, 0)
            return torch.cuda.memory_allocated(self.device)
        allocator.reset_peak()
        return allocator.current()

    def _peak(self) -> int | None:
        if not self.counted:
            return None
        if self.native is not None:
            return self.native.counters()["peak"]
        if self.device.type == "cuda":
            return self._figures()[0]
        return allocator.peak()

    def _reserved(self) -> int | None:
        """The most bytes that the allocator took from the device; on a processor it caches nothing."""
        if self.counted and self.native is None and self.device.type == "cuda":
            return self._figures()[1]
        return self._peak()


def _plans(model: nn.Module) -> list[dict[str, Any]]:
    plans = zoo.use_tightfit().plans(model)
    fields = ("budget", "peak", "static", "unmeasured", "measured_peak")
    return [{field: getattr(plan, field, None) for field in fields} for plan in plans]


def _device(device: torch.device) -> dict[str, str]:
    """The name of the device, and its driver."""
    if device.type != "cuda":
        return {"device": f"{platform.machine()}, {torch.get_num_threads()} threads", "driver": "–"}
    found = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True, check=False) if shutil.which("nvidia-smi") else None
    lines = found.stdout.split() if found is not None else []
    driver = f"{lines[0] if lines else '?'}, CUDA {torch.version.cuda}"
    return {"device": torch.cuda.get_device_name(device), "driver": driver}


def report(loop: Loop, options: argparse.Namespace) -> dict[str, Any]:
    """The first steps of a loop, with everything needed to compare them."""
    steps = [loop.step(digests=options.digests)]
    loop.settle()
    steps += [loop.step(digests=options.digests) for _ in range(options.steps - 1)]
    later = steps[1:] or steps
    summary: dict[str, Any] = {
        "model": options.name, "mode": options.mode, "budget": options.budget, "share": options.share,
        "torch": torch.__version__, "threads": torch.get_num_threads(), **_device(loop.device),
        "tokens": sum(tensor.numel() for name, tensor in loop.work.batch(0).items() if name == "input_ids"),
        "parameters": sum(parameter.nbytes for parameter in loop.work.model.parameters()),
        "first_peak": steps[0]["peak"], "first_seconds": steps[0]["seconds"],
        "seconds": statistics.median(step["seconds"] for step in later), "steps": steps,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"] if "torch._dynamo" in sys.modules else 0,
    }
    if options.counted:
        summary["later_peak"] = max(step["peak"] for step in later)
        summary["peak"] = max(step["peak"] for step in steps)
        summary["first_reserved"] = steps[0]["reserved"]
        summary["later_reserved"] = max(step["reserved"] for step in later)
    if options.mode == "tightfit":
        summary["plans"] = _plans(loop.work.model)
    return summary


def _failure(error: Exception) -> dict[str, Any]:
    """The refusal, with the figures of the exception."""
    figures = {name: getattr(error, name) for name in ("budget", "needed", "smallest") if hasattr(error, name)}
    return {"error": type(error).__name__, "message": str(error), **figures}


def serve(options: argparse.Namespace, begin: Callable[[argparse.Namespace], Any] = Loop,
          summary: Callable[[Any, argparse.Namespace], dict[str, Any]] = report) -> None:
    """Prints the report of the first steps, then one step's seconds for each line that comes in. Anything else that this
    process prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(options.threads)
    if options.counted and torch.device(options.device).type == "cpu":
        allocator.install()
    try:
        loop = begin(options)
        print(json.dumps(summary(loop, options)), file=out, flush=True)
    except Exception as error:  # noqa: BLE001: any exception is a result
        traceback.print_exc()
        print(json.dumps({"mode": options.mode, **_failure(error)}), file=out, flush=True)
        return
    if options.serve:
        for _ in sys.stdin:
            print(json.dumps(loop.step(digests=False)), file=out, flush=True)


# In the process that starts the measurements.


class Served:
    """A fresh process of a script that has done its first steps (`report`) and does another on request (`serve`)."""

    def __init__(self, script: str, *words: str, **options: Any) -> None:
        words = [str(Path(script).resolve()), *words, "--serve"]
        for key, value in options.items():
            if isinstance(value, bool):
                words += [f"--{key}"] if value else [f"--no-{key}"] if key in ("counted", "digests") else []
            elif value is not None:
                words += [f"--{key}", str(value)]
        self.process = Fresh(*words, is_forked=not str(options.get("device", "cpu")).startswith("cuda"))
        self.report = self._read()

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise RuntimeError(f"the measuring process ended with {code}:\n{self.process.said()[-4000:]}")
        return json.loads(line)

    @property
    def failed(self) -> bool:
        return "error" in self.report

    def step(self) -> dict[str, Any]:
        """One more step."""
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self.process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker(Served):
    """One run of this file in a fresh process."""

    def __init__(self, name: str, mode: str, **options: Any) -> None:
        super().__init__(__file__, name, "--mode", mode, **options)


def measure(name: str, mode: str, **options: Any) -> dict[str, Any]:
    """The report of a run in a fresh process: `budget`, `share`, `steps`, `seed`, `optimizer`, `batch`, `length`,
    `tiny`, `counted`, `digests`, `device`, `moved`, `limit`, `deterministic`, `more`.

    A run that raised has `error`, `message` and the exception's figures instead.
    """
    with Worker(name, mode, **options) as worker:
        return worker.report


def differing(run: dict[str, Any], eager: dict[str, Any]) -> list[str]:
    """Every gradient, buffer, loss and generator's state in which two runs differ, as `step 2: wte.weight.grad`."""
    found = []
    for index, (ours, theirs) in enumerate(zip(run["steps"], eager["steps"], strict=False), 1):
        for kind, suffix in (("gradients", ".grad"), ("buffers", "")):
            names = theirs[kind].keys() | ours[kind].keys()
            found += [f"step {index}: {n}{suffix}" for n in sorted(names) if ours[kind].get(n) != theirs[kind].get(n)]
        found += [f"step {index}: {what}" for what in ("loss", "generator") if ours[what] != theirs[what]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("name", choices=zoo.MODELS)
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--budget", default="min", help="bytes, `min`, or what else tightfit.compile takes")
    parser.add_argument("--share", type=float, help="torch.compile's activation_memory_budget, from 0 to 1")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optimizer", choices=["none", *OPTIMIZERS], default="none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, help="samples, where the model's own number is not meant")
    parser.add_argument("--length", type=int, help="and words of each")
    parser.add_argument("--tiny", action="store_true", help="the size for tests")
    parser.add_argument("--counted", action=argparse.BooleanOptionalAction, default=True, help="count bytes")
    parser.add_argument("--digests", action=argparse.BooleanOptionalAction, default=True, help="what steps computed")
    parser.add_argument("--device", default="cpu", help="where the model is: cpu, cuda, cuda:1")
    parser.add_argument("--moved", action="store_true", help="the model is made and compiled on the CPU, and moved then")
    parser.add_argument("--limit", type=int, help="bytes that CUDA's allocator may take of the device")
    parser.add_argument("--deterministic", action="store_true", help="algorithms that give the same bits each time")
    parser.add_argument("--more", default="{}", help="further options of tightfit.compile, as JSON")
    parser.add_argument("--serve", action="store_true", help="do another step for each line of input")
    options = parser.parse_args()
    serve(options)


if __name__ == "__main__":
    main()
