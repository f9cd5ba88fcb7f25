"""Writes the gpt-vocabulary step: gpt-nano's layers with the vocabulary of a language model, whose loss takes most of the
memory.

Invariant: re-running it gives the same bytes.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from gpt import Shape, export_step  # noqa: E402

SHAPE = Shape(layers=2, width=64, heads=2, window=128, batch=32, vocabulary=16384)

if __name__ == "__main__":
    export_step(HERE, "gpt-vocabulary", SHAPE, learning_rate=1e-3)
