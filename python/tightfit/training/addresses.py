"""Planned addresses: a step's allocations, recorded, laid out in one slab, and replayed.

Invariant: with them a budget bounds the bytes that are *reserved* on a device: the slab, and the blocks outside it. The
allocator is this package's for the whole process, or an exception says why it cannot be; a step whose slab and outside
blocks exceed the budget does not begin.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import _native
from ..devices import cuda, kind_of
from ..errors import AllocationError, BudgetExceeded, CompileError

if TYPE_CHECKING:
    from .ledger import Pending

# Number of steps that are recorded if no two in a row agree.
_RECORDED = 8
_REMAINS = ("without addresses=True the plan's calls run in the plan's order, and the budget bounds the bytes that PyTorch's "
            "allocator hands out, not those that it reserves")


def install() -> None:
    """Makes this package's allocator that of CUDA, for the whole process. Raises `CompileError` if it is too late."""
    if cuda.is_replaced() or not cuda.is_available():
        return
    try:
        _native.Addresses(-1)  # raises if a step could not be stopped
        if cuda.is_started():
            raise RuntimeError("CUDA has started")
        replace_allocator()
    except RuntimeError as error:
        raise CompileError(
            f"PyTorch's allocator cannot be replaced any more ({error}). Call tightfit.compile(…, addresses=True) before "
            "anything is on the GPU, with the model on the CPU, and move the model afterwards; " + _REMAINS
        ) from None


def replace_allocator() -> None:
    """Sets the functions of the compiled module as CUDA's allocator."""
    cuda.replace_allocator(_native.__file__, "tightfit_alloc", "tightfit_free", _Counters)


class _Counters:
    """The figures of the compiled module's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._native = slab_of(device).native

    def held(self) -> int:
        return self._native.counters()["reserved"]

    def peak(self) -> int:
        return self._native.counters()["peak"]

    def reset(self) -> None:
        self._native.reset_peak()


@dataclass(eq=False)
class Course:
    """What is known about the allocations of one plan: the last recording, and their placement once two agree."""

    last: _native.Trace | None = None
    placement: _native.Placement | None = None
    recorded: int = 0
    # Gradients that existed in the forward pass and were gone in the backward pass.
    gone: frozenset[int] = frozenset()
    is_warned: bool = False

    def add(self, trace: _native.Trace, gone: frozenset[int]) -> None:
        """Adds the recording of one more step."""
        self.recorded += 1
        self.gone = gone
        self.placement = None if self.last is None else _native.lay_out(self.last, trace)
        self.last = trace if self.placement is None else None

    def forget(self) -> None:
        """The step no longer does what was recorded: it has to be recorded again."""
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
        self.kind = kind_of(device)
        self.native = _native.Addresses(-1 if self.kind.is_processor else device.index)
        # The number of the last step that began, and of the last call's step: 0 for a call outside of it.
        self.step = 0
        self.call = 0
        # The course that replays that step, or that it is recorded for, with its passes and the gradients found gone.
        self._replayed: Course | None = None
        self._recorded: tuple[Course, int] | None = None
        self._gone: frozenset[int] = frozenset()
        # Its forward pass, as long as the backward pass may still come.
        self._awaited: Callable[[], Pending | None] = lambda: None
        # The course whose replay put the present contents into the slab.
        self._last_replayed: Course | None = None
        # At exit the slab need not be freed.
        weakref.finalize(self, _release, self.native, device).atexit = False

    def begin(self, course: Course, passes: int, budget: int | None, planned: int, own: int) -> int:
        """Begins a step of this many passes, or a call during the step that is under way. If it is not placed, it holds
        `planned` bytes in all, of which it makes `own`. Returns 0, or the bytes by which its addresses exceed the
        budget: then it has not begun. Raises `BudgetExceeded`, with nothing changed, if what lies in the slab leaves no
        room."""
        now = self.native.counters()
        is_under_way = self._is_under_way()
        if is_under_way and passes == 1:
            if now["slab"]:
                self._refuse(budget, now["reserved"] + own, now["held"])
            self.call = 0
            return 0
        if now["held"]:
            self._refuse(budget, now["slab"] + planned, now["held"])
        self._end()
        if now["held"] and not is_under_way and self._last_replayed is not None:
            # What the last step left in the slab outlives that step.
            self._last_replayed.forget()
        placement = course.placement
        if placement is None:
            self._record(course, passes, now)
        elif not now["held"]:
            needed = now["reserved"] - now["slab"] + placement.beside
            if budget is not None and needed + placement.slab > budget:
                return needed + placement.slab - budget
            if now["slab"] < placement.slab or (budget is not None and needed + now["slab"] > budget):
                self._reserve(placement.slab)
            self.native.replay(placement)
            self._replayed = self._last_replayed = course
        self.step += 1
        self.call = self.step
        return 0

    def awaits(self, pending: Pending) -> None:
        """The forward pass of the last step that began has finished."""
        if pending.begun == self.step:
            self._awaited = weakref.ref(pending)

    def goes_on(self, step: int, gone: frozenset[int], budget: int | None) -> bool:
        """Whether the backward pass of a step is replayed in the slab. The gradients `gone` existed in its forward pass
        and no longer do.

        Raises `BudgetExceeded` if too much has appeared since then that did not exist when the step was recorded.
        """
        if step != self.step:
            return False
        if self._replayed is None:
            self._gone = gone
            return False
        if gone != self._replayed.gone:
            self._abandon()
            return False
        now = self.native.counters()
        needed = now["reserved"] + self._replayed.placement.rises[-1]
        if budget is not None and needed > budget:
            raise BudgetExceeded(
                f"with this backward pass {needed:,} bytes would be reserved, {needed - budget:,} more than the budget: since "
                "the forward pass tensors came, or stayed, that were not there when the step was recorded. Nothing was computed. "
                "Let them go, or raise the budget", budget=budget, needed=needed,
            )
        return True

    @property
    def reserved(self) -> int:
        """Bytes of the slab."""
        return self.native.counters()["slab"]

    @contextlib.contextmanager
    def window(self, step: int, *, is_backward: bool) -> Iterator[None]:
        """One pass of a step, on the calling thread. A pass of any step but the last one that began is left alone."""
        if step != self.step:
            yield
            return
        try:
            self.native.open(self.kind.stream)
            yield
        except BaseException as error:
            said = self.native.stop() or (str(error) if isinstance(error, AllocationError) else None)
            course = self._replayed
            self._abandon()
            if said is None:
                raise
            if course is not None:
                course.forget()
            advice = "; gradients that it had computed may be there, so call zero_grad()" if is_backward else ""
            raise AllocationError(f"{said}. The step was stopped, and no tensor was written over; the next one is recorded "
                                  f"again{advice}") from None
        try:
            self.native.close()
        except AllocationError:
            # It made fewer allocations than were recorded, which does no harm.
            if self._replayed is not None:
                self._replayed.forget()
            self._abandon()

    def make_room(self) -> None:
        """Called before operators are measured: ends the last step, and frees its slab if that is empty; a step that is
        under way stays where it is, and is not recorded."""
        if self._is_under_way():
            self._recorded = None
            return
        self._end()
        now = self.native.counters()
        if now["slab"] and not now["held"]:
            self._reserve(0)

    def _is_under_way(self) -> bool:
        pending = self._awaited()
        return pending is not None and pending.begun == self.step and pending.saved is not None

    def _abandon(self) -> None:
        """The last step loses its addresses: what it still allocates lies outside the slab."""
        self.native.leave()
        self._replayed = self._recorded = None
        self.step += 1

    def _end(self) -> None:
        """Ends the last step."""
        trace = self.native.leave()
        if self._recorded is not None and trace is not None:
            course, passes = self._recorded
            # A forward pass whose backward pass never came does not count as a step.
            if trace.passes == passes:
                course.add(trace, self._gone)
        self._replayed = self._recorded = None
        self._gone = frozenset()

    def _record(self, course: Course, passes: int, now: dict[str, int]) -> None:
        if now["slab"] and not now["held"]:
            self._reserve(0)
        if course.recorded >= _RECORDED:
            if not course.is_warned:
                course.is_warned = True
                warnings.warn(f"of {_RECORDED} steps no two in a row made the same allocations, so they are given no addresses: the "
                              "budget holds, and each allocation asks the device for memory, which takes time. Call zero_grad() "
                              "at the same place of every step, before the forward pass, or leave addresses=True out: "
                              + _REMAINS, RuntimeWarning, stacklevel=2)
            return
        self.native.record()
        self._recorded = course, passes

    def _refuse(self, budget: int | None, needed: int, held: int) -> None:
        """Refuses a call that cannot use the slab, because something still lies in it, if there is no room outside."""
        if budget is not None and needed > budget:
            raise BudgetExceeded(
                f"{held:,} bytes of an earlier call still lie where this one is to be placed, and next to them it would make "
                f"{needed:,} bytes reserved, {needed - budget:,} more than the budget. Nothing was computed. Run each "
                "backward pass right after its forward pass, other calls before or after both, call zero_grad() before the next "
                "step and before evaluation, and keep no outputs",
                budget=budget, needed=needed,
            )

    def _reserve(self, size: int) -> None:
        _resize(self.native, self.device, size)


def _resize(native: _native.Addresses, device: torch.device, size: int) -> None:
    with kind_of(device).current():
        native.reserve(size)


def _release(native: _native.Addresses, device: torch.device) -> None:
    """Frees the slab once its models are gone, if it is empty."""
    if not native.counters()["held"]:
        _resize(native, device, 0)


_slabs: weakref.WeakValueDictionary[torch.device, Slab] = weakref.WeakValueDictionary()


def slab_of(device: torch.device) -> Slab:
    """The slab of a device. Raises `CompileError` if its memory is not allocated by this package."""
    slab = _slabs.get(device)
    if slab is None:
        slab = Slab(device)
        before = slab.native.counters()["passed_on"]
        torch.empty(1, device=device)
        if slab.native.counters()["passed_on"] == before:
            raise CompileError(f"addresses=True is for CUDA, and the memory of {device} is given out by PyTorch's own "
                               "allocator; leave it out: " + _REMAINS)
        _slabs[device] = slab
    return slab


def too_large(name: str, budget: int, excess: int) -> BudgetExceeded:
    """The refusal of a step for whose addresses no plan leaves enough room."""
    return BudgetExceeded(
        f"a step of {name} would reserve {budget + excess:,} bytes, {excess:,} more than the budget: a slab for what it makes, "
        "and in addition parameters, batch and what outlasts the step; and no plan of fewer bytes was found. Nothing was "
        f"computed. Give budget={budget + excess} or more, or leave addresses=True out: {_REMAINS}",
        budget=budget, needed=budget + excess,
    )
