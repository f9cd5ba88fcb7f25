"""What every test starts from: two threads, a fixed seed, and the folders of the corpus on the path; and its tier.

Invariant: tests read the corpus and never write into it.
"""

import importlib
import os
import sys
from pathlib import Path

# Tests may run in parallel, with two threads each: waiting threads leave the processor to others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

import tier
import vector_math  # noqa: F401: imported for what it calls

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "corpus" / "steps"))


@pytest.fixture(autouse=True)
def _reproducible():
    torch.set_num_threads(2)
    torch.manual_seed(0)


@pytest.fixture
def fresh_dynamo():
    """Starts without anything that torch.compile captured before."""
    torch._dynamo.reset()


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """Starts without anything that was measured or planned before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def corpus() -> Path:
    return ROOT / "corpus"


def pytest_collection_finish():
    """All files are imported: later garbage collections skip all objects that exist now."""
    importlib.import_module("frozen")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests of the full tier. Tests that share a fixture of their file run in one worker."""
    if not tier.FULL:
        left_out = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if item not in left_out]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
    for item in items:
        made = [fixture for name in item.fixturenames for fixture in item._fixtureinfo.name2fixturedefs.get(name, ())]
        if any(fixture.scope == "module" for fixture in made):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
