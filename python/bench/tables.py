"""Markdown tables that benches print. Invariant: a row is printed at once, so measurements appear even if something
fails later.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def head(names: Sequence[str]) -> None:
    """The first two lines of a table."""
    row(*names)
    row(*["---"] * len(names))


def row(*cells: object) -> None:
    """A line of a table."""
    print("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |", flush=True)


def mb(count: int | None, digits: int = 2) -> str:
    """Bytes in MB, for display; comparisons use the bytes."""
    return "–" if count is None else f"{count / 1e6:.{digits}f}"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of figures from the same round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
