"""The bytes that PyTorch allocates while a step runs, as its profiler or CUDA's allocator reports them.

Invariant: a thread has one count at a time, and beginning another ends it; a step that is not counted is not slowed
down.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import addresses

# Bytes of a tensor that is made and freed to mark a place among the allocations of a step; no other tensor is assumed
# to have this size.
_MARK = 41_957

_here = threading.local()


@dataclass(frozen=True)
class Counted:
    """Bytes that were allocated in a section of a step, beyond those at its beginning: the most at any time, and those
    left at its end. On CPUs, freeing a block that was allocated outside of any count is not reported."""

    peak: int
    net: int

    def then(self, later: Counted) -> Counted:
        """Joins this section and the next."""
        return Counted(max(self.peak, self.net + later.peak), self.net + later.net)


class Count:
    """A count that is running. Its profiler begins and ends outside of backward passes: autograd's engine keeps the
    profiler that is active when a pass begins, and restores it afterwards."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks = 0
        self._thread = threading.get_ident()
        self._is_open = True
        self._start = 0
        self._sections: list[Counted] = []

    @staticmethod
    def begin(device: torch.device) -> Count | None:
        """Begins to count, in place of any other count on this thread. `None` in a backward pass, or if allocations are
        not reported because another profiler is active or the allocator was replaced."""
        Count.abandon()
        if device.type == "cuda":
            is_reported = not addresses.is_installed()
        else:
            is_reported = device.type == "cpu" and not torch._C._autograd._profiler_enabled()
        if not is_reported or is_in_backward():
            return None
        if device.type == "cpu":
            _quieten()
        _here.count = count = Count(device)
        count._enter()
        return count

    @staticmethod
    def abandon() -> None:
        """Ends the count of this thread, if there is one."""
        if (count := getattr(_here, "count", None)) is not None:
            count.end_if_running()

    @staticmethod
    def settle() -> None:
        """After a backward pass: ends the profiler of a count that was ended inside it."""
        if getattr(_here, "is_due", False) and not is_in_backward():
            _here.is_due = False
            if torch._C._autograd._profiler_enabled():
                end_profile()

    @property
    def is_running(self) -> bool:
        """Whether it is open, and this thread may end it: on a CPU only the thread that began it; on CUDA any, since
        backward passes run on other threads."""
        return self._is_open and (self.device.type == "cuda" or self._thread == threading.get_ident())

    def mark(self) -> None:
        """Inside a backward pass: ends a section and begins the next one."""
        self.marks += 1
        if self.device.type == "cuda":
            self._sections += self._leave()
            self._enter()
        else:
            torch.empty(_MARK, dtype=torch.uint8)

    def cut(self) -> Counted:
        """Outside of backward passes: ends a section, returns its count, and begins the next one."""
        [counted] = self._leave()
        self._enter()
        return counted

    def end(self) -> list[Counted]:
        """Ends the count; returns what was counted since its beginning or last cut, in the sections between marks.
        On a CPU, nothing if it ends in a backward pass."""
        self._is_open = False
        if self.device.type == "cpu" and is_in_backward():
            _here.is_due = True
            return []
        return self._sections + self._leave()

    def end_if_running(self) -> None:
        """Ends it, unless it has ended."""
        if self.is_running:
            self.end()

    def _enter(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._start = torch.cuda.memory_allocated(self.device)
        else:
            begin_profile()

    def _leave(self) -> list[Counted]:
        if self.device.type == "cuda":
            return [Counted(torch.cuda.max_memory_allocated(self.device) - self._start,
                            torch.cuda.memory_allocated(self.device) - self._start)]
        return end_profile()


@dataclass(eq=False)
class Tally:
    """The counted bytes of a step, in three sections: forward pass, loss, backward pass."""

    count: Count
    # Bytes held when the step began, and the outputs of earlier calls among them.
    start: int
    earlier: list[tuple[StorageWeakRef, int]]
    sections: list[Counted] = field(default_factory=list)
    # What was counted for the loss before its backward pass, and the bytes that its autograd graph held then.
    before: Counted | None = None
    surveyed: int = 0
    # Bytes of targets and anything else that the loss holds but did not make.
    targets: int = 0
    # Bytes of outputs that the loop freed.
    released: int = 0

    def peak(self) -> tuple[int, int]:
        """The most bytes that the step held, and the index of the section in which it did."""
        peak = at = 0
        held = self.start + self.targets
        for index, section in enumerate(self.sections):
            if index == 1:
                # A loop that assigns its outputs to the same variable each time frees the earlier ones here.
                held -= expired(self.earlier)
            if held + section.peak > peak:
                peak, at = held + section.peak, index
            held += section.net
        return peak, at


def expired(storages: Iterable[tuple[StorageWeakRef, int]]) -> int:
    """Bytes of the storages that were freed."""
    return sum(size for storage, size in storages if storage.expired())


@functools.cache
def _quieten() -> None:
    """Suppresses PyTorch's message that frees of older blocks are not reported, by causing it once with standard error
    redirected: it is written on the first such free, and then only on every thousandth."""
    older = torch.empty(1)
    with open(os.devnull, "wb") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            begin_profile()
            del older
            end_profile()
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def begin_profile() -> None:
    """Makes PyTorch's legacy profiler report every allocation of this thread on the CPU."""
    profiler = torch._C._profiler
    config = profiler.ProfilerConfig(profiler.ProfilerState.CPU, False, True, False, False, False,
                                     profiler._ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(config)


def end_profile() -> list[Counted]:
    """Ends the profiler; returns what it counted, in the sections between marks."""
    sections, held, peak = [], 0, 0
    for event in (event for thread in torch._C._autograd._disable_profiler_legacy() for event in thread):
        if event.kind() != "memory_alloc":
            continue
        size = event.cpu_memory_usage()
        if size == _MARK:
            sections.append(Counted(peak, held))
            held = peak = 0
        elif size != -_MARK:
            held += size
            peak = max(peak, held)
    return [*sections, Counted(peak, held)]


def is_in_backward() -> bool:
    """Whether autograd's engine is running a backward pass on this thread."""
    return torch._C._current_graph_task_id() != -1
