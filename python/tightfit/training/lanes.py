"""The two lanes between a device and the tier below: one leads there, one back, and each moves one thing after another.

Invariant: a transfer begins behind everything that the device was told to compute before it, and whoever waits for it
goes on when it has arrived; until then it holds both ends.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch

from ..errors import OffloadError


class Transfer(Protocol):
    """A transfer that was begun."""

    def wait(self) -> None:
        """What the device is told to do from here on is done when the transfer has arrived."""

    def finish(self) -> None:
        """Returns when it has arrived."""


class Lanes(Protocol):
    """Both lanes of a device."""

    def prepared(self, memory: torch.Tensor) -> torch.Tensor:
        """Memory of the tier as the lanes want it."""

    def out(self, slot: Any, storage: torch.UntypedStorage) -> Transfer:
        """Begins to copy what is in a storage to a slot."""

    def back(self, slot: Any, storage: torch.UntypedStorage) -> Transfer:
        """Begins to copy what is in a slot to a storage."""

    def finish(self) -> None:
        """Returns when everything that somebody waited for has arrived."""


class _Copying:
    """A copy that a thread makes. The thread knows addresses alone: what it would hold would outlast the copy, until the
    interpreter lets the thread go on."""

    __slots__ = ("_ends", "_future")

    def __init__(self, future: Future[None], ends: tuple[Any, ...]) -> None:
        self._future: Future[None] | None = future
        self._ends = ends

    def wait(self) -> None:
        if self._future is not None:
            self._future.result()
            self._future, self._ends = None, ()

    finish = wait

    def __del__(self) -> None:
        # A step that was given up leaves it on its way.
        self.wait()


class ThreadLanes:
    """Lanes of a processor: a thread each, which copies while others compute."""

    def __init__(self) -> None:
        self._out, self._back = (ThreadPoolExecutor(1, thread_name_prefix=f"tightfit-{name}") for name in ("out", "back"))

    def prepared(self, memory: torch.Tensor) -> torch.Tensor:
        return memory

    def out(self, slot: Any, storage: torch.UntypedStorage) -> _Copying:
        return self._copied(self._out, slot, storage, slot.bytes.data_ptr(), storage.data_ptr())

    def back(self, slot: Any, storage: torch.UntypedStorage) -> _Copying:
        return self._copied(self._back, slot, storage, storage.data_ptr(), slot.bytes.data_ptr())

    def finish(self) -> None:
        """Who waited for a thread waited until it was done."""

    def _copied(self, lane: ThreadPoolExecutor, slot: Any, storage: torch.UntypedStorage, there: int, here: int) -> _Copying:
        """Copies without PyTorch's threads, which are for computing; the interpreter's lock is let go meanwhile."""
        size = min(storage.nbytes(), slot.bytes.numel())
        return _Copying(lane.submit(_move, there, here, size), (slot, storage))


def _move(there: int, here: int, size: int) -> None:
    ctypes.memmove(there, here, size)


class _Streaming:
    """A copy that a stream makes."""

    __slots__ = ("_ends", "_event")

    def __init__(self, event: torch.cuda.Event, ends: tuple[Any, ...]) -> None:
        self._event: torch.cuda.Event | None = event
        self._ends = ends

    def wait(self) -> None:
        if self._event is not None:
            torch.cuda.current_stream(self._ends[1].device).wait_event(self._event)
            self._event = None

    def finish(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def __del__(self) -> None:
        # A step that was given up leaves it on its way: what becomes of either end comes behind it.
        self.wait()


class StreamLanes:
    """Lanes of CUDA: a stream each, between the device and pinned memory of the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def prepared(self, memory: torch.Tensor) -> torch.Tensor:
        """Pins the memory as long as it is there: a copy is only then beside the computation."""
        library, address = torch.cuda.cudart(), memory.data_ptr()
        failed = library.cudaHostRegister(address, memory.numel(), 0)
        if int(failed):
            raise OffloadError(f"CUDA does not pin {memory.numel():,} bytes of the host's memory (error {int(failed)}). The step was "
                               "stopped; give a smaller offload=, or a larger limit of locked memory")
        weakref.finalize(memory, library.cudaHostUnregister, address).atexit = False
        return memory

    def out(self, slot: Any, storage: torch.UntypedStorage) -> _Streaming:
        return self._copied(self._out, slot, storage, is_out=True)

    def back(self, slot: Any, storage: torch.UntypedStorage) -> _Streaming:
        return self._copied(self._back, slot, storage, is_out=False)

    def finish(self) -> None:
        self._out.synchronize()
        self._back.synchronize()

    def _copied(self, stream: torch.cuda.Stream, slot: Any, storage: torch.UntypedStorage, *, is_out: bool) -> _Streaming:
        size = min(storage.nbytes(), slot.bytes.numel())
        here = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage, 0, (size,), (1,))
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            if is_out:
                slot.bytes[:size].copy_(here, non_blocking=True)
            else:
                here.copy_(slot.bytes[:size], non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        return _Streaming(event, (slot, storage))


@functools.cache
def lanes_of(device: torch.device) -> Lanes:
    """The lanes of a device, which all tiers below it share."""
    return StreamLanes(device) if device.type == "cuda" else ThreadLanes()
