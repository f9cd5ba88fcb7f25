"""Writes the mlp-digits step: a perceptron of twelve hidden layers on the UCI handwritten digits.

Invariant: re-running it gives the same bytes; every fifth row of the table is for validation and never trained on.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "python"))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tightfit  # noqa: E402

BATCH = 720
WIDTH = 64
HIDDEN = 12
LEARNING_RATE = 2e-3


class Perceptron(nn.Module):
    """64 → 64 twelve times with ReLU → 10: deep and narrow, so that activations outweigh what one layer needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64 if i == 0 else WIDTH, WIDTH) for i in range(HIDDEN))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = pixels
        for layer in self.layers:
            hidden = functional.relu(layer(hidden))
        return self.head(hidden)


def initialisation(fqn: str, tensor: torch.Tensor) -> dict:
    """He's normal initialisation for the weights, zero biases."""
    if fqn.endswith("bias"):
        return {"constant": 0.0}
    return {"normal": {"mean": 0.0, "std": (2.0 / tensor.shape[1]) ** 0.5}}


def main() -> None:
    torch.set_num_threads(2)
    tightfit.export(
        Perceptron(),
        functional.cross_entropy,
        (torch.zeros(BATCH, 64), torch.zeros(BATCH, dtype=torch.int64)),
        evaluation_batch=(torch.zeros(360, 64), torch.zeros(360, dtype=torch.int64)),
        optimizer="adamw",
        learning_rate=LEARNING_RATE,
        out=HERE,
        name="mlp-digits",
        description="A perceptron of twelve hidden layers of 64 on the 8×8 UCI handwritten digits.",
        initialisation=initialisation,
        data={
            "kind": "table", "file": "../../data/digits.csv", "features": 64, "scale": 0.0625, "batch": BATCH,
            "evaluation_batch": 360, "sampling_seed": 1, "validation": {"every": 5, "remainder": 0},
        },
        provenance={
            "made_by": "make.py",
            "data_source": "UCI Optical Recognition of Handwritten Digits (test part), as scikit-learn ships it",
            "data_licence": "CC BY 4.0",
        },
    )


if __name__ == "__main__":
    main()
