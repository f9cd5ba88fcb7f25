"""Whether the loss of a step is computed in chunks of rows, and in how many: decided with each plan.

Invariant: where the planner decides, chunks compute the bits that all rows at once do: products of some rows were
compared with the same rows of the whole, on tensors of these shapes and strides, on this device.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .. import _native
from ..calls import overload
from ..errors import InfeasibleBudget, OptionError
from ..given import asked
from ..measure import Call, arguments, is_out_of_memory, values_of
from .counting import Count

if TYPE_CHECKING:
    from .execution import Plan

WHOLE = "off"
# Whatever number of chunks changes no bit.
EQUAL = "equal"
# The most chunks, in which a step holds the least, and others that are tried where so few rows have other bits.
_MOST, _FEWER = "16", ("8", "4", "2")
# Products, whose inner sums may be shared out among threads if their rows are few. All other calls compute each row by
# itself.
_PRODUCTS = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}
_CHUNK = re.compile(r"(.+)\.chunk\d+")


class Indivisible(Exception):
    """Nothing of a step can be divided."""


class Division:
    """The ways to divide a step that are tried, and the one that is planned now."""

    def __init__(self, ways: Sequence[str], device: torch.device, step: str = "") -> None:
        self.ways = tuple(ways)
        # The name of a step that is to be divided, and if it cannot be, says so.
        self.step = step
        self.now = WHOLE
        self.device = device
        self._is_settled = self.ways == (WHOLE,)
        # Whether ways are left out that change bits.
        self.has_others = EQUAL in ways
        # The way that changes no bit, once it was looked for.
        self._equal: list[str] = []
        # The most bytes that looking for it held.
        self.most = 0

    def has_any(self, whole: Callable[[], dict[str, Any]]) -> bool:
        """Whether it has a way that the step can be divided."""
        self._settle(whole)
        return self.ways != (WHOLE,)

    def graph(self, whole: dict[str, Any]) -> dict[str, Any]:
        """The step as it is planned now."""
        return whole if self.now == WHOLE else divided(whole, self.now)

    def best(self, plan: Callable[[], Plan], lost: Callable[[Plan], float], whole: Callable[[], dict[str, Any]], *,
             is_smallest: bool, is_whole_last: bool = False) -> Plan:
        """The best of the plans that `plan` makes of the step as it is, which is `whole`, and in chunks: the fastest, or the
        one that holds the least. With `is_whole_last` the step as it is has a plan only if there is none in chunks. Raises
        `InfeasibleBudget`, that of what needs least, if there is none."""
        if self.ways[0] != WHOLE or is_whole_last:
            self._settle(whole)
        found: list[Plan] = []
        refused: list[InfeasibleBudget] = []
        try:
            for way in sorted(self.ways, key=lambda way: way == WHOLE) if is_whole_last else self.ways:
                if found and not is_smallest and (lost(found[0]) == 0 or (is_whole_last and way == WHOLE)):
                    break
                if way != WHOLE:
                    self._settle(whole)
                    if self.ways == (WHOLE,):
                        break
                for self.now in self._equal_ways(whole) if way == EQUAL else (way,):
                    try:
                        found.append(replace(plan(), split=self.now))
                    except InfeasibleBudget as error:
                        refused.append(error.with_traceback(None))
        finally:
            self.now = WHOLE
        if not found:
            raise min(refused, key=lambda error: (error.needed, error.smallest))
        # Calls of chunks, measured one by one, find their rows in the caches more often than steps do: all of them are
        # taken to last as long as those of the whole, at least.
        calls = max((one.held.unplanned_seconds for one in found if one.split == WHOLE), default=0.0)
        return min(found, key=lambda one: one.held.peak if is_smallest else
                   one.held.seconds + max(calls - one.held.unplanned_seconds, 0.0))

    def _settle(self, whole: Callable[[], dict[str, Any]]) -> None:
        """Leaves out what the step does not have."""
        if not self._is_settled:
            self._is_settled, graph = True, whole()
            try:
                for way in self.ways:
                    if way != WHOLE:
                        divided(graph, _MOST if way == EQUAL else way)
            except Indivisible as error:
                if self.step and self.ways[0] != WHOLE:
                    warnings.warn(f"split={self.ways[0]!r} is not done in {self.step}, which is planned as it is: {error}",
                                  RuntimeWarning, stacklevel=2)
                self.ways, self.has_others = (WHOLE,), False

    def _equal_ways(self, whole: Callable[[], dict[str, Any]]) -> list[str]:
        """The most chunks that change no bit, if any do not."""
        if self.ways[-1] == EQUAL:
            found: list[str] = []
            try:
                with Count.aside(self.device):
                    found, self.most = equal_ways(whole(), self.device)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._equal = found[:1]
            self.ways = (*self.ways[:-1], *self._equal)
        return self._equal


def predicted(ways: Sequence[str]) -> tuple[str, ...]:
    """The ways that are tried where nothing can run."""
    return tuple(_MOST if way == EQUAL else way for way in ways)


def divided(whole: dict[str, Any], way: str) -> dict[str, Any]:
    """A step in chunks. Raises `Indivisible`."""
    try:
        return json.loads(asked(_native.split_graph, json.dumps(whole).encode(), way))
    except OptionError as error:
        raise Indivisible(str(error)) from None


def equal_ways(whole: dict[str, Any], device: torch.device) -> tuple[list[str], int]:
    """The numbers of chunks, the most first, in which products make the rows that those of the whole make, bit for bit;
    and the most bytes that finding out held."""
    values = values_of(whole)
    ways = {way: divided(whole, way) for way in (_MOST, *_FEWER)}
    parts = {way: values_of(graph) for way, graph in ways.items()}
    chunks = {way: _products(graph) for way, graph in ways.items()}
    named = {node["name"]: node for node in whole["nodes"]}
    most = 0

    def remain(name: str) -> dict[str, Any]:
        nonlocal most
        product = _Product(named[name], values, device)
        most = max(most, product.size)
        return {way: found for way, found in chunks.items() if product.has_rows_of(found[name], parts[way])}

    with torch.no_grad():
        for name in chunks[_MOST]:
            # One product is there at a time.
            chunks = remain(name)
    return list(chunks), most


def _products(graph: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The products of the chunks, by the product that they are rows of."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for node in graph["nodes"]:
        if node["op"] in _PRODUCTS and (name := _CHUNK.fullmatch(node["name"])):
            found.setdefault(name[1], []).append(node)
    return found


class _Product:
    """A product of all rows, made of random numbers."""

    def __init__(self, node: Mapping[str, Any], values: Mapping[int, Any], device: torch.device) -> None:
        self.node, self.values = node, values
        self.operator = overload(node["op"])
        self.given, _ = arguments(Call.of(dict(node), values), device)
        # What is made up for measuring adds up without a rounding.
        generator = torch.Generator(device).manual_seed(0)
        for tensor in self.given:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.normal_(generator=generator)
        self.shape = values[node["outputs"][0]["id"]].shape
        self.made = self.operator(*self.given)
        tensors = [*(tensor for tensor in self.given if isinstance(tensor, torch.Tensor)), self.made]
        # What it is compared with has half as many rows or fewer.
        self.size = sum(tensor.nbytes for tensor in tensors) + self.made.nbytes // 2

    def has_rows_of(self, chunks: Sequence[Mapping[str, Any]], parts: Mapping[int, Any]) -> bool:
        """Whether the products of chunks make its rows. One of each size and the last are tried."""
        first, tried = 0, set()
        for node in chunks:
            rows = _narrowed(self.shape, parts[node["outputs"][0]["id"]].shape)
            if not rows:
                # It adds up to the product, and has no rows of it.
                return True
            [(dim, count)] = rows
            if count not in tried or node is chunks[-1]:
                given = [self._part(index, other, parts, first) for index, other in enumerate(node["args"])]
                if not torch.equal(self.operator(*given), self.made.narrow(dim, first, count)):
                    return False
            tried.add(count)
            first += count
        return True

    def _part(self, index: int, other: Any, parts: Mapping[int, Any], first: int) -> Any:
        """What a chunk reads of an argument, where the node has `other`."""
        found = self.given[index]
        if isinstance(other, Mapping):
            for dim, count in _narrowed(self.values[self.node["args"][index]["value"]].shape, parts[other["value"]].shape):
                found = found.narrow(dim, first, count)
        return found


def _narrowed(shape: Sequence[int], part: Sequence[int]) -> list[tuple[int, int]]:
    """The dimensions of which a part has fewer elements, and how many it has."""
    return [(dim, count) for dim, (extent, count) in enumerate(zip(shape, part, strict=True)) if count != extent]
