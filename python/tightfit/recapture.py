"""Captures of a step at other sizes, compared with what `Graph.at` makes of the first one.

Invariant: what is recorded was seen; the first other size is a prime away, so that numbers that follow from it differ.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .errors import ExportError, OptionError
from .extents import LEAST
from .planning import read_graph

# The dimensions of a batch, by index.
DIMENSIONS = ("batch", "length")
# Extents that kernels round up to are multiples of these.
_ALIGNED = (8, 32)
# How many times the size a far one is, by dimension: a model may make a table of the length's square.
_FAR = ((64, 8), (4, 2))
# The longest text of an error.
_LINE = 200
# Differences of sizes have no divisor below, so that remainders of divisions by small numbers differ, too.
_LEAST_PRIME = 11
# And where only multiples of the size are alike, these.
_MULTIPLES = (8, 2)

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
            if "size" in found[name]:
                found[name] |= _far(graph, found[name], dimension, size, capture)
    return found


def _size(graph: dict[str, Any], dimension: int) -> int | None:
    """The extent of the first input that has that dimension."""
    inputs = (node["outputs"][0]["shape"] for node in graph["nodes"] if node["phase"] == "input")
    return next((shape[dimension] for shape in inputs if len(shape) > dimension), None)


def _along(subject: Any, dimension: int, size: int, capture: Capture) -> dict[str, Any]:
    """What is seen at one other size along a dimension."""
    differs, failed, below = None, None, {}
    for other, grid in _candidates(dimension, size):
        if differs is not None and grid == 1:
            continue
        try:
            captured = _again(capture, dimension, size, other)
        except Exception as error:  # The model's own code may fail in any way.
            failed = failed or f"with {other} it cannot be captured ({_reason(error)})"
            continue
        try:
            seen = subject.seen(captured, DIMENSIONS[dimension], grid)
        except OptionError as error:
            said = f"with {other}, {error}"
            # Larger sizes may be alike although a smaller one is not.
            if other < size and not below:
                below = {"below": said}
            else:
                differs = differs or said
            continue
        if seen is None:
            failed = failed or f"with {other} a table of positions has too few rows"
            continue
        return json.loads(seen) | (below if grid == 1 else _why(differs, below, failed))
    return _why(differs, below, failed)


def _why(differs: str | None, below: Mapping[str, str], failed: str | None) -> dict[str, str | None]:
    """Why not all sizes are alike."""
    return {"difference": differs or below.get("below") or failed}


def _far(graph: dict[str, Any], seen: dict[str, Any], dimension: int, size: int, capture: Capture) -> dict[str, Any]:
    """Up to which size it is as was seen at another one, and what is different beyond."""
    name, (least, most), grid = DIMENSIONS[dimension], seen["between"], seen.get("grid", 1)
    above = {}
    for times in _FAR[dimension]:
        other = size + grid * _prime((times - 1) * size // grid, 1)
        if size % _ALIGNED[0]:
            # None was such a multiple so far.
            other = -(-other // math.lcm(2 * _ALIGNED[0], grid)) * math.lcm(2 * _ALIGNED[0], grid)
        if other <= most:
            break
        further = {"between": [least, other]}
        try:
            expected = read_graph(graph | {"recaptures": {name: seen | further}}).at(**{name: other})
            captured = _again(capture, dimension, size, other)
        except Exception:  # The model does not take it, by its own code or by its tables.
            continue
        difference = expected.difference(captured)
        if difference is None:
            return further | above
        above = {"above": f"with {other}, {difference}"}
    return above


def _again(capture: Capture, dimension: int, now: int, size: int) -> Any:
    """The graph that is captured at another size. What goes wrong is told by the graph, not by PyTorch's log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read_graph(capture(dimension, now, size))
    finally:
        logging.disable(before)


def _reason(error: Exception) -> str:
    """The type of an error, and the first line of what it says."""
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line[:_LINE]}" if line else type(error).__name__


def _candidates(dimension: int, size: int) -> Iterator[tuple[int, int]]:
    """Sizes to capture at, and of which multiples each is an example."""
    # As few as possible, if that is far enough away: as little as possible is captured then, and a table of positions or
    # a limit is not met. An odd number less, so that models that take pairs are not taken for such that take any size.
    if (few := _prime(size - LEAST - 1, -1)) > 2:
        yield size - few, 1
    yield size + _prime(max(size + 1, _LEAST_PRIME), 1), 1
    for aligned in (aligned for aligned in _ALIGNED if size % aligned == 0):
        yield size + aligned * _prime(max(size // aligned, _LEAST_PRIME), 1), aligned
        if size >= 4 * aligned:
            yield size // 2 // aligned * aligned + aligned, aligned
    for multiple in _MULTIPLES:
        yield multiple * size, size


def _prime(start: int, step: int) -> int:
    """The first prime from `start` on, upwards or downwards; 0 if there is none."""
    number = max(start, 2) if step > 0 else start
    while number > 1 and any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += step
    return number if number > 1 else 0
