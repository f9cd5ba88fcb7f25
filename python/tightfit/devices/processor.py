"""The processor. Its allocator keeps no figures: PyTorch's light profiler reports what a thread allocates.

Invariant: on the thread that begins a profile, every allocation until its end is in it, outside of backward passes.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .device import Device
from .lanes import Lanes, ThreadLanes

# Bytes of a tensor that is made and freed to mark a place among the allocations of a step; no other tensor is assumed
# to have this size.
_MARK = 41_957


@dataclass(frozen=True)
class Counted:
    """Bytes that were allocated in a section of a step, beyond those at its beginning: the most at any time, and those
    left at its end. On CPUs, freeing a block that was allocated outside of any count is not reported."""

    peak: int
    net: int

    def then(self, later: Counted) -> Counted:
        """Joins this section and the next."""
        return Counted(max(self.peak, self.net + later.peak), self.net + later.net)


class Processor(Device):
    """The processor, and devices without memory."""

    is_processor = True
    statistics = None
    # More than its caches hold.
    bytes_of_probe = 64 << 20

    @property
    def name(self) -> str:
        return f"{self.device.type} {torch.get_num_threads()}"

    def count(self) -> int:
        return 1

    def is_reported(self, *, is_recording: bool) -> bool:
        return self.device.type == "cpu" and (is_recording or not is_profiled())

    def free(self) -> int | None:
        found = []
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
        with contextlib.suppress(OSError, ValueError):
            group = Path("/sys/fs/cgroup")
            most, used = ((group / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
            found.append(int(most) - int(used))
        return min(found, default=None)

    def peak_of(self, run: Callable[[], Any]) -> int:
        return _followed(run)[1]

    def course_of(self, run: Callable[[], Any]) -> tuple[Any, int | None]:
        return (run(), None) if is_profiled() else _followed(run)

    def seconds(self, run: Callable[[], Any], times: int = 1) -> list[float]:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
        return taken

    @property
    def generator(self) -> torch.Generator:
        return torch.default_generator

    def lanes(self) -> Lanes:
        return _lanes()

    def folder(self) -> str | None:
        return tempfile.gettempdir()

    def probe(self, size: int) -> torch.UntypedStorage:
        """Not from PyTorch's allocator, which is the step's."""
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).untyped_storage()


@functools.cache
def _lanes() -> Lanes:
    return ThreadLanes()


def is_profiled() -> bool:
    """Whether a profiler is active, of which there can be only one."""
    return torch._C._autograd._profiler_enabled()


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


def mark() -> None:
    """Marks a place in what the profiler reports."""
    torch.empty(_MARK, dtype=torch.uint8)


@functools.cache
def quieten() -> None:
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


def _followed(run: Callable[[], Any]) -> tuple[Any, int]:
    begin_profile()
    try:
        result = run()
    finally:
        [counted] = end_profile()
    return result, counted.peak
