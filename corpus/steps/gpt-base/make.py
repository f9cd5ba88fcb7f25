"""Writes the gpt-base step: GPT-2's smallest body over bytes, whose parameters and optimizer state alone are 978 MiB.

Invariant: re-running it gives the same bytes. Its weights are drawn by recipe when a run begins, so none are stored.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from gpt import Shape, export_step  # noqa: E402

SHAPE = Shape(layers=12, width=768, heads=12, window=256, batch=8)

if __name__ == "__main__":
    export_step(HERE, "gpt-base", SHAPE, learning_rate=1e-4)
