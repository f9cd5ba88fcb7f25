"""The search for the largest size that fits, between one that does and one that does not.

Invariant: it ends at a size that fits whose next one does not, is not taken by the model, or is not known. Each size is tried
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .. import extents
from .ranges import MOST, TooMany

# The largest factor by which a size that fits is exceeded.
_GROWTH = 4


@dataclass(frozen=True)
class Tried:
    """A size, and the plan for it: the bytes that a step holds, all that the budget counts included; the predicted seconds
    of a step, of one without a plan, and those that no plan beats; the number of recomputed calls; and samples, or steps
    along the length, per second. Without a plan they are `None`, and no plan needs less bytes than `needed`: if that is not
    more than the budget, it is not proven that the size does not fit. `smallest` bytes are known to suffice, if that was
    asked."""

    size: int
    peak: int | None = None
    needed: int = 0
    smallest: int | None = None
    seconds: float | None = None
    unplanned_seconds: float | None = None
    bound_seconds: float | None = None
    recomputed: int | None = None
    per_second: float | None = None

    @property
    def fits(self) -> bool:
        """Whether there is a plan for it."""
        return self.peak is not None


class Search:
    """The search for the largest size that fits, of multiples of `grid`: where a line through two peaks says first, then around
    that."""

    def __init__(self, try_: Callable[[int, bool], Tried | None], room: int, grid: int = 1) -> None:
        self._try = try_
        self.room = room
        self.grid = grid
        self.tried: dict[int, Tried] = {}
        # Sizes that the model does not take, and those of which that is not known.
        self.barred: set[int] = set()
        self.unknown: set[int] = set()

    def look(self, size: int, *, is_near: bool = False) -> bool:
        """Whether a size fits."""
        if size not in self.tried and size not in self.barred | self.unknown:
            try:
                found = self._try(size, is_near)
            except TooMany:
                self.unknown.add(size)
                return False
            if found is None:
                self.barred.add(size)
            else:
                self.tried[size] = found
        return size in self.tried and self.tried[size].fits

    def run(self, given: int) -> int | None:
        """The largest size that fits, beginning with this one; `None` if none does."""
        grid = self.grid
        # Below `floor` are sizes that are too small for the model.
        low, high, at, floor = 0, MOST // grid, given // grid, -(-extents.LEAST // grid)
        while low + 1 < high and floor <= at < high:
            before = high - low
            # One size may be missing among others.
            place = at + 1 if at * grid in self.barred and at + 1 < high else at
            if self.look(place * grid, is_near=True):
                low = max(low, place)
            elif low == 0 and place * grid in self.barred:
                floor = place + 1
            elif place * grid in self.barred and place == at and at + 1 < high:
                continue
            else:
                high = min(high, at)
            at = max(self._next(low, high, floor, is_slow=high - low > before // 2), floor)
        return low * grid or None

    def _next(self, low: int, high: int, floor: int, *, is_slow: bool) -> int:
        """What to try next, between what fits and what does not. If the last one left more than half of the interval, it is
        halved now."""
        if low == 0:
            return (floor + high) // 2 if high > floor else high
        guess = self._guess(low)
        if high == MOST // self.grid:
            return min(max(guess or 0, 2 * low if guess is None else low + max(low // 16, 1)), _GROWTH * low, high - 1)
        if guess is None or is_slow:
            guess = math.isqrt(low * high)
        return min(max(guess, low + 1), high - 1)

    def _guess(self, low: int) -> int | None:
        """The size for which the room would just suffice, by a line through two that are close."""
        found = [one for one in self.tried.values() if one.smallest is not None]
        known = [(one.size, one.smallest) for one in sorted(found, key=lambda one: abs(one.smallest - self.room))][:2]
        known.sort()
        if len(known) < 2 or known[1][1] <= known[0][1]:
            return None
        (one, least), (other, more) = known
        return max(low, (one + int((self.room - least) * (other - one) / (more - least))) // self.grid)
