"""Planned addresses: a step's allocations, recorded, laid out in one slab, and replayed.

Invariant: with them a budget bounds the bytes that are *reserved* of a device: the slab, and the blocks beside it. The
allocator is this package's for the whole process, or an exception says why it cannot be; a step whose slab and what
lies beside it are more than the budget does not begin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import _native
from ..errors import AllocationError, BudgetExceeded, CompileError

# How many steps are recorded before two in a row have to agree.
_RECORDED = 8
_REMAINS = ("without addresses=True the plan's calls run in the plan's order, and the budget bounds the bytes that PyTorch's "
            "allocator hands out, not those that it reserves")
_is_installed = False


def install() -> None:
    """Makes this package's allocator that of CUDA, for the whole process. Raises `CompileError` where it is too late."""
    global _is_installed
    if _is_installed or not torch.cuda.is_available():
        return
    try:
        if torch.cuda.is_initialized():
            raise RuntimeError("CUDA has started")
        replace_allocator()
    except RuntimeError as error:
        raise CompileError(
            f"PyTorch's allocator cannot be replaced any more ({error}). Call tightfit.compile(…, addresses=True) before "
            "anything is on the GPU, with the model on the CPU, and move the model afterwards; " + _REMAINS
        ) from None
    _is_installed = True


def replace_allocator() -> None:
    """Sets the functions of the compiled module as CUDA's allocator."""
    made = torch.cuda.memory.CUDAPluggableAllocator(_native.__file__, "tightfit_alloc", "tightfit_free")
    torch.cuda.memory.change_current_allocator(made)


@dataclass(eq=False)
class Course:
    """What is known of the allocations of one plan: the last recording, and where they lie once two agree."""

    last: _native.Trace | None = None
    placement: _native.Placement | None = None
    recorded: int = 0

    def add(self, trace: _native.Trace) -> None:
        """One more step was recorded."""
        self.recorded += 1
        self.placement = None if self.last is None else _native.lay_out(self.last, trace)
        self.last = trace if self.placement is None else None

    def forget(self) -> None:
        """The step does other things than it was recorded to do: it is to be recorded anew."""
        self.last = self.placement = None
        self.recorded = 0

    @property
    def slab(self) -> int | None:
        """Bytes of the slab, once it is known."""
        return None if self.placement is None else self.placement.slab


class Slab:
    """The slab of a device, and the step that it is used for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.native = _native.Addresses(device.index if device.type == "cuda" else -1)
        # The step that was begun last: its number, and while it is recorded what it is to be added to.
        self.step = 0
        self._course = Course()
        self._recorded: tuple[Course, int] | None = None

    def begin(self, course: Course, passes: int, budget: int | None, planned: int) -> int:
        """A step of so many passes begins, which holds `planned` bytes in all where it is not placed. Returns 0, or by how
        many bytes its addresses are too many for the budget: then it has not begun."""
        self._end()
        now = self.native.counters()
        if now["held"]:
            # What the last step left there outlasts it.
            self._course.forget()
        placement = course.placement
        if placement is None:
            self._record(course, passes, budget, planned, now)
        elif now["held"]:
            self._refuse(budget, now["reserved"] + placement.peak, now["held"])
        else:
            needed = now["reserved"] - now["slab"] + placement.beside
            if budget is not None and needed + placement.slab > budget:
                return needed + placement.slab - budget
            if now["slab"] < placement.slab or (budget is not None and needed + now["slab"] > budget):
                self._reserve(placement.slab)
            self.native.replay(placement)
        self.step += 1
        self._course = course
        return 0

    @contextlib.contextmanager
    def window(self, step: int) -> Iterator[None]:
        """One pass of a step, on the calling thread. What another step began in the meantime is left alone."""
        if step != self.step:
            yield
            return
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        try:
            self.native.open(stream)
            yield
            self.native.close()
        except BaseException as error:
            said = self.native.stop() or (str(error) if isinstance(error, AllocationError) else None)
            self._recorded = None
            if said is None:
                raise
            self._course.forget()
            raise AllocationError(f"{said}. The step was stopped, and nothing was overwritten; the next one is recorded "
                                  "anew") from None

    def make_room(self) -> None:
        """The step that was begun last is over; its slab goes, if it is empty."""
        self._end()
        now = self.native.counters()
        if now["slab"] and not now["held"]:
            self._reserve(0)

    def _end(self) -> None:
        """The step that was begun last is over."""
        trace = self.native.leave()
        if self._recorded is not None and trace is not None:
            course, passes = self._recorded
            # A forward pass whose backward pass never came is no step.
            if trace.passes == passes:
                course.add(trace)
        self._recorded = None

    def _record(self, course: Course, passes: int, budget: int | None, planned: int, now: dict[str, int]) -> None:
        if course.recorded >= _RECORDED:
            raise AllocationError(f"of {_RECORDED} steps no two in a row made the same allocations, so they cannot be given "
                                  "addresses; leave addresses=True out: " + _REMAINS)
        if now["held"]:
            self._refuse(budget, now["slab"] + planned, now["held"])
        elif now["slab"]:
            self._reserve(0)
        self.native.record()
        self._recorded = course, passes

    def _refuse(self, budget: int | None, needed: int, held: int) -> None:
        """Refuses a step without the slab, in which something still lies, if there is no room for it beside."""
        if budget is not None and needed > budget:
            raise BudgetExceeded(
                f"{held:,} bytes of an earlier step still lie where this one is to be placed, and beside them it would make "
                f"{needed:,} bytes reserved, {needed - budget:,} more than the budget. Nothing was computed. Run each "
                "backward pass behind its forward pass, call zero_grad() before the next step and before evaluation, and "
                "keep no outputs",
                budget=budget, needed=needed,
            )

    def _reserve(self, size: int) -> None:
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            self.native.reserve(size)


_slabs: dict[torch.device, Slab] = {}


def slab_of(device: torch.device) -> Slab:
    """The slab of a device. Raises `CompileError` where its memory is not given out by this package."""
    if device not in _slabs:
        slab = Slab(device)
        before = slab.native.counters()["passed_on"]
        torch.empty(1, device=device)
        if slab.native.counters()["passed_on"] == before:
            raise CompileError(f"addresses=True is for CUDA, and the memory of {device} is given out by PyTorch's own "
                               "allocator; leave it out: " + _REMAINS)
        _slabs[device] = slab
    return _slabs[device]


def too_large(name: str, budget: int, excess: int) -> BudgetExceeded:
    """The refusal of a step for whose addresses no plan leaves room."""
    return BudgetExceeded(
        f"a step of {name} would reserve {budget + excess:,} bytes, {excess:,} more than the budget: a slab for what it makes, "
        "and beside it parameters, batch and what outlasts the step; and no plan of fewer bytes was found. Nothing was "
        f"computed. Give budget={budget + excess} or more, or leave addresses=True out: {_REMAINS}",
        budget=budget, needed=budget + excess,
    )


def peak_of(run: Callable[[], Any], device: torch.device) -> int | None:
    """The most bytes that a call takes of a CUDA device at once, results included; `None` where PyTorch's own allocator
    tells."""
    if not _is_installed:
        return None
    native = slab_of(device).native
    run()
    torch.cuda.synchronize(device)
    before = native.counters()["reserved"]
    native.reset_peak()
    run()
    torch.cuda.synchronize(device)
    return native.counters()["peak"] - before
