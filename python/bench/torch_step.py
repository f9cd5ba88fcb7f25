"""Times training steps of gpt-small in PyTorch, the yardstick for the engine: same model, shapes, data and optimizer.

Invariant: prints one JSON object; peak memory is the growth of the process's resident set since before the model was
built, after a tiny model has run once, so that libraries loaded on first use are not counted against PyTorch.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "corpus" / "steps"))

import torch  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import gpt  # noqa: E402

SHAPE = gpt.Shape(layers=6, width=384, heads=6, window=256, batch=8, dropout=0.1)
STEP = json.loads((ROOT / "corpus/steps/gpt-small/step.json").read_text(encoding="utf-8"))
LEARNING_RATE = STEP["optimizer"]["learning_rate"]


class Checkpointed(gpt.Gpt):
    """The GPT with every block recomputed in the backward pass."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False)
        return self.lm_head(self.ln_f(x))


def status(key: str) -> int:
    """A memory figure of this process in bytes (`VmRSS`, `VmHWM`)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}; run on Linux")


def initialise(model: gpt.Gpt) -> None:
    """Initialises every parameter by the step's own recipe."""
    with torch.no_grad():
        for fqn, parameter in model.named_parameters():
            recipe = gpt.recipe(SHAPE.layers, fqn)
            if "constant" in recipe:
                parameter.fill_(recipe["constant"])
            else:
                parameter.normal_(recipe["normal"]["mean"], recipe["normal"]["std"])


def step(model: gpt.Gpt, optimizer: torch.optim.Optimizer, window: torch.Tensor) -> torch.Tensor:
    """One training step on windows of length + 1 bytes; returns the loss."""
    loss = gpt.loss(model(window[:, :-1]), window[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def load_libraries(kind: type[gpt.Gpt]) -> None:
    """Runs a tiny model once."""
    shape = gpt.Shape(layers=1, width=16, heads=2, window=8, batch=2, dropout=0.1)
    model = kind(shape)
    step(model, torch.optim.AdamW(model.parameters()), torch.zeros(2, 9, dtype=torch.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--variant", choices=["eager", "checkpoint"], default="eager")
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after two that are not")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    text = torch.frombuffer(bytearray((ROOT / "corpus/data/kjv.txt").read_bytes()), dtype=torch.uint8).long()
    text = text[: len(text) * 9 // 10]
    kind = Checkpointed if options.variant == "checkpoint" else gpt.Gpt
    load_libraries(kind)
    entry = status("VmRSS")

    model = kind(SHAPE)
    initialise(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    seconds, losses = [], []
    for _ in range(options.steps + 2):
        starts = torch.randint(0, len(text) - SHAPE.window - 1, (SHAPE.batch,))
        window = torch.stack([text[start : start + SHAPE.window + 1] for start in starts])
        began = time.perf_counter()
        loss = step(model, optimizer, window)
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    timed = seconds[2:]
    print(json.dumps({
        "producer": "torch " + torch.__version__,
        "variant": options.variant,
        "threads": options.threads,
        "median_seconds": statistics.median(timed),
        "seconds": timed,
        "losses": losses,
        "entry_bytes": entry,
        "peak_growth_bytes": status("VmHWM") - entry,
    }))


if __name__ == "__main__":
    main()
