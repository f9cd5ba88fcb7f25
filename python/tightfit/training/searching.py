"""Searches for plans that go on while steps run.

Invariant: one search runs at a time, on a thread that ends with the process; it reads nothing but its graph, and what it
finds is taken by the step that asked for it, between two passes.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import InfeasibleBudget, TightfitError
from .planned import Held, kept

# The most seconds that a step waits for a plan, if another may follow.
FIRST = 0.25
# How much longer a search is repeated that found nothing, although something may fit; and the most seconds of that.
LONGER = 4
PATIENCE = 2.0
# A plan that may be slower than any other by at most this share is not improved.
CLOSE = 0.005

_turn = threading.Lock()


def _renew() -> None:
    """Called in a process that was forked: the thread that had the turn is not there."""
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_renew)


class Search:
    """A search for a plan, which begins now, or once others have ended if its `owner` is still there then."""

    def __init__(self, find: Callable[[], Held], owner: Any) -> None:
        # What it has found, once it has ended.
        self.found: Held | None = None
        self._find = find
        self._owner = weakref.ref(owner)
        self._thread = threading.Thread(target=self._run, name="tightfit-search", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with _turn:
                if self._owner() is not None:
                    self.found = self._find()
        except TightfitError:
            pass  # the plan that was found before remains

    @property
    def has_ended(self) -> bool:
        """Whether no more is going to be found."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Waits until it has ended."""
        self._thread.join()


def brief(deadline: float | None, most: float = FIRST) -> float:
    """The seconds of a search that may take no longer than the deadline, nor than `most`."""
    return most if deadline is None else min(deadline, most)


def patiently(find: Callable[[float | None], Held], room: int | None, deadline: float | None) -> Held:
    """The plan that is found within the deadline. Where none is found within the room and none is excluded, the search is
    repeated with more time before it is refused."""
    try:
        return find(deadline)
    except InfeasibleBudget as error:
        if room is None or error.needed > room or (deadline is not None and deadline >= PATIENCE):
            raise
    return find(PATIENCE if deadline is None else min(LONGER * deadline, PATIENCE))


def soon(search: functools.partial[Held], graph: dict[str, Any], room: int, deadline: float | None,
         owner: Any) -> tuple[Held, Search | None]:
    """The plan of a graph that is found soon, and the search that goes on if more time may find a faster one."""
    if deadline is not None and deadline <= FIRST:
        return patiently(functools.partial(search, graph, room), room, deadline), None
    if (before := kept(graph, room, deadline, **search.keywords)) is not None:
        return before, None
    began = time.perf_counter()
    try:
        first = search(graph, room, FIRST)
    except InfeasibleBudget:
        return patiently(functools.partial(search, graph, room), room, deadline), None
    has_ended = time.perf_counter() - began < FIRST
    if has_ended or first.seconds - (first.bound_seconds or first.unplanned_seconds) <= CLOSE * first.seconds:
        return first, None
    return first, Search(lambda: search(graph, room, deadline), owner)
