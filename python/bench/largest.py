"""What `tightfit.largest` answers for models of the zoo, against steps that PyTorch runs.

Invariant: prints figures and judges nothing. The size that is found runs in a fresh process, where bytes are PyTorch's
own. The next ones are captured at their sizes (`tightfit.plan`), not written again from the capture at another. A size
counts as proven not to fit if no schedule whatever of that capture needs as little as the budget.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

import measured  # noqa: E402
import zoo  # noqa: E402
from tables import head, mb, row  # noqa: E402

LANGUAGE = ("gpt2", "llama", "qwen2", "gpt_small")
VISION = ("vit_b_16", "resnet50", "mobilenet_v3", "convnext")
# Sizes beyond the largest one, as differences from it, until one is proven not to fit.
BEYOND = (1, 2, 4, 8, 16, 32)
# Sizes whose speed is measured.
SIZES = 5
PROVEN = "proven not to fit"
HEAD = ("model", "axis", "budget", "largest", "s", "tried", "peak / budget", "one more", "proven from", "gap")
SPEEDS = ("model", "size", "predicted s", "measured s", "predicted / measured", "per second, predicted", "measured")


def budgets(name: str, shares: list[float], options: argparse.Namespace) -> list[int]:
    """Bytes at these shares of the way from what a step holds throughout to eager's peak."""
    eager = measured.measure(name, "eager", steps=2, digests=False, tiny=options.tiny, threads=options.threads)
    least = 2 * eager["parameters"]
    return [least + int(share * (eager["peak"] - least)) for share in shares]


def asked(name: str, budget: int, axis: str, options: argparse.Namespace) -> tuple[Any, float]:
    """What `tightfit.largest` finds, and its seconds."""
    work = zoo.build(name, tiny=options.tiny)
    began = time.perf_counter()
    found = zoo.use_tightfit().largest(work.model, work.batch(0), budget, axis=axis)
    return found, time.perf_counter() - began


def run(name: str, budget: int, axis: str, size: int, options: argparse.Namespace, steps: int = 1,
        counted: bool = True) -> dict[str, Any]:
    """Steps of that size in a process of their own."""
    return measured.measure(name, "tightfit", budget=budget, steps=steps, digests=False, tiny=options.tiny,
                            threads=options.threads, counted=counted, **{axis: size})


def planned(name: str, budget: int, axis: str, size: int, options: argparse.Namespace) -> str:
    """Whether a step of that size fits, as a capture at that size says."""
    tightfit, work = zoo.use_tightfit(), zoo.build(name, tiny=options.tiny)
    batch = zoo.sized(work.batch(0), **{"batch_size" if axis == "batch" else axis: size})
    try:
        tightfit.plan(work.model, batch, budget)
    except tightfit.InfeasibleBudget as error:
        return PROVEN if error.needed > budget else "no plan found"
    return "fits"


def question(name: str, budget: int, axis: str, options: argparse.Namespace) -> Any:
    """Prints the row of one question, and returns what was found."""
    found, seconds = asked(name, budget, axis, options)
    at = run(name, budget, axis, found.size, options, steps=2)
    held = at["message"].splitlines()[0] if "error" in at else f"{at['peak'] / budget:.4f}"
    one_more, proven = "–", None
    if found.limit is None:
        for more in BEYOND:
            said = planned(name, budget, axis, found.size + more, options)
            is_proven = said == PROVEN
            one_more = said if more == 1 else one_more
            if is_proven:
                proven = found.size + more
                break
    else:
        one_more = "not taken by the model"
    row(name, axis, mb(budget), found.size, f"{seconds:.1f}", len(found.tried), held, one_more, proven or "–",
        "–" if proven is None else proven - found.size - 1)
    return found


def speeds(name: str, budget: int, options: argparse.Namespace) -> None:
    """Prints how long steps of some of the sizes that were tried take, from the smallest to the largest that fits."""
    found, _ = asked(name, budget, "batch", options)
    fitting = [one for one in found.tried if one.fits]
    count = min(SIZES, len(fitting))
    for one in (fitting[index * (len(fitting) - 1) // max(count - 1, 1)] for index in range(count)):
        at = run(name, budget, "batch", one.size, options, steps=options.steps, counted=False)
        if "error" in at:
            row(name, one.size, f"{one.seconds:.3f}", at["message"].splitlines()[0], *["–"] * 3)
            continue
        seconds = statistics.median(step["seconds"] for step in at["steps"][1:])
        row(name, one.size, f"{one.seconds:.3f}", f"{seconds:.3f}", f"{one.seconds / seconds:.3f}",
            f"{one.per_second:.2f}", f"{one.size / seconds:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[*LANGUAGE, *VISION])
    parser.add_argument("--shares", type=lambda text: [float(share) for share in text.split(",")],
                        default=[0.3, 0.6, 0.9], help="where budgets lie between what a step holds throughout and eager's peak")
    parser.add_argument("--axes", type=lambda text: text.split(","), default=["batch", "length"])
    parser.add_argument("--speeds", action="store_true", help="seconds of steps instead, at the largest of the budgets")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="tightfit-largest-") as folder:
        # Times that other runs measured are not found here.
        os.environ["XDG_CACHE_HOME"] = folder
        table(options)


def table(options: argparse.Namespace) -> None:
    """Prints the rows of all models."""
    head(SPEEDS if options.speeds else HEAD)
    for name in options.models:
        all_ = budgets(name, options.shares, options)
        if options.speeds:
            speeds(name, all_[-1], options)
            continue
        for axis in options.axes if name in LANGUAGE else ["batch"]:
            for budget in all_:
                question(name, budget, axis, options)


if __name__ == "__main__":
    main()
