"""Writes the tiny training steps that mutated steps begin from, into `seeds`.

Invariant: a step takes a few thousand operations and carries its own data, so that a case is a folder of a few
kilobytes and thousands of them are executed in a minute; running this again gives the same bytes.
"""

import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE.parent.parent / "corpus" / "steps")]

import torch  # noqa: E402
from gpt import Gpt, Shape, loss, recipe  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tightfit  # noqa: E402

FEATURES = 6
CLASSES = 4


class Perceptron(nn.Module):
    """Layers of different widths with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        widths = [FEATURES, 12, 9, 12]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = pixels
        for layer in self.layers:
            hidden = functional.gelu(layer(hidden))
        return self.head(functional.relu(self.norm(hidden)))


class Mixture(nn.Module):
    """Whatever else the engine executes: parts joined and cut, masks, reductions, softmax, drawn numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(FEATURES, 8)
        self.right = nn.Linear(FEATURES, 4)
        self.gate = nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.ones(12))
        self.register_buffer("offset", torch.full((12,), 0.5))
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([torch.tanh(self.left(pixels)), functional.silu(self.right(pixels))], dim=1)
        weights = functional.softmax(self.gate(joined), dim=-1)
        mixed = self.dropout(joined * weights * self.scale + self.offset)
        centred = mixed - mixed.mean(dim=1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.pow(2).mean(dim=1, keepdim=True) + 1e-5)
        masked = torch.where(scaled > 0, scaled, scaled * 0.1)
        halves = masked[:, :6] + torch.sigmoid(masked[:, 6:])
        return self.head(halves.transpose(0, 1).contiguous().transpose(0, 1))


def initialisation(fqn: str, tensor: torch.Tensor) -> dict:
    """Small numbers, by every kind of recipe."""
    if fqn.endswith("bias"):
        return {"uniform": {"low": -0.1, "high": 0.1}}
    if tensor.dim() == 1:
        return {"constant": 1.0}
    return {"normal": {"mean": 0.0, "std": (2.0 / tensor.shape[1]) ** 0.5}}


def export_table(name: str, model: nn.Module, optimizer: str | dict, batch: int) -> None:
    """A step over rows of numbers."""
    folder = HERE / "seeds" / name
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    rows = [",".join([f"f{i}" for i in range(FEATURES)] + ["class"])]
    for _ in range(40):
        row = [draw.randint(-16, 16) for _ in range(FEATURES)]
        rows.append(",".join(map(str, [*row, sum(row) % CLASSES])))
    (folder / "data.csv").write_text("\n".join(rows) + "\n")
    example = (torch.zeros(batch, FEATURES), torch.zeros(batch, dtype=torch.int64))
    tightfit.export(
        model, functional.cross_entropy, example, evaluation_batch=example,
        optimizer=optimizer, learning_rate=0.01, out=folder, name=name, initialisation=initialisation,
        data={
            "kind": "table", "file": "data.csv", "features": FEATURES, "scale": 0.0625, "batch": batch,
            "evaluation_batch": batch, "sampling_seed": 1, "validation": {"every": 5, "remainder": 0},
        },
    )


def export_text(name: str, shape: Shape, optimizer: str) -> None:
    """A step over windows of bytes."""
    folder = HERE / "seeds" / name
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    (folder / "data.bin").write_bytes(bytes(draw.randrange(shape.vocabulary) for _ in range(400)))
    tokens = torch.zeros(shape.batch, shape.window, dtype=torch.int64)
    tightfit.export(
        Gpt(shape), loss, (tokens, tokens.clone()),
        optimizer=optimizer, learning_rate=0.01, out=folder, name=name,
        initialisation=lambda fqn, _: recipe(shape.layers, fqn),
        data={
            "kind": "bytes", "file": "data.bin", "window": shape.window, "batch": shape.batch,
            "sampling_seed": 1, "validation": {"last_fraction": 0.25},
        },
    )


def main() -> None:
    """Writes them all."""
    torch.set_num_threads(1)
    export_table("perceptron", Perceptron(), "adamw", 8)
    export_table("mixture", Mixture(), {"kind": "sgd", "momentum": 0.9}, 5)
    shape = Shape(layers=2, width=8, heads=2, window=6, batch=2, vocabulary=16)
    export_text("transformer", shape, "adamw")
    export_text("dropout", Shape(**{**vars(shape), "layers": 1, "dropout": 0.2}), "adamw")


if __name__ == "__main__":
    main()
