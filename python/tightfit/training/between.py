"""What other steps take between the passes of one: unknown at first, then seen and planned for.

Invariant: what was seen once is planned for; how many passes wait when a forward pass begins tells its places in a loop
apart.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from .ledger import Ledger, Moment, Pending
from .nest import Demand, joined, reserve


class Between:
    """What is known about the time between the forward and the backward pass of one step, by the number of passes that
    wait for their backward passes when it begins. If the step never `nests`, there is nothing to know."""

    def __init__(self, ledger: Ledger, *, nests: bool) -> None:
        self.ledger = ledger
        self.nests = nests
        # What other steps took, and the bytes that others got and held to its end, also by whether the step adds to
        # gradients: then those of others usually exist, too.
        self._demands: dict[int, tuple[Demand, ...]] = {}
        self._grown: dict[tuple[int, bool], int] = {}
        # By the number of passes that waited when the step began, and when a later one did: what the loop held since.
        self.held_since: dict[tuple[int, int], int] = {}

    def inherit(self, other: Between) -> None:
        """Takes over what is known about a step of the same graph at larger sizes, where others take no less."""
        self._demands, self._grown = dict(other._demands), dict(other._grown)

    def is_unknown(self, depth: int) -> bool:
        """Whether other models of the budget may take memory there, and no backward pass has shown it yet."""
        return self.nests and self.ledger.members.is_shared and depth not in self._demands and depth not in self.ledger.alone

    def has_grown(self, depth: int, *, adds: bool) -> bool:
        """Whether it is known what others get there."""
        return (depth, adds) in self._grown

    def grown(self, depth: int, own: int, *, adds: bool) -> int:
        """The bytes that others get there, and hold until the backward pass has run. Before it is known, all gradients that
        other models may get, and the step's `own` ones: another call may make them first, or they may have to go through
        autograd."""
        if (depth, adds) in self._grown:
            return self._grown[depth, adds]
        if not (self.nests and self.ledger.members.is_shared):
            return 0
        if depth not in self.ledger.alone:
            return self.ledger.absent() + own
        return own if adds else 0

    def takes(self, depth: int) -> bool:
        """Whether other steps take something there."""
        return bool(self._demands.get(depth))

    def reserve(self, room: int, own: Demand, depth: int) -> int:
        """The bytes to be left there, if the step's own demand is what it holds then."""
        return reserve(room, own, self._demands.get(depth, ()))

    def tell(self, waiting: Sequence[Pending], peak: Demand) -> Sequence[Moment]:
        """Tells the passes that wait what this step takes at its peak, beyond what was there when it began; returns what it
        told them."""
        moments = [(weakref.ref(pending), demand) for pending, demand in zip(waiting, with_later(waiting, peak), strict=True)]
        _tell(moments, max(self._grown.get((len(waiting), adds), 0) for adds in (False, True)))
        return moments

    def expect(self, depth: int, demand: Demand) -> None:
        """Notes that another step would take this there, and was refused."""
        self._demands[depth] = joined(self._demands.get(depth, ()), demand)
        self.ledger.alone.discard(depth)
        self.ledger.nested.add(depth)

    def learn(self, pending: Pending, beside: int) -> None:
        """Called in a backward pass of the step, when `beside` are the bytes that are held besides its plan."""
        if not self.nests:
            return
        depth, adds = pending.depth, bool(pending.plan.accumulated)
        self._grown[depth, adds] = grown = max(self._grown.get((depth, adds), 0), beside - pending.beside, 0)
        _tell(pending.moments, grown)
        found = self._demands.get(depth, ())
        for demand in pending.inner:
            found = joined(found, demand)
        self._demands[depth] = found
        if found or grown:
            self.ledger.alone.discard(depth)
            self.ledger.nested.add(depth)
        elif depth not in self.ledger.nested:
            self.ledger.alone.add(depth)


def with_later(waiting: Sequence[Pending], peak: Demand) -> list[Demand]:
    """For each pass that waits, the demand of a step at its peak with what later ones that wait hold."""
    return [sum((later.demand for later in waiting[index + 1:]), peak) for index in range(len(waiting))]


def _tell(moments: Sequence[Moment], grown: int) -> None:
    """Tells the passes that wait what a step takes, with what others get between its passes and hold to its end."""
    for reference, demand in moments:
        if (outer := reference()) is not None:
            outer.inner = joined(outer.inner, demand + Demand(grown, grown))
