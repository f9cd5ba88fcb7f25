"""Times training steps of gpt-base, whose parameters and state alone are 978 MiB, in ways that need less and less
memory: PyTorch in eager, with blocks checkpointed and the optimizer inside the backward pass, and with parameters and
state in mapped files on top of that; and the engine, with enough memory and with a tier below its slab.

Invariant: each row is a process of its own, alone, and prints one line of a table: the memory of the process at its
peak beyond that when its libraries were loaded, how much of it is file pages that the system may drop, and the median
time of its steps. `save_on_cpu` and FSDP2's offload move nothing without a GPU, so they have no row here.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "corpus" / "steps"), str(ROOT / "python" / "bench")]

import torch  # noqa: E402

import gpt  # noqa: E402
import tables  # noqa: E402
from torch_step import Checkpointed, status  # noqa: E402

SHAPE = gpt.Shape(layers=12, width=768, heads=12, window=256, batch=8)
STEP = ROOT / "corpus" / "steps" / "gpt-base"
MODES = {
    "eager": "PyTorch, eager",
    "checkpoint": "PyTorch, blocks checkpointed, optimizer inside the backward pass",
    "mapped": "the same, parameters and state in mapped files (torch.from_file)",
}


def mapped(tensor: torch.Tensor, folder: Path, name: str) -> torch.Tensor:
    """A tensor of the same values in a mapped file."""
    file = torch.from_file(str(folder / name), shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return file.copy_(tensor.flatten()).view(tensor.shape)


def inside_backward(model: torch.nn.Module, folder: Path | None) -> None:
    """Updates each parameter as soon as its gradient exists, and frees the gradient."""
    for index, parameter in enumerate(model.parameters()):
        if folder is not None:
            parameter.data = mapped(parameter.data, folder, f"{index}.parameter")
        optimizer = torch.optim.AdamW([parameter], lr=1e-4, foreach=False)
        if folder is not None:
            zeros = torch.zeros(())
            optimizer.state[parameter] = {
                "step": zeros.clone(),
                **{key: mapped(zeros.expand(parameter.shape), folder, f"{index}.{key}")
                   for key in ("exp_avg", "exp_avg_sq")},
            }

        def update(parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
            optimizer.step()
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(functools.partial(update, optimizer=optimizer))


def child(mode: str, folder: Path, steps: int, threads: int) -> dict[str, Any]:
    """Steps of one mode, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    tiny = gpt.Shape(layers=1, width=16, heads=2, window=8, batch=2)
    gpt.loss(gpt.Gpt(tiny)(torch.zeros(2, 8, dtype=torch.int64)), torch.zeros(2, 8, dtype=torch.int64)).backward()
    entry = status("VmRSS")
    model = (gpt.Gpt if mode == "eager" else Checkpointed)(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if mode == "eager" else None
    if optimizer is None:
        inside_backward(model, folder if mode == "mapped" else None)
    text = torch.frombuffer(bytearray((ROOT / "corpus/data/kjv.txt").read_bytes()), dtype=torch.uint8)
    peaks = {"VmRSS": 0, "RssAnon": 0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            for key in peaks:
                peaks[key] = max(peaks[key], status(key))

    watcher = threading.Thread(target=watch)
    watcher.start()
    times = []
    for _ in range(steps + 1):
        starts = torch.randint(0, len(text) - SHAPE.window - 1, (SHAPE.batch,)).tolist()
        window = torch.stack([text[start : start + SHAPE.window + 1] for start in starts]).long()
        begun = time.perf_counter()
        gpt.loss(model(window[:, :-1]), window[:, 1:]).backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        times.append(time.perf_counter() - begun)
    done.set()
    watcher.join()
    return {"peak": peaks["VmRSS"] - entry, "anonymous": peaks["RssAnon"], "seconds": times[1:], "entry": entry}


def engine(options: argparse.Namespace, budget: str, tier: Path | None) -> dict[str, Any]:
    """Steps of the program."""
    below = [] if tier is None else ["--tier", str(tier)]
    command = [options.tightfit, "train", str(STEP), "--budget", budget, "--steps", str(options.steps + 1), "--json",
               "--eval-batches", "0", "--seed", "1", "--threads", str(options.threads), *below]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one that is not")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where files are made")
    parser.add_argument("--budget", default="400MiB")
    parser.add_argument("--tightfit", default=str(ROOT / "target" / "release" / "tightfit"))
    parser.add_argument("--child", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.folder, options.steps, options.threads)))
        return
    tables.head(["way", "peak MiB", "of it file pages", "s a step", "predicted s"])
    mib = lambda count: f"{count / 2**20:.0f}"  # noqa: E731
    for mode, name in MODES.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            command = [sys.executable, __file__, "--child", mode, "--folder", folder, "--steps", str(options.steps),
                       "--threads", str(options.threads)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        files = max(found["peak"] + found["entry"] - found["anonymous"], 0)
        tables.row(name, mib(found["peak"]), mib(files) if mode == "mapped" else "–",
                   f"{statistics.median(found['seconds']):.2f}", "–")
    for budget, tier in (("100%", None), (options.budget, options.folder)):
        found = engine(options, budget, tier)
        below = "" if tier is None else f" with a tier of {mib(found['tier_bytes'])} MiB"
        tables.row(f"tightfit train --budget {budget}{below}, the whole process", mib(found["process_peak_bytes"]), "–",
                   f"{found['step_seconds']:.2f}", f"{found['predicted_step_seconds']:.2f}")


if __name__ == "__main__":
    main()
