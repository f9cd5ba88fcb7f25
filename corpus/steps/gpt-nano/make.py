"""Writes the gpt-nano step: the smallest GPT that has every part.

Invariant: re-running it gives the same bytes.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from gpt import Shape, export_step  # noqa: E402

SHAPE = Shape(layers=2, width=64, heads=2, window=64, batch=4)

if __name__ == "__main__":
    export_step(HERE, "gpt-nano", SHAPE, learning_rate=1e-3)
