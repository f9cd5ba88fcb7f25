"""Captures of a step at other sizes, compared with what `Graph.at` makes of the first one.

Invariant: what is recorded was seen; a size is far from the captured one, so that numbers that follow from it differ.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .errors import ExportError, OptionError
from .extents import LEAST
from .planning import read_graph

# The dimensions of a batch, by index.
DIMENSIONS = ("batch", "length")
# Extents that kernels round up to are multiples of it.
_ALIGNED = 8
# Differences of sizes have no divisor below, so that remainders of divisions by small numbers differ, too.
_LEAST_PRIME = 11
# And where only multiples of the size are alike, this many of them.
_MULTIPLES = 7

# Captures the step again: along which dimension, which size there has another one, and which one.
Capture = Callable[[int, int, int], dict[str, Any]]


def compare(graph: dict[str, Any], capture: Capture, size: int) -> None:
    """Refuses a graph that is not, with a batch of `size`, what is captured there."""
    now = _size(graph, 0)
    if now is None:
        raise ExportError(f"check_size={size}: the step reads no batch")
    try:
        expected = read_graph(graph).at(batch=size)
    except OptionError as error:
        raise ExportError(f"check_size={size}: {error}") from error
    try:
        captured = capture(0, now, size)
    except ExportError as error:
        raise ExportError(f"check_size={size}: the step is not captured with a batch of {size}: {error}") from error
    difference = expected.difference(read_graph(captured))
    if difference is not None:
        raise ExportError(f"with a batch of {size} the step is not what follows from the one with {now}, which comes first "
                          f"here: {difference}")


def recaptures(graph: dict[str, Any], capture: Capture, dimensions: Sequence[str] = DIMENSIONS) -> dict[str, Any]:
    """What to record of other sizes, by dimension."""
    subject, found = read_graph(graph), {}
    for name in dimensions:
        dimension = DIMENSIONS.index(name)
        size = _size(graph, dimension)
        if size is not None and size >= LEAST and subject.may_be_seen(name):
            found[name] = _along(subject, dimension, size, capture)
    return found


def _size(graph: dict[str, Any], dimension: int) -> int | None:
    """The extent of the first input that has that dimension."""
    inputs = (node["outputs"][0]["shape"] for node in graph["nodes"] if node["phase"] == "input")
    return next((shape[dimension] for shape in inputs if len(shape) > dimension), None)


def _along(subject: Any, dimension: int, size: int, capture: Capture) -> dict[str, Any]:
    """What is seen at other sizes along a dimension."""
    differs, failed = None, None
    for other, grid in _candidates(dimension, size):
        if differs is not None and grid == 1:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                captured = capture(dimension, size, other)
        except Exception as error:  # The model's own code may fail in any way.
            failed = failed or f"with {other} it cannot be captured ({type(error).__name__})"
            continue
        try:
            seen = subject.seen(read_graph(captured), DIMENSIONS[dimension], grid)
        except OptionError as error:
            differs = differs or f"with {other}, {error}"
            continue
        if seen is None:
            failed = failed or f"with {other} a table of positions has too few rows"
            continue
        return json.loads(seen) | ({} if grid == 1 else {"difference": differs or failed})
    return {"difference": differs or failed}


def _candidates(dimension: int, size: int) -> Iterator[tuple[int, int]]:
    """Sizes to capture at, and of which multiples each is an example."""
    less = _prime(size // 2, -1)
    # A length may be as long as a table of positions, a batch may have any number of samples.
    if dimension == 1 and less >= _LEAST_PRIME:
        yield size - less, 1
    yield size + _prime(max(size + 1, _LEAST_PRIME), 1), 1
    # An odd number less, so that models that take pairs are not taken for such that take any size.
    if (few := _prime(size - LEAST, -1)) > 2:
        yield size - few, 1
    if size % _ALIGNED == 0:
        yield size + _ALIGNED * _prime(max(size // _ALIGNED, _LEAST_PRIME), 1), _ALIGNED
        if size >= 4 * _ALIGNED:
            yield size // 2 // _ALIGNED * _ALIGNED + _ALIGNED, _ALIGNED
    yield size + _MULTIPLES * size, size


def _prime(start: int, step: int) -> int:
    """The first prime from `start` on, upwards or downwards; 0 if there is none."""
    number = start
    while number > 1 and any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += step
    return number if number > 1 else 0
