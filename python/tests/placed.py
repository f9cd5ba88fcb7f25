"""Training steps whose tensors get planned addresses, in a fresh process: `python placed.py gpt2` prints them as JSON.

Invariant: PyTorch's allocator on the processor is the package's own one before the first tensor exists, called through
the two functions by which CUDA would call it. Bytes handed out and blocks that overlap are counted in C++, which knows
nothing of slabs. Eager runs under the same allocator, which then passes everything on.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

import allocator
import measured
import zoo

tightfit = zoo.use_tightfit()
from tightfit import _native  # noqa: E402


class Loop:
    """A plain training loop under the allocator, which notes the bytes reserved in each step."""

    def __init__(self, name: str, counted: ctypes.CDLL, **options: Any) -> None:
        self.native = _native.Addresses(-1)
        self.counted = counted
        self.work = zoo.build(name, tiny=True, seed=0)
        self.optimizer = torch.optim.SGD(self.work.model.parameters(), lr=1e-2)
        if options:
            tightfit.compile(self.work.model, addresses=True, deadline=0.2, **options)
        torch.manual_seed(1)

    def step(self, index: int, batch: dict[str, torch.Tensor] | None = None) -> dict[str, Any]:
        """One step: bits, and bytes."""
        model = self.work.model
        self.optimizer.zero_grad()
        batch = self.work.batch(index) if batch is None else batch
        before = self.native.counters()
        self.native.reset_peak()
        loss = self.work.loss(model(**batch))
        loss.backward()
        after = self.native.counters()
        record = {
            "bits": {name: measured.digest(parameter.grad) for name, parameter in model.named_parameters()}
            | {name: measured.digest(buffer) for name, buffer in model.named_buffers()} | {"loss": loss.item()},
            # Without the slab, which may be made again in this step.
            "static": before["reserved"] - before["slab"], "peak": after["peak"], "slab": after["slab"],
            "placed": after["placed"] - before["placed"], "passed_on": after["passed_on"] - before["passed_on"],
            "strays": after["strays"], "overlaps": self.counted.tightfit_overlaps(),
            "reserved": after["reserved"], "held": after["held"], "live": self.counted.tightfit_live(),
        }
        del loss
        self.optimizer.step()
        return record

    def plans(self) -> list[dict[str, Any]]:
        """The figures of each plan, its addresses included."""
        return [{"peak": plan.held.peak + plan.beside, "slab": plan.course.slab,
                 "placed": plan.course.placement and plan.course.placement.placed,
                 "beside": plan.course.placement and plan.course.placement.beside}
                for step in self.work.model._compiled_call_impl.backend.steps for plan in step.made]


def install() -> ctypes.CDLL:
    """The package's allocator in place of c10's."""
    functions = ctypes.CDLL(_native.__file__)
    alloc, free = (ctypes.cast(getattr(functions, name), ctypes.c_void_p).value
                   for name in ("tightfit_alloc", "tightfit_free"))
    return allocator.place(alloc, free)


def runs(name: str, counted: ctypes.CDLL, steps: int, share: float) -> Iterator[tuple[str, Any]]:
    """Eager's steps, and those at a share of eager's peak."""
    eager = Loop(name, counted)
    found = [eager.step(index) for index in range(steps)]
    yield "eager", found
    del eager
    _forget()
    budget = int(share * max(step["peak"] for step in found))
    loop = Loop(name, counted, budget=budget)
    yield "tightfit", {"budget": budget, "steps": [loop.step(index) for index in range(steps)], "plans": loop.plans()}


def _forget() -> None:
    """Frees what was compiled: its models are part of the reserved bytes."""
    torch._dynamo.reset()
    gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("name", choices=zoo.MODELS)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.9, help="the budget, as a share of eager's peak")
    options = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    counted = install()
    torch.set_num_threads(2)
    print(json.dumps(dict(runs(options.name, counted, options.steps, options.share))), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main())
