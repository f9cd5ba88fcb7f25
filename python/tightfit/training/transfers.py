"""Where in a plan's code each transfer begins, and where it is waited for.

Invariant: each transfer begins, and is waited for, where the checked plan says. What moves is a tensor that exists at
that point of the code, and what a call reads has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..calls import TORCH_DTYPES
from .joint import BARRIER, SHOWN
from .roles import Kind, Role

# The index of the node before which something moves, or the number of nodes at the end; the index of the storage that
# moves; the index of its copy in the tier, which a recomputed storage shares with the original; and the motion:
# `offload`, `release` or `prefetch`.
Move = tuple[int, int, int, str]

_EVENTS = {"offload": "leave", "release": "release", "prefetch": "fetch"}


@dataclass(frozen=True)
class Event:
    """Something that happens to a storage: `what` is `leave`, `release`, `fetch`, `arrive` or `forget`, `copy` the
    index of its copy in the tier, and `value` one of its values, or `None` for a resident."""

    what: str
    copy: int
    value: int | None


class Transfers:
    """The events of a planned graph, by the indices of its nodes."""

    def __init__(self, document: Mapping[str, Any], moves: Sequence[Move]) -> None:
        nodes = document["nodes"]
        self.end = len(nodes)
        self.moved = {storage for _, storage, _, _ in moves}
        # By storage: its values, each with the node that makes it; and the nodes that read it.
        self._values: dict[int, list[tuple[int, int]]] = {}
        self._reads: dict[int, list[int]] = {}
        # By value: the last node that reads it.
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
        # Residents by the index of the copy: its role, and whether it is away when the step begins.
        self.residents: dict[int, tuple[Role, bool]] = {}
        # Residents that are on the device when the step begins while the tier has a current copy.
        self.copied: set[int] = set()
        roles = {node["outputs"][0]["storage"]: role for node in nodes
                 if node["op"] == "placeholder" and (role := Role.of(node)) is not None}
        # Storages that are away between the two passes.
        self.away: set[int] = set()
        # Copies in the tier that are needed after the barrier.
        self.kept: set[int] = set()
        # What is released after a node if what was away before the backward pass has to be away after it, too.
        self._after: dict[int, list[Event]] = {}
        arrivals: list[tuple[int, Event]] = []
        last = {copy: place for place, (_, _, copy, _) in enumerate(moves)}
        # The storages of the copies that the tier holds at the barrier.
        at_barrier: dict[int, int] = {}
        for place, (before, storage, copy, motion) in enumerate(moves):
            if (resident := roles.get(storage)) is not None:
                if copy not in self.residents:
                    self.residents[copy] = resident, motion == "prefetch"
                    self.copied |= {copy} if motion == "release" else set()
                self._add(before, Event(_EVENTS[motion], copy, None))
                if motion == "prefetch":
                    at = next(index for index in self._reads[storage] if index >= before)
                    arrivals.append((at, Event("arrive", copy, None)))
                continue
            value = self._value(storage, before)
            self._add(before, Event(_EVENTS[motion], copy, value))
            if before <= barrier:
                self.kept.add(copy)
                at_barrier[copy] = storage
                (self.away.add if motion == "release" else self.away.discard)(storage)
            if motion == "prefetch":
                at = next(index for index in self._reads[storage] if index >= before)
                arrivals.append((at, Event("arrive", copy, value)))
                if last[copy] == place:
                    arrivals.append((at, Event("forget", copy, value)))
                    if at <= barrier:
                        self.kept.discard(copy)
                if before <= barrier and at <= barrier:
                    del at_barrier[copy]
        for at, event in arrivals:
            self._add(at, event)
        for copy, storage in sorted(at_barrier.items()):
            at = self._reads[storage][-1]
            if at > barrier:
                self._after.setdefault(at, []).append(Event("release", copy, self._value(storage, at)))

    def _add(self, at: int, event: Event) -> None:
        self._before.setdefault(at, []).append(event)

    def before(self, index: int) -> Iterable[Event]:
        """What happens before a node, in order."""
        return self._before.get(index, ())

    def after(self, index: int) -> Iterable[Event]:
        """What happens after a node if what was away before the backward pass has to be away after it, too."""
        return self._after.get(index, ())

    def _value(self, storage: int, before: int) -> int:
        """A value of a storage that is made before a node and is read by that node or a later one."""
        there = (value for value, made in self._values[storage] if made < before <= self._last.get(value, -1))
        return next(there)


def movable(document: Mapping[str, Any], *, with_residents: bool = False) -> list[int]:
    """The indices of the storages that may be away: those that calls make for the step alone and, `with_residents`,
    those that a parameter or optimizer state fills. The step's other arguments stay where their owner has them, and
    its results belong to its caller."""
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
        elif with_residents and node["phase"] in ("parameter", "state") and _is_resident(Role.of(node)):
            [value] = node["outputs"]
            is_whole = math.prod(value["shape"]) * TORCH_DTYPES[value["dtype"]].itemsize == sizes[value["storage"]]
            (found if is_whole and not value.get("offset") else fixed).update(own)
        else:
            fixed |= own
    return sorted(found - fixed)


def _is_resident(role: Role | None) -> bool:
    return role is not None and role.kind in (Kind.ARGUMENT, Kind.STATE)
