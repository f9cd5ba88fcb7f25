"""What every test starts from: two threads, a fixed seed, and the folders of the corpus on the path.

Invariant: tests read the corpus and never write into it.
"""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "corpus" / "steps"))


@pytest.fixture(autouse=True)
def _reproducible():
    torch.set_num_threads(2)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def corpus() -> Path:
    return ROOT / "corpus"
