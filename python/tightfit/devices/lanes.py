"""The two lanes between a device and the tier below: one in each direction, each moving one thing after another.

Invariant: a transfer begins after all work submitted to the device before it, and a waiting caller continues when it
has arrived; until then it keeps both ends alive.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch


class Transfer(Protocol):
    """A transfer in progress."""

    def wait(self) -> None:
        """Makes work submitted to the device from here on run only after the transfer has arrived."""

    def finish(self) -> None:
        """Returns when it has arrived."""


class Lanes(Protocol):
    """Both lanes of a device."""

    def prepared(self, memory: torch.Tensor) -> torch.Tensor:
        """Memory of the tier, made ready for the lanes."""

    def out(self, slot: Any, storage: torch.UntypedStorage) -> Transfer:
        """Begins to copy what is in a storage to a slot."""

    def back(self, slot: Any, storage: torch.UntypedStorage) -> Transfer:
        """Begins to copy what is in a slot to a storage."""

    def finish(self) -> None:
        """Returns when every transfer that was waited for has arrived."""


class _Copying:
    """A copy made by a thread. The thread gets only addresses: objects that it held would outlive the copy, until the
    interpreter runs the thread again."""

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
        # An abandoned step leaves it in progress.
        self.wait()


class ThreadLanes:
    """Lanes of a processor: one thread each, which copies while other threads compute."""

    def __init__(self) -> None:
        self._out, self._back = (ThreadPoolExecutor(1, thread_name_prefix=f"tightfit-{name}") for name in ("out", "back"))

    def prepared(self, memory: torch.Tensor) -> torch.Tensor:
        return memory

    def out(self, slot: Any, storage: torch.UntypedStorage) -> _Copying:
        return self._copied(self._out, slot, storage, slot.bytes.data_ptr(), storage.data_ptr())

    def back(self, slot: Any, storage: torch.UntypedStorage) -> _Copying:
        return self._copied(self._back, slot, storage, storage.data_ptr(), slot.bytes.data_ptr())

    def finish(self) -> None:
        """Nothing to do: waiting for a thread's copy waits until it is complete."""

    def _copied(self, lane: ThreadPoolExecutor, slot: Any, storage: torch.UntypedStorage, there: int, here: int) -> _Copying:
        """Copies without PyTorch's threads, which are for computing; the interpreter's lock is released meanwhile."""
        size = min(storage.nbytes(), slot.bytes.numel())
        return _Copying(lane.submit(_move, there, here, size), (slot, storage))


def _move(there: int, here: int, size: int) -> None:
    ctypes.memmove(there, here, size)


class _Streaming:
    """A copy made by a stream."""

    __slots__ = ("_ends", "_event")

    def __init__(self, event: torch.Event, ends: tuple[Any, ...]) -> None:
        self._event: torch.Event | None = event
        self._ends = ends

    def wait(self) -> None:
        if self._event is not None:
            torch.accelerator.current_stream(self._ends[1].device).wait_event(self._event)
            self._event = None

    def finish(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def __del__(self) -> None:
        # An abandoned step leaves it in progress: any later use of either end has to come after it.
        self.wait()


class StreamLanes:
    """Lanes of an accelerator: a stream each, between the device and pinned memory of the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._back = torch.Stream(device), torch.Stream(device)

    def prepared(self, memory: torch.Tensor) -> torch.Tensor:
        """The same bytes in pinned memory: only from there copies overlap with computation."""
        return memory.pin_memory()

    def out(self, slot: Any, storage: torch.UntypedStorage) -> _Streaming:
        return self._copied(self._out, slot, storage, is_out=True)

    def back(self, slot: Any, storage: torch.UntypedStorage) -> _Streaming:
        return self._copied(self._back, slot, storage, is_out=False)

    def finish(self) -> None:
        self._out.synchronize()
        self._back.synchronize()

    def _copied(self, stream: torch.Stream, slot: Any, storage: torch.UntypedStorage, *, is_out: bool) -> _Streaming:
        size = min(storage.nbytes(), slot.bytes.numel())
        here = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage, 0, (size,), (1,))
        stream.wait_stream(torch.accelerator.current_stream(self._device))
        with stream:
            if is_out:
                slot.bytes[:size].copy_(here, non_blocking=True)
            else:
                here.copy_(slot.bytes[:size], non_blocking=True)
            event = torch.Event(self._device)
            event.record(stream)
        return _Streaming(event, (slot, storage))
