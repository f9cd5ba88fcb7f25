"""How what a budget leaves is divided among forward passes that wait for their backward passes at the same time.

Invariant: whatever the division, each step is planned within what is left when it begins; dividing decides only how
much an earlier one leaves for those that follow before its backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .planned import Held

# The most demands that are told apart; more are joined into one that is no less than any of them.
_MOST = 8


@dataclass(frozen=True)
class Demand:
    """Bytes that something takes: at `least`, with as much recomputed as possible, and at `most`, with nothing."""

    least: int = 0
    most: int = 0

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.least + other.least, self.most + other.most)

    def at(self, share: float) -> int:
        """The bytes that it gets, where everything gets the same share of what it takes between least and most."""
        return self.least + int(share * max(self.most - self.least, 0))

    def less(self, size: int) -> Demand:
        """What it takes if so much of it is there already."""
        return Demand(max(self.least - size, 0), max(self.most - size, 0))

    def covers(self, other: Demand) -> bool:
        """Whether it takes no less in any case."""
        return self.least >= other.least and self.most >= other.most


NONE = Demand()


@dataclass(frozen=True)
class Range:
    """The bytes that the plans of a step take: from the least that they reach to what the step takes unplanned. `barrier`
    is what is held between the passes, and `narrow` a plan that holds as little there as possible; `peak` is the most that
    is held at any time."""

    narrow: Held
    barrier: Demand
    peak: Demand


def joined(demands: Sequence[Demand], new: Demand) -> tuple[Demand, ...]:
    """Demands of different moments, with a new one, without those that others cover."""
    if any(demand.covers(new) for demand in demands):
        return tuple(demands)
    kept = [demand for demand in demands if not new.covers(demand)] + [new]
    if len(kept) <= _MOST:
        return tuple(kept)
    return (Demand(max(demand.least for demand in kept), max(demand.most for demand in kept)),)


def reserve(room: int, own: Demand, inner: Sequence[Demand]) -> int:
    """The bytes that a step has to leave between its passes for the demands that follow there, one at a time, if its
    own demand is what it holds then: where all get the largest common share that the room allows."""
    if not inner:
        return 0
    share = min(_share(room, own + demand) for demand in inner)
    return max(demand.at(share) for demand in inner)


def _share(room: int, demand: Demand) -> float:
    """The largest share, from 0 to 1, of a demand that the room allows."""
    if demand.most <= room:
        return 1.0
    if demand.least >= room:
        return 0.0
    return (room - demand.least) / (demand.most - demand.least)
