"""The search for the largest size that fits, between one that does and one that does not.

Invariant: it ends at a size that fits whose next one does not, is not taken by the model, or is not known. Each size is tried
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .. import _native, extents
from .ranges import MOST, TooMany


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
    """The search for the largest size that fits, of multiples of `grid`; the compiled module says what to try next."""

    def __init__(self, try_: Callable[[int, bool, bool], Tried | None], room: int, grid: int = 1) -> None:
        self._try = try_
        self.room = room
        self.grid = grid
        self.tried: dict[int, Tried] = {}
        # Sizes that the model does not take, and those of which that is not known.
        self.barred: set[int] = set()
        self.unknown: set[int] = set()

    def look(self, size: int, *, is_near: bool = False, is_patient: bool = False) -> bool:
        """Whether a size fits; if nothing was found although something may, a patient look decides."""
        is_open = size in self.tried and self._is_open(self.tried[size])
        if is_patient and is_open or size not in self.tried.keys() | self.barred | self.unknown:
            try:
                found = self._try(size, is_near, is_patient)
            except TooMany:
                self.unknown.add(size)
                return False
            if found is None:
                self.barred.add(size)
            else:
                self.tried[size] = found
        return size in self.tried and self.tried[size].fits

    def improve(self, size: int) -> None:
        """Takes a patient look at a size that fits, for a plan that is faster."""
        before, found = self.tried[size], self._try(size, False, True)
        if found is not None and found.fits and found.seconds < before.seconds:
            self.tried[size] = replace(found, smallest=before.smallest)

    def run(self, given: int) -> int | None:
        """The largest size that fits, beginning with this one; `None` if none does."""
        return _native.largest_size(given, self._trial, least=extents.LEAST, most=MOST, grid=self.grid, room=self.room)

    def _trial(self, size: int, is_patient: bool) -> tuple[str, int | None]:
        """What a size says about where the largest one is, and the bytes that are known to suffice for it."""
        fits = self.look(size, is_near=True, is_patient=is_patient)
        if size in self.tried:
            found = self.tried[size]
            return "fits" if fits else "open" if self._is_open(found) else "exceeds", found.smallest
        return "barred" if size in self.barred else "unknown", None

    def _is_open(self, tried: Tried) -> bool:
        """Whether there may be a plan although none was found."""
        return not tried.fits and tried.needed <= self.room
