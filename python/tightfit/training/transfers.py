"""Where in a plan's code each transfer begins, and where it is waited for.

Invariant: each is where the checked plan has it; what moves is a tensor that the code has there, and what a call reads
has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..calls import TORCH_DTYPES
from .joint import BARRIER, SHOWN

# The index of the node before which something moves, or the number of nodes; the index of its storage; the index of the
# copy in the tier, which is the same for a recomputed storage; and what happens: `offload`, `release` or `prefetch`.
Move = tuple[int, int, int, str]

_WHAT = {"offload": "leave", "release": "release", "prefetch": "fetch"}


@dataclass(frozen=True)
class Event:
    """What happens: `leave`, `release`, `fetch`, `arrive` or `forget`; the copy in the tier by its index, and a value
    in the storage, if the code has one."""

    what: str
    copy: int
    value: int | None


class Transfers:
    """The events of a planned graph, by the positions of its nodes."""

    def __init__(self, document: Mapping[str, Any], moves: Sequence[Move]) -> None:
        nodes = document["nodes"]
        self.end = len(nodes)
        self._values: dict[int, list[tuple[int, int]]] = {}
        self._reads: dict[int, list[int]] = {}
        self._last: dict[int, int] = dict.fromkeys(document["outputs"], self.end)
        stored = {value["id"]: value["storage"] for node in nodes for value in node["outputs"] if value is not None}
        barrier = next(index for index, node in enumerate(nodes) if node["op"] == BARRIER)
        for index, node in enumerate(nodes):
            for value in node["outputs"]:
                if value is not None:
                    self._values.setdefault(value["storage"], []).append((value["id"], index))
            for value in node.get("inputs", []):
                self._reads.setdefault(stored[value], []).append(index)
                self._last[value] = max(self._last.get(value, 0), index)
        self._before: dict[int, list[Event]] = {}
        # Residents by the index of the copy: the name of the placeholder, and whether the step finds it away.
        self.residents: dict[int, tuple[str, bool]] = {}
        # Residents of which the step assumes a copy in the tier while they are on the device.
        self.copied: set[int] = set()
        names = {node["outputs"][0]["storage"]: node["name"] for node in nodes if node["op"] == "placeholder"}
        # Storages that are away between the two passes, and the copies in the tier that are needed after the barrier.
        self.away: set[int] = set()
        self.kept: set[int] = set()
        # What is released again if the backward pass leaves everything as it found it.
        self._behind: dict[int, list[Event]] = {}
        arrivals: list[tuple[int, Event]] = []
        last = {copy: place for place, (_, _, copy, _) in enumerate(moves)}
        lies: dict[int, int] = {}
        for place, (before, storage, copy, motion) in enumerate(moves):
            if (resident := names.get(storage)) is not None:
                if copy not in self.residents:
                    self.residents[copy] = resident, motion == "prefetch"
                    self.copied |= {copy} if motion == "release" else set()
                self._add(before, Event(_WHAT[motion], copy, None))
                if motion == "prefetch":
                    at = next(index for index in self._reads[storage] if index >= before)
                    arrivals.append((at, Event("arrive", copy, None)))
                continue
            value = self._value(storage, before)
            self._add(before, Event(_WHAT[motion], copy, value))
            if before <= barrier:
                self.kept.add(copy)
                lies[copy] = storage
                (self.away.add if motion == "release" else self.away.discard)(storage)
            if motion == "prefetch":
                at = next(index for index in self._reads[storage] if index >= before)
                arrivals.append((at, Event("arrive", copy, value)))
                if last[copy] == place:
                    arrivals.append((at, Event("forget", copy, value)))
                    if at <= barrier:
                        self.kept.discard(copy)
                if before <= barrier and at <= barrier:
                    del lies[copy]
        for at, event in arrivals:
            self._add(at, event)
        for copy, storage in sorted(lies.items()):
            at = self._reads[storage][-1]
            if at > barrier:
                self._behind.setdefault(at, []).append(Event("release", copy, self._value(storage, at)))

    def _add(self, at: int, event: Event) -> None:
        self._before.setdefault(at, []).append(event)

    def before(self, index: int) -> Iterable[Event]:
        """What happens before a node, in order."""
        return self._before.get(index, ())

    def behind(self, index: int) -> Iterable[Event]:
        """What happens after a node if the backward pass is to leave what was away between the passes away again."""
        return self._behind.get(index, ())

    def _value(self, storage: int, before: int) -> int:
        """A value in a storage that exists before a node and is read by that or a later one."""
        there = (value for value, made in self._values[storage] if made < before <= self._last.get(value, -1))
        return next(there)


def movable(document: Mapping[str, Any], *, with_residents: bool = False) -> list[int]:
    """The indices of the storages that may be away: those that calls make for the step alone, and `with_residents`
    parameters and optimizer state. The step's other arguments stay where their owner has them, and its results belong
    to its caller."""
    nodes, sizes = document["nodes"], document["storages"]
    stored = {value["id"]: value["storage"] for node in nodes for value in node["outputs"] if value is not None}
    fixed = {stored[value] for value in document["outputs"]}
    found = set()
    for node in nodes:
        own = {value["storage"] for value in node["outputs"] if value is not None}
        if node["op"] in (BARRIER, SHOWN):
            fixed |= own | {stored[value] for value in node["inputs"]}
        elif node["op"] != "placeholder":
            found |= own - fixed
        elif with_residents and node["phase"] in ("parameter", "state") and node["name"].startswith(("argument_", "state_")):
            [value] = node["outputs"]
            is_whole = math.prod(value["shape"]) * TORCH_DTYPES[value["dtype"]].itemsize == sizes[value["storage"]]
            (found if is_whole and not value.get("offset") else fixed).update(own)
        else:
            fixed |= own
    return sorted(found - fixed)
