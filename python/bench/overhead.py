"""The time of a compiled step compared with eager's, for tensors so small that calling operators is all the work.

Invariant: prints figures and judges none. Both models have the same weights and batches, in one process, and take
turns, a few steps each per round, in changing order: each ratio is of steps of the same round. Forward and backward
pass are timed; gradients are freed in between. Processor seconds are printed next to those of the clock, because they
change less if other programs use the machine as well.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests"), str(ROOT / "python"), str(ROOT / "corpus" / "steps")]

import torch  # noqa: E402

import gpt  # noqa: E402
import tightfit  # noqa: E402
import zoo  # noqa: E402
from tables import head, paired, row  # noqa: E402
from tightfit import measure  # noqa: E402

HEAD = ("threads", "calls", "of these views", "eager ms", "tightfit ms", "÷ eager", "eager CPU ms", "tightfit CPU ms",
        "CPU ÷ eager")


def both(options: argparse.Namespace) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model as it is, and compiled."""
    shape = gpt.Shape(layers=options.layers, width=options.width, heads=2, window=options.window, batch=options.batch)
    torch.manual_seed(0)
    eager = zoo.WithLoss(gpt.Gpt(shape)).train()
    return eager, tightfit.compile(copy.deepcopy(eager), options.budget)


def calls(model: torch.nn.Module) -> tuple[int, int]:
    """The number of operators that a step of a compiled model calls, and how many of these are only views."""
    [step] = model._compiled_call_impl.backend.steps
    document = step.made[-1].held.document
    values = measure.values_of(document)
    nodes = [node for node in document["nodes"]
             if node["op"] != "placeholder" and not node["op"].startswith("tightfit.")]
    return len(nodes), sum(not measure.takes_time(node, values) for node in nodes)


def timed(model: torch.nn.Module, batch: zoo.Batch, steps: int) -> tuple[float, float]:
    """Milliseconds of a step by the clock and by the processor."""
    wall = busy = 0.0
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        began, used = time.perf_counter(), time.process_time()
        model(**batch).backward()
        busy += time.process_time() - used
        wall += time.perf_counter() - began
    return 1e3 * wall / steps, 1e3 * busy / steps


def compare(threads: int, options: argparse.Namespace) -> None:
    """The row of a number of threads."""
    torch.set_num_threads(threads)
    # Costs depend on the number of threads: each has a model of its own.
    torch._dynamo.reset()
    models = both(options)
    shape = (options.batch, options.window)
    batch = {"inputs": torch.randint(0, 256, shape), "targets": torch.randint(0, 256, shape)}
    for model in models:
        timed(model, batch, options.steps)
    found: tuple[list[tuple[float, float]], ...] = ([], [])
    gc.collect()
    for at in range(options.rounds):
        for index in (0, 1) if at % 2 == 0 else (1, 0):
            found[index].append(timed(models[index], batch, options.steps))
    cells: list[str] = []
    for column in (0, 1):
        eager, ours = ([pair[column] for pair in rounds] for rounds in found)
        cells += [f"{statistics.median(eager):.3f}", f"{statistics.median(ours):.3f}", f"{paired(ours, eager):.3f}"]
    row(threads, *calls(models[1]), *cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--budget", default="1TiB", help="by default enough that nothing is computed again")
    parser.add_argument("--threads", type=lambda text: [int(count) for count in text.split(",")], default=[1, 2])
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    print(f"A GPT of {options.layers} layers, width {options.width}, window {options.window}, batch {options.batch}, "
          f"without dropout; medians of {options.rounds} rounds of {options.steps} steps, torch {torch.__version__}.\n")
    head(HEAD)
    for threads in options.threads:
        compare(threads, options)


if __name__ == "__main__":
    main()
