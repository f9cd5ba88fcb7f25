"""What is the same on all accelerators: PyTorch's common interface to statistics, streams and events.

Invariant: nothing here starts the device's runtime before something is run, and no operator's seconds include another's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from .device import Device, Memory, Statistics
from .lanes import Lanes, StreamLanes


class _OfAllocator:
    """The figures of PyTorch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def held(self) -> int:
        return torch.accelerator.memory_allocated(self._device)

    def peak(self) -> int:
        return torch.accelerator.max_memory_allocated(self._device)

    def reset(self) -> None:
        torch.accelerator.reset_peak_memory_stats(self._device)


class Accelerator(Device):
    """A device with a runtime of its own, which does what is submitted to it later."""

    is_processor = False
    bytes_of_probe = 8 << 20

    @property
    def name(self) -> str:
        name = getattr(self._module, "get_device_name", None)
        return self.device.type if name is None else name(self.device)

    def count(self) -> int:
        return self._module.device_count()

    @property
    def statistics(self) -> Statistics | None:
        return _OfAllocator(self.device)

    def is_reported(self, *, is_recording: bool) -> bool:
        return self.statistics is not None

    def memory(self) -> Memory:
        free, total = torch.accelerator.get_memory_info(self.device)
        return Memory(total, free, torch.accelerator.memory_reserved(self.device))

    def free(self) -> int | None:
        """What the allocator keeps for later is free for a call."""
        memory = self.memory()
        return memory.free + memory.reserved - torch.accelerator.memory_allocated(self.device)

    def empty_cache(self) -> None:
        torch.accelerator.empty_cache()

    def peak_of(self, run: Callable[[], Any]) -> int:
        """In the allocator's block sizes. The first run is to have libraries take what they keep."""
        figures = self._figures()
        run()
        self.synchronize()
        before = figures.held()
        figures.reset()
        run()
        self.synchronize()
        return figures.peak() - before

    def course_of(self, run: Callable[[], Any]) -> tuple[Any, int | None]:
        figures = self._figures()
        figures.reset()
        result = run()
        return result, figures.peak()

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Events are recorded on the current device."""
        return self._module.device(self.device)

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.device)

    def seconds(self, run: Callable[[], Any], times: int = 1) -> list[float]:
        pairs = [[torch.Event(self.device, enable_timing=True) for _ in range(2)] for _ in range(times)]
        for began, ended in pairs:
            began.record()
            run()
            ended.record()
        self.synchronize()
        return [began.elapsed_time(ended) / 1e3 for began, ended in pairs]

    @property
    def generator(self) -> torch.Generator:
        index = torch.accelerator.current_device_index() if self.device.index is None else self.device.index
        return self._module.default_generators[index]

    def random_kept(self) -> contextlib.AbstractContextManager[Any]:
        return torch.random.fork_rng([self.device], device_type=self.device.type)

    def lanes(self) -> Lanes:
        return _lanes(self.device)

    def folder(self) -> str | None:
        return None

    def probe(self, size: int) -> torch.UntypedStorage:
        return torch.zeros(size, dtype=torch.uint8, device=self.device).untyped_storage()

    def _figures(self) -> Statistics:
        """The figures to measure calls with."""
        return _OfAllocator(self.device)

    @functools.cached_property
    def _module(self) -> Any:
        """PyTorch's module for this kind."""
        return torch.get_device_module(self.device.type)


@functools.cache
def _lanes(device: torch.device) -> Lanes:
    return StreamLanes(device)
