"""The largest batch of a model that fits into a budget, and the one with the most samples per second:
`tightfit.largest`.

Invariant: the model is captured once, with one size that varies, and does not run. A size that fits has a plan for
exactly that size, in chunks or not, which was checked; of one that does not, it is said whether that is proven. No figure is scaled from
another size: each is of a plan that was made.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .. import extents, notebook
from ..batch import resized
from ..errors import CompileError, InfeasibleBudget, OptionError
from .backend import Backend
from .bracketing import Search, Tried
from .budget import Budget, budget_of
from .compiling import trains
from .costs import costed
from .dividing import Division, predicted
from .execution import Plan, Step, lost
from .joint import document, largest_in
from .joint import largest as largest_call
from .optimizer_state import state_bytes
from .planned import Below, Held, held
from .ranges import Captured, Captures
from .searching import brief
from .settings import planner_named, seconds, settings, too_few
from .studying import predicted_for, studied
from .varying import Varying

# The dimension of the batch's tensors along which each axis lies.
_DIMENSIONS = {"batch": 0, "length": 1}
_NAMES = {"batch": "batch size", "length": "length"}
# Sizes below the largest one at which the samples per second are predicted, as shares of it.
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
# The most seconds of the search for a size's plan, unless told.
_DEADLINE = 0.25
# How much longer a search takes that is patient.
_PATIENT = 4
# The most seconds of a search for the plan that holds the least, which says where to look next.
_BRIEF = 0.1


@dataclass(frozen=True)
class Largest:
    """What `tightfit.largest` found: the largest `size` along the `axis` for which there is a plan within the budget, the
    one with the most samples per second, and all sizes that were tried, the smallest first. `limit` is the largest size
    that the model takes, if it takes no larger one than `size`: then memory is not what limits it. `is_proven` says that
    the next larger size has no plan within the budget, or is not taken by the model. `model` is the name of its class."""

    axis: str
    budget: int
    size: int
    fastest: int
    tried: tuple[Tried, ...]
    limit: int | None
    is_proven: bool
    model: str = field(default="", compare=False)

    def __str__(self) -> str:
        return notebook.lines(self._title(), _HEAD, self._rows())

    def _repr_html_(self) -> str:
        return notebook.table(self._title(), _HEAD, self._rows())

    def _title(self) -> str:
        end = f", beyond which {self.model} cannot be captured" if self.limit is not None else \
            "" if self.is_proven else ", beyond which no plan was found (a longer deadline may find one)"
        return (f"{self.model}: the largest {_NAMES[self.axis]} within {notebook.bytes_(self.budget)} is {self.size}{end}; "
                f"{self.fastest} is the fastest for its size")

    def _rows(self) -> list[tuple[str, ...]]:
        return [(str(one.size), notebook.bytes_(one.peak) if one.fits else
                 f"too large: at least {notebook.bytes_(one.needed)}" if one.needed > self.budget else "no plan found",
                 notebook.seconds(one.seconds), notebook.seconds(one.unplanned_seconds),
                 "–" if one.per_second is None else f"{one.per_second:,.1f}", "–" if one.recomputed is None else f"{one.recomputed:,}")
                for one in self.tried]


_HEAD = ("size", "peak", "time of a step", "unplanned", "size per second", "calls that run again")


def largest(model: nn.Module, batch: Any, budget: int | str | Budget, *, optimizer: torch.optim.Optimizer | type | str | None = None,
            axis: str = "batch", machine: str | None = None, differentiable_outputs: bool = False,
            loss_memory: int | str | None = None, deadline: float | str = _DEADLINE, planner: str = "auto",
            split: int | str = "auto", bits: str = "equal") -> Largest:
    """The largest batch of `model` that trains within `budget`, and the one with the most samples per second, which may be
    smaller: recomputation takes time. The model does not run, and no memory runs out.

    `batch` is one batch as `tightfit.plan` takes it. Its tensors' first dimension grows with `axis="batch"`, and their second
    one with `axis="length"`; all of them have the same size there. The model is captured with that size as a symbol, and
    each size that is tried has the graph that capturing it would give. Times and what operators take while they run are
    measured at that size, on the model's device, or predicted for a `machine`.

    `optimizer`, `differentiable_outputs`, `loss_memory`, `planner`, `split` and `bits` are those of `tightfit.compile`; on a
    `machine`, chunks are taken to change no bit. Gradients do not exist
    when a step begins, and what the model returns is held until it ends: more fits in a loop that lets go of it before the
    backward pass, as `model(**batch).loss.backward()` does. Times are those of operators alone: of steps that take some
    milliseconds, a larger size than `fastest` is faster. `deadline` is for the search of each size. Raises
    `InfeasibleBudget` if the smallest size, 2, does not fit, and `CompileError` if the model cannot be captured, or makes a
    constant of the size.
    """
    asked, limit, known = budget_of(budget), seconds(deadline), planner_named(planner)
    ways = settings(planner=planner, split=split, bits=bits).ways
    room = asked.bytes
    if room is None:
        raise OptionError('budget="min" has no largest batch; give a number of bytes')
    if not isinstance(axis, str) or axis not in _DIMENSIONS:
        raise OptionError(f'axis={axis!r} is neither "batch" nor "length"')
    machine = predicted_for(model, batch, machine)
    given = _given(batch, axis)

    def capture(size: int) -> Captured:
        other = resized(batch, _DIMENSIONS[axis], size)
        with torch.enable_grad():
            backend = studied(model, other, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory,
                              dimension=_DIMENSIONS[axis], by="tightfit.largest")
        run = backend.runs[-1]
        return Captured(backend, run, run.symbols if isinstance(run, Varying) else frozenset(), size, _unread(backend, axis, size))

    first = capture(given)
    if not first.run.joint.has_backward:
        raise CompileError(f"{type(model).__name__} returns nothing that can be differentiated; return the loss, or what it is computed from")
    if not first.symbols:
        raise CompileError(f"the model makes a constant of the {_NAMES[axis]} that it is captured with, so nothing is known about others: "
                           "look for its size in a reshape, in a mask or in a table that the forward makes")
    beside = asked.held()
    if optimizer is not None:
        trains(optimizer, model)
        beside += state_bytes(optimizer, model.parameters())
    question = _Asked(Captures(capture, first), room, beside, limit, known, ways if machine is None else predicted(ways), machine,
                      parameters=tuple(model.parameters()))
    return _found(Search(question.tried, room, first.grid(given)), given, axis, type(model).__name__)


def largest_of(backend: Backend, known: Mapping[str, int]) -> Largest:
    """The same for a compiled model, whose batches have varied: along the axis that is not `known`, with what the loop holds
    now and within what was captured."""
    for axis, size in known.items():
        if axis not in _DIMENSIONS:
            raise OptionError(f"largest takes batch= or length=, not {axis}=")
        if not isinstance(size, int) or isinstance(size, bool) or size < extents.LEAST:
            raise OptionError(f"{axis}={size!r} is no size of a batch; give a whole number of {extents.LEAST} or more")
    varying = next((run for run in reversed(backend.runs) if isinstance(run, Varying) and run.joint.has_backward), None)
    symbols = {} if varying is None else {axis: varying.symbols_along(dimension) for axis, dimension in _DIMENSIONS.items()}
    free = [axis for axis, found in symbols.items() if found and axis not in known]
    fixed = {symbol: size for axis, size in known.items() for symbol in symbols.get(axis, ())}
    if len(known) == len(_DIMENSIONS):
        raise OptionError("a batch size and a length are both given, so nothing is left to be found; give one of them")
    for axis, size in known.items():
        if varying is not None and not symbols[axis] and size != varying.joint.extent_along(_DIMENSIONS[axis]):
            raise OptionError(f"{backend.name} was only called with a {_NAMES[axis]} of {varying.joint.extent_along(_DIMENSIONS[axis])}, so nothing is "
                              f"known about {size}; ask tightfit.largest")
    if not free:
        other = f" other than the {_NAMES[next(iter(known))]}, which is given," if known else ""
        raise OptionError(f"no size of {backend.name}'s batches{other} has varied so far; call it with batches of two sizes first, or ask "
                          "tightfit.largest")
    if len(free) > 1:
        raise OptionError(f"batches of {backend.name} have varied in batch size and length; give one of them, such as batch=8")
    [axis] = free
    room = backend.ledger.budget.bytes
    if room is None:
        raise OptionError('budget="min" has no largest batch')
    captured = Captured(backend, varying, symbols[axis], fixed=fixed)
    ran = sorted((step.joint.extent_along(_DIMENSIONS[axis]) for step in varying.steps.values()), reverse=True)
    question = _Asked(Captures(None, captured), room, sum(backend.ledger.others().values()), brief(backend.settings.deadline, _DEADLINE),
                      backend.settings.planner, backend.settings.ways, accumulated=_accumulated(varying),
                      parameters=() if backend.model is None else tuple(backend.model.parameters()))
    # A call that failed has left a step of a size that the model does not take.
    given = next((size for size in ran if question.captures.step(size) is not None), ran[0])
    return _found(Search(question.tried, room, captured.grid(given)), given, axis, backend.name)


def _found(search: Search, given: int, axis: str, name: str) -> Largest:
    """What a search finds that begins with the given size."""
    search.look(given, is_near=True)
    if given in search.barred:
        raise CompileError(f"{name} cannot be planned with a {_NAMES[axis]} of {given}: it reads rows that a table of positions does not "
                           "have, or its batches have varied in more than batch size and length")
    size, room = search.run(given), search.room
    if size is None:
        least = search.tried[min(search.tried)]
        suffices = "" if least.smallest is None else f", and {least.smallest:,} are known to suffice"
        raise InfeasibleBudget(
            f"{too_few(room, least.needed)} {name} with a {_NAMES[axis]} of {least.size}: no schedule needs less than "
            f"{least.needed:,}{suffices}. Give a larger budget; a {_NAMES[axis]} of 1 has a graph of its own, which tightfit.plan plans",
            budget=room, needed=least.needed, smallest=least.smallest or least.needed, binding=None, live=[])
    # Close to the budget, more time finds much faster plans.
    search.improve(size)
    for share in _SHARES:
        search.look(max(round(size * share / search.grid), -(-extents.LEAST // search.grid)) * search.grid)
    tried = tuple(search.tried[one] for one in sorted(search.tried))
    fastest = max((one for one in tried if one.fits), key=lambda one: one.per_second)
    next_ = size + search.grid
    is_limit = next_ in search.barred
    above = search.tried.get(next_)
    return Largest(axis, room, size, fastest.size, tried, size if is_limit else None,
                   is_limit or (above is not None and above.needed > room), name)


@dataclass(frozen=True)
class _Asked:
    """What is asked of each size: a plan within `room` bytes, of which `beside` are held by others, by the `planner` within
    `deadline` seconds, in one of these `ways`, with times that are measured or predicted for the `machine`. Gradients of the
    `accumulated` arguments exist when a step begins. `parameters` are read between measurements."""

    captures: Captures
    room: int
    beside: int
    deadline: float
    planner: str
    ways: tuple[str, ...]
    machine: str | None = None
    accumulated: frozenset[int] = frozenset()
    parameters: tuple[torch.Tensor, ...] = ()

    def tried(self, size: int, is_near: bool, is_patient: bool) -> Tried | None:
        """A size, with its plan; `None` if the model does not take it. If it `is_near` the largest one, the bytes that
        suffice for it are of interest. A patient search takes longer."""
        found = self.captures.step(size)
        if found is None:
            return None
        step, unread = found
        beside = self.beside + step.outside + step.reserve + unread
        room = max(self.room - beside, 1)
        whole = document(step.joint, step.name, accumulated=self.accumulated, between=step.loss.memory.between)
        # A call's results may lie where its inputs were.
        least = largest_call(step.joint) // 2
        division = Division(self.ways, step.device)
        if least > room and not division.has_any(lambda: whole):
            return Tried(size, needed=least + beside)
        search = functools.cache(lambda way: self._search(step, division.graph(whole), way, room))
        limit = _PATIENT * self.deadline if is_patient else self.deadline

        def planned() -> Plan:
            return Plan(search(division.now)(room, limit), None, self.accumulated, True, beside, budget=self.room)

        try:
            best = division.best(planned, lost, lambda: whole, is_smallest=False, excess=lambda graph: largest_in(graph) // 2 - room)
        except InfeasibleBudget as error:
            smallest = None if error.smallest == math.inf else error.smallest + beside
            return Tried(size, needed=error.needed + beside, smallest=smallest)
        plan = best.held
        smallest = min(search(best.split)(None, min(self.deadline, _BRIEF)).peak, plan.peak) + beside if is_near else None
        return Tried(size, plan.peak + beside, 0, smallest, plan.seconds, plan.unplanned_seconds, plan.bound_seconds,
                     plan.recomputed, size / plan.seconds)

    def _search(self, step: Step, graph: dict[str, Any], way: str, room: int) -> Callable[[int | None, float], Held]:
        """The search for a plan of a step that is divided in this way, within given bytes and seconds. Raises
        `InfeasibleBudget` if there can be none within `room` bytes: then nothing is measured."""
        if (least := largest_in(graph) // 2) > room:
            raise InfeasibleBudget(f"one call of {way!r} needs {least} bytes", budget=room, needed=least, smallest=math.inf)
        if self.machine is None:
            graph = costed(graph, step.device, parameters=self.parameters).document
        below = None if step.tier is None else Below(step.tier.size, *step.tier.rates)
        return functools.partial(held, graph, machine=self.machine, below=below, planner=self.planner)


def _accumulated(varying: Varying) -> frozenset[int]:
    """The arguments whose gradients existed when one of the steps began that ran: a loop that adds gradients up does so
    again, and one that drops them drops those that happen to exist now."""
    plans = (plan for step in varying.steps.values() for plans in step.plans.values() for plan in plans)
    return frozenset().union(*(plan.accumulated for plan in plans))


def _unread(backend: Backend, axis: str, size: int) -> tuple[int, int]:
    """Bytes of the batch of this size which the graph does not read: for each step along the axis, and others."""
    tensors = [leaf for leaf in pytree.tree_leaves(backend.ledger.given) if isinstance(leaf, torch.Tensor)]
    unread = [tensor for tensor in tensors if tensor.untyped_storage()._cdata not in backend.ledger.read]
    along = sum(tensor.nbytes // size for tensor in _tensors(unread, axis))
    return along, sum(tensor.nbytes for tensor in unread) - along * size


def _tensors(batch: Any, axis: str) -> list[torch.Tensor]:
    """The tensors of a batch that have a dimension for the axis."""
    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > _DIMENSIONS[axis]]


def _given(batch: Any, axis: str) -> int:
    """The size of a batch along an axis."""
    sizes = sorted({tensor.shape[_DIMENSIONS[axis]] for tensor in _tensors(batch, axis)})
    if len(sizes) != 1 or sizes[0] < extents.LEAST:
        raise OptionError(f"the {_NAMES[axis]} is {' and '.join(map(str, sizes)) or 'unknown'}; give a batch whose tensors have one "
                          f"{_NAMES[axis]} of {extents.LEAST} or more")
    return sizes[0]
