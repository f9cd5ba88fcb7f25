"""What is allocated while a step runs, counted where PyTorch tells.

Invariant: a thread has one count at a time, and whoever begins another ends it; a step that is not counted pays nothing.
"""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass

import torch

from . import addresses

_here = threading.local()


@dataclass(frozen=True)
class Counted:
    """Bytes that were allocated in a section of a step, beyond what was there when it began: the most at any time, and what
    is there at its end. On processors, what was allocated while nobody counted is not missed when it is freed."""

    peak: int
    net: int

    def then(self, later: Counted) -> Counted:
        """This section and the one behind it, as one."""
        return Counted(max(self.peak, self.net + later.peak), self.net + later.net)


class Count:
    """A count that is running, section by section."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._thread = threading.get_ident()
        self._is_open = True
        self._start = 0

    @staticmethod
    def begin(device: torch.device) -> Count | None:
        """Begins to count, instead of any other count of this thread; `None` where nobody tells: another profiler is active, or
        the allocator is replaced."""
        Count.abandon()
        if device.type == "cuda":
            is_told = not addresses.is_installed()
        else:
            is_told = device.type == "cpu" and not torch._C._autograd._profiler_enabled()
        if not is_told:
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
        """Behind a backward pass: where a count ended inside, autograd's engine has brought back the profiler that was active
        when the pass began."""
        if getattr(_here, "ended_inside", False):
            _here.ended_inside = False
            if torch._C._autograd._profiler_enabled():
                end_profile()

    @property
    def is_running(self) -> bool:
        """Whether nobody has ended it, and this thread may: on CUDA, backward passes have threads of their own."""
        return self._is_open and (self.device.type == "cuda" or self._thread == threading.get_ident())

    def cut(self) -> Counted:
        """What was counted in the section that ends here. The next one begins. Not for inside of a backward pass."""
        counted = self._leave()
        self._enter()
        return counted

    def end(self) -> Counted:
        """What was counted in the last section."""
        self._is_open = False
        return self._leave()

    def end_if_running(self) -> None:
        """Ends it, unless that has happened."""
        if self.is_running:
            self.end()

    def _enter(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._start = torch.cuda.memory_allocated(self.device)
        else:
            begin_profile()

    def _leave(self) -> Counted:
        if self.device.type == "cuda":
            return Counted(torch.cuda.max_memory_allocated(self.device) - self._start,
                           torch.cuda.memory_allocated(self.device) - self._start)
        if torch._C._current_graph_task_id() != -1:
            _here.ended_inside = True
        return end_profile()


@functools.cache
def _quieten() -> None:
    """Lets PyTorch say where nobody reads it that frees of older memory are not counted: it says so once in a thousand, on the
    standard error."""
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
    """Lets PyTorch's light profiler report every allocation that this thread makes on the processor."""
    profiler = torch._C._profiler
    config = profiler.ProfilerConfig(profiler.ProfilerState.CPU, False, True, False, False, False,
                                     profiler._ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(config)


def end_profile() -> Counted:
    """What it reported."""
    held = peak = 0
    for event in (event for thread in torch._C._autograd._disable_profiler_legacy() for event in thread):
        if event.kind() == "memory_alloc":
            held += event.cpu_memory_usage()
            peak = max(peak, held)
    return Counted(peak, held)
