"""The bytes that PyTorch allocates while a step runs, as its profiler or a device's allocator reports them.

Invariant: a count has what the thread allocates outside of planned steps, except its own; a step that is not counted,
while no other is, is not slowed down.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..devices import Counted, kind_of
from ..devices.processor import begin_profile, end_profile, is_profiled, mark, quieten

# Number of steps that may begin during a count: one whose backward pass never comes must not go on for ever.
_MOST_STEPS = 64

_here = threading.local()


_NOTHING = Counted(0, 0)


class Count:
    """A count that is open. Counts nest: what a step takes that begins during a count is that step's, and not counted."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder
        self._is_open = True
        self._thread = threading.get_ident()
        # Number of steps that began since.
        self.steps = 0
        # The sections since its beginning or last cut, and what was counted since the last of them.
        self._sections: list[Counted] = []
        self._current = _NOTHING

    @staticmethod
    def begin(device: torch.device) -> Count | None:
        """Begins to count. `None` in a backward pass, or if allocations are not reported because another profiler is
        active or the allocator was replaced."""
        recorder = _recorder(device)
        if not recorder.kind.is_reported(is_recording=recorder.is_on) or is_in_backward():
            return None
        if recorder.is_profiling:
            quieten()
        recorder.stop()
        count = Count(recorder)
        recorder.open.append(count)
        if recorder.is_inside:
            recorder.owner = count
        recorder.start()
        return count

    @staticmethod
    @contextlib.contextmanager
    def aside(device: torch.device) -> Iterator[None]:
        """Open counts leave out what is allocated in this context; one that begins inside counts it."""
        recorder = _recorder(device)
        if is_in_backward():
            # The profiler cannot be stopped here.
            recorder.clear()
            yield
            return
        recorder.stop()
        before, recorder.is_inside, recorder.owner = (recorder.is_inside, recorder.owner), True, None
        try:
            yield
        finally:
            recorder.stop()
            recorder.is_inside, recorder.owner = before
            for count in list(recorder.open):
                count.steps += 1
                if count.steps > _MOST_STEPS:
                    count.end()
            recorder.start()

    @staticmethod
    @contextlib.contextmanager
    def backward(device: torch.device, own: Count | None) -> Iterator[None]:
        """Inside a backward pass: what is allocated in this context is a section of a step's `own` count, and other counts
        leave it out."""
        recorder = _recorder(device)
        recorder.mark(own, is_inside=True)
        try:
            yield
        finally:
            recorder.mark(own, is_inside=False)

    @staticmethod
    def abandon() -> None:
        """Ends all counts of this thread."""
        for recorder in _recorders():
            recorder.clear()

    @staticmethod
    def settle() -> None:
        """After a backward pass: ends the profiler of counts that were ended inside it."""
        if not is_in_backward():
            for recorder in _recorders():
                recorder.settle()

    @property
    def is_running(self) -> bool:
        """Whether it is open, and this thread may end it: on a CPU only the thread that began it; on CUDA any, since
        backward passes run on other threads."""
        return self._is_open and (not self._recorder.is_profiling or self._thread == threading.get_ident())

    @property
    def net(self) -> int:
        """Bytes that are held of what was counted since its last section."""
        return self._current.net

    def add(self, section: Counted) -> None:
        """Adds what was counted next."""
        self._current = self._current.then(section)

    def divide(self) -> None:
        """Ends one of its sections."""
        self._sections.append(self._current)
        self._current = _NOTHING

    def cut(self) -> Counted:
        """Outside of backward passes: returns what was counted since its beginning or last cut, and goes on."""
        self._recorder.stop()
        self._recorder.start()
        counted, self._sections, self._current = self._current, [], _NOTHING
        return counted

    def end(self) -> list[Counted]:
        """Ends the count; returns what was counted since its beginning or last cut, in its sections. On a CPU, nothing
        if it ends in a backward pass."""
        is_inside = self._recorder.is_profiling and is_in_backward()
        if not is_inside:
            self._recorder.stop()
        self.close()
        if is_inside:
            return []
        self._recorder.start()
        return [*self._sections, self._current]

    def close(self) -> None:
        """It counts nothing more."""
        self._is_open = False
        if self in self._recorder.open:
            self._recorder.open.remove(self)

    def end_if_running(self) -> None:
        """Ends it, unless it has ended."""
        if self.is_running:
            self.end()


class _Recorder:
    """What a thread allocates on processors, or everything on an accelerator, for the counts that are open.

    On processors a profiler records it. It begins and ends outside of backward passes: autograd's engine keeps the
    profiler that is active when a pass begins, and restores it afterwards. Inside them, places are marked.
    """

    def __init__(self, device: torch.device) -> None:
        self.kind = kind_of(device)
        self.is_profiling = self.kind.is_processor
        self.open: list[Count] = []
        # Inside a step, only its own count goes on, if it has one.
        self.is_inside = False
        self.owner: Count | None = None
        self.is_on = False
        # Where steps begin and end in what is being recorded, with their own counts.
        self._marks: list[tuple[Count | None, bool]] = []
        self._start = 0

    def start(self) -> None:
        """Begins to record, if there is a count for it."""
        if self.is_on or not self.open or (self.is_inside and self.owner is None):
            return
        self.is_on = True
        if (figures := self.kind.statistics) is not None:
            figures.reset()
            self._start = figures.held()
        else:
            begin_profile()

    def stop(self) -> None:
        """Ends the recording, and tells the counts what was allocated."""
        if not self.is_on:
            return
        self.is_on = False
        if (figures := self.kind.statistics) is not None:
            sections = [Counted(figures.peak() - self._start, figures.held() - self._start)]
        else:
            sections = end_profile()
        marks, self._marks = self._marks, []
        for section, mark in itertools.zip_longest(sections, marks):
            for count in self.open:
                if not self.is_inside or count is self.owner:
                    count.add(section)
            if mark is not None:
                self._turn(*mark)

    def mark(self, own: Count | None, *, is_inside: bool) -> None:
        """Marks the place inside a backward pass where a step begins or ends."""
        if not self.is_on:
            return
        if self.is_profiling:
            self._marks.append((own, is_inside))
            mark()
        else:
            self.stop()
            self._turn(own, is_inside)
            self.start()

    def _turn(self, own: Count | None, is_inside: bool) -> None:
        if own is not None:
            own.divide()
        self.is_inside, self.owner = is_inside, own if is_inside else None

    def clear(self) -> None:
        """Ends all counts."""
        for count in list(self.open):
            count.close()
        if not (self.is_profiling and is_in_backward()):
            self.settle()

    def settle(self) -> None:
        """Ends a recording that no count needs."""
        if self.is_on and not self.open:
            if self.is_profiling and not is_profiled():
                # It was ended by others.
                self.is_on = False
            self.stop()
            self.is_inside, self.owner = False, None
            self._marks.clear()


_accelerators: dict[torch.device, _Recorder] = {}


def _recorder(device: torch.device) -> _Recorder:
    """The recorder of this thread, or of an accelerator."""
    if not kind_of(device).is_processor:
        return _accelerators.setdefault(device, _Recorder(device))
    if not hasattr(_here, "recorder"):
        _here.recorder = _Recorder(torch.device("cpu"))
    return _here.recorder


def _recorders() -> list[_Recorder]:
    return [*_accelerators.values(), *([_here.recorder] if hasattr(_here, "recorder") else [])]


@dataclass(eq=False)
class Tally:
    """The counted bytes of a step, in three sections: forward pass, loss, backward pass."""

    count: Count
    # Bytes held when the step began, and what among them is not reported when it is freed.
    start: int
    earlier: list[tuple[StorageWeakRef, int]]
    sections: list[Counted] = field(default_factory=list)
    # What was counted for the loss before its backward pass, and the bytes that its autograd graph held then.
    before: Counted | None = None
    surveyed: int = 0
    # Bytes of targets and anything else that the loss holds but did not make.
    targets: int = 0
    # Bytes of its outputs, and of the `earlier` ones, that the loop freed between the passes.
    released: int = 0
    freed: int = 0

    def since(self) -> int:
        """Bytes that were allocated since the forward pass, outside of other steps, and are still held."""
        return (0 if self.before is None else self.before.net) + self.count.net

    def peak(self) -> tuple[int, int]:
        """The most bytes that the step held, and the index of the section in which it did."""
        peak = at = 0
        held = self.start + self.targets
        for index, section in enumerate(self.sections):
            if index == 1:
                # A loop that assigns its outputs to the same variable each time frees the earlier ones here, and some
                # set gradients to `None`.
                held -= self.freed
            if held + section.peak > peak:
                peak, at = held + section.peak, index
            held += section.net
        return peak, at


def expired(storages: Iterable[tuple[StorageWeakRef, int]]) -> int:
    """Bytes of the storages that were freed."""
    return sum(size for storage, size in storages if storage.expired())


def is_in_backward() -> bool:
    """Whether autograd's engine is running a backward pass on this thread."""
    return torch._C._current_graph_task_id() != -1
