"""How much the tests try: the quick tier, or the full one with `TIGHTFIT_TESTS=full` in the environment.

Invariant: the same environment gives the same cases.
"""

import os
from typing import Any

import pytest

# `quick`: at least one case of every guarantee, after each change. `full`: everything.
ASKED = os.environ.get("TIGHTFIT_TESTS") or "quick"
assert ASKED in ("quick", "full"), f"TIGHTFIT_TESTS is {ASKED!r}; it may be 'quick' or 'full'"
FULL = ASKED == "full"

# A test of the full tier alone.
full = pytest.mark.full


def cases(*quick: Any, full: list[Any]) -> list[Any]:
    """Parameters of both tiers, and those that the full one adds."""
    return [*quick, *(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full) for case in full)]
