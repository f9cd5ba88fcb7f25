"""Integers of a captured graph that follow from the sizes of a batch, and what holds for all of its sizes.

Invariant: an extent is the integer at one set of sizes, and its expression gives it at every other set that the graph
was captured for. Sizes are at least 2: Dynamo captures 0 and 1 as constants.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv, Max, Min
from torch.utils._sympy.printers import PythonPrinter

# What a node of a graph that was given its sizes has in its `meta`: its value with sizes that vary.
VARYING = "varying"
# And an argument's: its shape and strides, where extents are what varies.
LAID_OUT = "laid out"
# The least size that varies.
LEAST = 2
# Expressions of integers that Python's own operators compute.
_PLAIN = re.compile(r"(?:max|min|n\d+|[\d+\-*/%(), ])*")


class Extent(int):
    """An integer, and the text of an expression for it in the names of sizes (`name`)."""

    text: str

    def __new__(cls, value: int, text: str) -> Extent:
        made = super().__new__(cls, value)
        made.text = text
        return made

    def __repr__(self) -> str:
        return self.text

    def __deepcopy__(self, memo: Any) -> Extent:
        return self


def name(argument: int) -> str:
    """The name of the size at this position of the graph's arguments."""
    return f"n{argument}"


def written(expression: sympy.Expr, names: Mapping[sympy.Expr, sympy.Symbol]) -> str | None:
    """The text of an expression of integers; `None` if it is none of whole numbers' plain operators."""
    text = f"({PythonPrinter().doprint(expression.xreplace(names))})"
    return text if _PLAIN.fullmatch(text) else None


def found(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The calls of a graph, by name, that have an extent among their arguments."""
    return {node["name"]: node for node in document["nodes"] if _has(node.get("args")) or _has(node.get("kwargs"))}


def restored(node: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """A call of a planned graph, with its extents in place of integers."""
    original = known.get(node.get("recomputes", node["name"]))
    if original is None:
        return node
    return {**node, **{key: _restored(node[key], original[key]) for key in ("args", "kwargs") if key in node}}


def _has(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(map(_has, item.values()))
    return any(map(_has, item)) if isinstance(item, list) else isinstance(item, Extent)


def _restored(item: Any, original: Any) -> Any:
    if isinstance(original, Extent):
        return original
    if isinstance(item, Mapping) and "value" not in item:
        return {key: _restored(one, original[key]) for key, one in item.items()}
    if isinstance(item, list):
        return [_restored(one, other) for one, other in zip(item, original, strict=True)]
    return item


def alike(node: fx.Node, source: fx.Node) -> bool:
    """Whether the tensors of two nodes have the same shape and strides at all sizes, if they have at one."""
    one, other = node.meta.get(VARYING), source.meta.get(VARYING)
    if one is None and other is None:
        return True
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return laid_out_alike(one, other)


def laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors whose sizes vary always have the same shape and strides."""
    sizes = ((*tensor.shape, *tensor.stride()) for tensor in (one, other))
    return one.dim() == other.dim() and all(map(_equal, *map(_expressions, sizes)))


def is_contiguous(node: fx.Node) -> bool:
    """Whether a node's tensor is contiguous, at all sizes."""
    value = node.meta.get(VARYING)
    if not node.meta["val"].is_contiguous() or value is None:
        return node.meta["val"].is_contiguous()
    expected = sympy.Integer(1)
    for extent, stride in reversed(list(zip(_expressions(value.shape), _expressions(value.stride()), strict=True))):
        if extent != 1 and not _equal(stride, expected):
            return False
        expected *= extent
    return True


@functools.cache
def _equal(one: sympy.Expr, other: sympy.Expr) -> bool:
    return one == other or sympy.expand(_without_maxima(one) - _without_maxima(other)) == 0


def _without_maxima(of: sympy.Expr) -> sympy.Expr:
    """An expression without the maxima of an integer and of what is never less: strides have them for extents of 0."""
    known = {}
    for part in of.atoms(Max):
        integers, others = [one for one in part.args if one.is_Integer], [one for one in part.args if not one.is_Integer]
        if len(others) == 1 and grows(others[0]) and _least(others[0]) >= max(integers):
            known[part] = others[0]
    return of.xreplace(known)


def _least(of: sympy.Expr) -> sympy.Expr:
    """The value of an expression that grows where all its symbols have their least value."""
    return of.xreplace({symbol: sympy.Integer(LEAST) for symbol in of.free_symbols})


def row_major(shape: Iterable[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step: int = 1
    for size in reversed(list(shape)):
        strides.insert(0, step)
        product = int(step) * int(size)
        varies = isinstance(step, Extent) or isinstance(size, Extent)
        step = Extent(product, f"({step!r}*{size!r})") if varies else product
    return strides


def _expressions(sizes: Iterable[Any]) -> list[sympy.Expr]:
    return [expression(size) for size in sizes]


def expression(size: Any) -> sympy.Expr:
    """A size as an expression."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


@functools.cache
def grows(of: sympy.Expr) -> bool:
    """Whether an expression never falls while its symbols grow, each from `LEAST`: it is a polynomial without negative
    coefficients in what they, and quotients and extrema of such expressions, exceed their least values by."""
    above: dict[sympy.Expr, sympy.Expr] = {symbol: symbol + LEAST for symbol in of.free_symbols}
    for part in of.atoms(FloorDiv, Max, Min):
        parts, divisor = (part.args[:1], part.args[1]) if isinstance(part, FloorDiv) else (part.args, sympy.Integer(1))
        if not (divisor.is_Integer and divisor > 0 and all(map(grows, parts))):
            return False
        above[part] = sympy.Dummy() + _least(part)
    found = sympy.expand(of.xreplace(above))
    if not found.free_symbols:
        return bool(found.is_number)
    try:
        terms = sympy.Poly(found, *sorted(found.free_symbols, key=str)).terms()
    except sympy.PolynomialError:
        return False
    return all(coefficient >= 0 for powers, coefficient in terms if any(powers))
