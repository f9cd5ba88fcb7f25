"""Whole training steps, the optimizer's update included, of one model in a fresh process: the bytes at their peak and
the bits of all results. `python stepped.py gpt2 --mode step --budget min` prints them as JSON; `run` does that from
another process.

Invariant: bytes are counted by an allocator that is installed before the first tensor exists, and the peak is that of
the whole step, from the batch to the last update. All modes draw the same batches and the same random numbers. Nothing
here knows what a mode should reach.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

import allocator
import fresh
import zoo
from measured import digest

MODES = ("eager", "compile", "step")
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=1e-3),
}


def wide() -> zoo.Workload:
    """Many parameters and few activations: a step holds mostly gradients."""
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU())), nn.Linear(256, 10))
    return zoo.Workload(zoo.WithLoss(model).train(),
                        lambda: {"inputs": torch.randn(4, 256), "targets": torch.randint(0, 10, (4,))},
                        lambda loss: loss, [])


def frozen() -> zoo.Workload:
    """A large frozen layer below a small trained one."""
    model = nn.Sequential(nn.Linear(768, 768), nn.Linear(768, 8))
    model[0].requires_grad_(False)
    return zoo.Workload(zoo.WithLoss(model).train(),
                        lambda: {"inputs": torch.randn(4, 768), "targets": torch.randint(0, 8, (4,))},
                        lambda loss: loss, [])


OWN = {"wide": wide, "frozen": frozen}


def _loss(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output["loss"]


class Loop:
    """A training loop of one mode, a step at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.device = torch.device(options.device)
        self.work = OWN[options.name]() if options.name in OWN else zoo.build(options.name, tiny=True)
        self.work.model.to(self.device)
        self.model = self.work.model
        self.optimizer = OPTIMIZERS[options.optimizer](self.model.parameters())
        budget = int(options.budget) if options.budget.isdecimal() else options.budget
        tightfit = zoo.use_tightfit()
        self.whole = None
        if options.mode == "step":
            below = {"offload": options.offload} if options.offload else {}
            self.whole = tightfit.step(self.model, None, self.optimizer, budget=budget, **below)
        elif options.mode == "compile":
            tightfit.compile(self.model, budget, optimizer=self.optimizer)
        if options.load:
            found = torch.load(options.load)
            self.model.load_state_dict(found["model"])
            self.optimizer.load_state_dict(found["optimizer"])
        self.done = options.first
        torch.manual_seed(1 + options.first)

    def plan_peaks(self) -> list[int]:
        """The peak of each plan that was made."""
        if self.whole is not None:
            return [plan.peak for plan in self.whole.plans]
        return [plan.peak for plan in zoo.use_tightfit().plans(self.model)]

    def _reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            allocator.reset_peak()

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else allocator.peak()

    def step(self) -> dict[str, Any]:
        """One training step."""
        batch = {name: tensor.to(self.device) for name, tensor in self.work.batch(self.done).items()}
        self.done += 1
        self._reset()
        began = time.perf_counter()
        if self.whole is not None:
            loss = self.whole(**batch)
        else:
            loss = _loss(self.model(**batch))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        seconds = time.perf_counter() - began
        states = self.optimizer.state_dict()["state"]
        return {
            "peak": self._peak(), "seconds": seconds, "loss": loss.item(),
            "generator": digest(torch.get_rng_state()),
            "tensors": {name: digest(tensor) for name, tensor in self.model.state_dict().items()},
            "states": {f"{index} {name}": digest(item) if isinstance(item, torch.Tensor) else item
                       for index, state in states.items() for name, item in state.items()},
        }


def _report(options: argparse.Namespace) -> dict[str, Any]:
    loop = Loop(options)
    steps = [loop.step() for _ in range(options.steps)]
    if options.save:
        torch.save({"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}, options.save)
    plans = loop.plan_peaks() if options.mode != "eager" else []
    return {"steps": steps, "peak": max(step["peak"] for step in steps), "plans": plans,
            "parameters": sum(parameter.nbytes for parameter in loop.model.parameters()),
            "state": sum(item.nbytes for state in loop.optimizer.state.values() for item in state.values()
                         if isinstance(item, torch.Tensor))}


def run(name: str, mode: str, **options: Any) -> dict[str, Any]:
    """The report of a run in a fresh process: `budget`, `optimizer`, `steps`, `first`, `load`, `save`, `offload`,
    `device`.

    A run that raised has `error`, `message` and the exception's figures instead.
    """
    words = [str(Path(__file__).resolve()), name, "--mode", mode]
    for key, value in options.items():
        words += [f"--{key}", str(value)]
    done = fresh.run(*words, is_forked=not str(options.get("device", "cpu")).startswith("cuda"))
    if done.returncode != 0:
        raise RuntimeError(f"the measuring process ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Everything in which two runs differ, as `step 2: tensors head.weight`."""
    found = []
    for index, (one, other) in enumerate(zip(ours["steps"], theirs["steps"], strict=True), 1):
        found += [f"step {index}: {what}" for what in ("loss", "generator") if one[what] != other[what]]
        for kind in ("tensors", "states"):
            names = sorted(one[kind].keys() | other[kind].keys())
            found += [f"step {index}: {kind} {name}" for name in names if one[kind].get(name) != other[kind].get(name)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("name", choices=[*OWN, *zoo.MODELS])
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--budget", default="min")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the number of the first step")
    parser.add_argument("--load", default="")
    parser.add_argument("--offload", default="", help="bytes of the tier, where there is one")
    parser.add_argument("--save", default="")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    # Anything else that this process prints goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(torch.device(options.device).type == "cuda", warn_only=True)
    if torch.device(options.device).type == "cpu":
        allocator.install()
    try:
        answer = _report(options)
    except Exception as error:  # noqa: BLE001: any exception is a result
        traceback.print_exc()
        figures = {name: getattr(error, name) for name in ("budget", "needed", "smallest") if hasattr(error, name)}
        answer = {"error": type(error).__name__, "message": str(error), **figures}
    print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
