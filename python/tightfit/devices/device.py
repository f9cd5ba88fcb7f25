"""What is asked of a device: bytes, seconds, random numbers, and lanes to the tier below it.

Invariant: a `Device` only describes; its runtime starts when something is run on it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from .lanes import Lanes


class Statistics(Protocol):
    """The figures that an allocator keeps of a device."""

    def held(self) -> int:
        """Bytes that are given out now."""

    def peak(self) -> int:
        """The most bytes that were given out at once since the last `reset`."""

    def reset(self) -> None:
        """The peak begins again, at what is given out now."""


@dataclass(frozen=True)
class Memory:
    """Bytes of a device: all, those that nothing has taken, and those that PyTorch's allocator has."""

    total: int
    free: int
    reserved: int


class Device(ABC):
    """A device, which need not be present unless something is run on it."""

    # Whether it is the processor: its calls are over when they return, and its memory is the host's.
    is_processor: ClassVar[bool]

    def __init__(self, device: torch.device) -> None:
        self.device = device

    # What it is.

    @property
    @abstractmethod
    def name(self) -> str:
        """Text that tells computers apart whose calls take different times."""

    @abstractmethod
    def count(self) -> int:
        """The number of devices of its kind here."""

    # Memory.

    @property
    @abstractmethod
    def statistics(self) -> Statistics | None:
        """The allocator's own figures; `None` if it keeps none."""

    @abstractmethod
    def is_reported(self, *, is_recording: bool) -> bool:
        """Whether what is allocated can be counted: with statistics, or by a profiler that no other one prevents.
        `is_recording` tells that the profiler is this package's."""

    def block(self, size: int) -> int:
        """Bytes that PyTorch's allocator hands out for a request of this size."""
        return size

    def libraries(self) -> int:
        """Bytes that libraries keep once they were called, by the threads of a forward and of a backward pass."""
        return 0

    def memory(self) -> Memory | None:
        """The bytes of a device that has memory of its own."""
        return None

    @abstractmethod
    def free(self) -> int | None:
        """Bytes that a call may take, if that is known."""

    def empty_cache(self) -> None:
        """Returns memory to the device that the allocator keeps for later."""

    @abstractmethod
    def peak_of(self, run: Callable[[], Any]) -> int:
        """The most bytes that a call takes from PyTorch's allocator at once, results included."""

    @abstractmethod
    def course_of(self, run: Callable[[], Any]) -> tuple[Any, int | None]:
        """What a call returns, and the most bytes that it holds: where the allocator keeps figures all that it has given
        out, elsewhere the bytes beyond those at the start; `None` if they cannot be counted."""

    # Execution.

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the device current."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Returns when the device has done all that was submitted to it."""

    @property
    def stream(self) -> int:
        """The system's number of the current stream; 0 where there are none."""
        return 0

    @abstractmethod
    def seconds(self, run: Callable[[], Any], times: int = 1) -> list[float]:
        """Seconds of each of this many runs of a call."""

    # Random numbers.

    @property
    @abstractmethod
    def generator(self) -> torch.Generator:
        """PyTorch's default generator of the device."""

    def random_kept(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, random numbers may be drawn; afterwards the generators are as before."""
        return torch.random.fork_rng([])

    # The tier below it.

    @abstractmethod
    def lanes(self) -> Lanes:
        """Its lanes, which all tiers below it share."""

    @abstractmethod
    def folder(self) -> str | None:
        """The folder whose files are the tier below it; `None` if that is the host's memory."""

    @abstractmethod
    def probe(self, size: int) -> torch.UntypedStorage:
        """Memory of the device to measure its lanes with."""

    # Bytes that are copied to measure the lanes.
    bytes_of_probe: ClassVar[int]
