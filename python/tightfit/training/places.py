"""Which parts of a tensor are made where they belong, so that nothing has to put them there.

Invariant: a part is made in its place only if the tensor has its room by then, holds it for as long as anything reads the
part, and nothing is written over the part afterwards: no more is held at any time than what the plan's graph counts, and
the tensor keeps what was put into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from .. import calls
from .inplace import PUT, writing
from .joint import BARRIER


@dataclass(frozen=True)
class Place:
    """Elements along a dimension of the tensor that is a value."""

    whole: int
    dim: int
    first: int
    count: int


@dataclass(frozen=True)
class Places:
    """The places of parts, by the names of the calls that make them, and the calls that would have put them there."""

    parts: Mapping[str, Place] = field(default_factory=dict)
    puts: frozenset[str] = frozenset()


def places(document: Mapping[str, Any], moved: Set[int] = frozenset()) -> Places:
    """The parts of a planned graph that can be made in their places. The storages `moved` may be elsewhere."""
    known = _Known(document, moved)
    found = {node["name"]: place for node in document["nodes"] if (place := known.place(node)) is not None}
    return Places({maker: place for maker, place in found.values()}, frozenset(found))


class _Known:
    """What makes and reads the values of a graph, by the indices of its nodes."""

    def __init__(self, document: Mapping[str, Any], moved: Set[int]) -> None:
        self.moved = moved
        self.nodes = document["nodes"]
        self.described = {value["id"]: value for node in self.nodes for value in node["outputs"] if value is not None}
        self.maker = {value["id"]: index for index, node in enumerate(self.nodes) for value in node["outputs"] if value is not None}
        self.last: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            self.last.update((self.described[value]["storage"], index) for value in node.get("inputs", []))
        self.last.update((self.described[value]["storage"], len(self.nodes)) for value in document["outputs"])
        # The storages that a call writes over, and the last one that does.
        self.over: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            self.over.update((self.described[value]["storage"], index) for value in node.get("overwrites") or [])
        self.barrier = next(index for index, node in enumerate(self.nodes) if node["op"] == BARRIER)

    def place(self, node: Mapping[str, Any]) -> tuple[str, Place] | None:
        """The call that makes the part that a node puts into a tensor, and the part's place, if it can be made there."""
        if node["op"] != PUT or not node.get("overwrites"):
            return None
        whole, part, dim, first, end = node["args"]
        whole, part, put = whole["value"], part["value"], self.maker[node["outputs"][0]["id"]]
        parts, wholes = list(self._chain(part)), [*self._chain(whole), *self._later(put)]
        begin = self.maker[parts[-1]]
        is_there = self.maker[whole] < begin and not begin < self.barrier < put
        outlives = self._last(wholes[-1]) >= max(map(self._last, parts))
        is_kept = self.over.get(self.described[part]["storage"], 0) < put
        stays = self.moved.isdisjoint(self.described[value]["storage"] for value in (*parts, *wholes))
        shapes = [self.described[value]["shape"] for value in (part, parts[-1])]
        is_dense = all(map(self._is_dense, (whole, part, parts[-1]))) and math.prod(self.described[whole]["shape"][:dim]) == 1
        can_write = is_there and outlives and is_kept and stays and is_dense and shapes[0] == shapes[1] and _writes(self.nodes[begin])
        return (self.nodes[begin]["name"], Place(whole, dim, first, end - first)) if can_write else None

    def _chain(self, value: int) -> Iterator[int]:
        """A value, and those that it was written over."""
        while True:
            yield value
            over = self.nodes[self.maker[value]].get("overwrites")
            if not over:
                return
            value = over[0]

    def _last(self, value: int) -> int:
        return self.last.get(self.described[value]["storage"], self.maker[value])

    def _later(self, put: int | None) -> Iterator[int]:
        """A tensor after a node has put a part into it, and after each that does so afterwards."""
        while put is not None:
            [output] = self.nodes[put]["outputs"]
            yield output["id"]
            last = self._last(output["id"])
            puts_again = put < last < len(self.nodes) and self.nodes[last]["op"] == PUT and self.nodes[last].get("overwrites")
            put = last if puts_again else None

    def _is_dense(self, value: int) -> bool:
        described = self.described[value]
        return "strides" not in described and not described.get("offset")


def _writes(node: Mapping[str, Any]) -> bool:
    """Whether a call can write its one result into a tensor that it is given."""
    overload = calls.overload(node["op"])
    return overload is not None and len(node["outputs"]) == 1 and not node.get("stream") and writing(overload) is not None
