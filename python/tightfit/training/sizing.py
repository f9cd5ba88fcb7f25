"""The largest batch of a model that fits into a budget, and the one with the most samples per second:
`tightfit.largest`.

Invariant: the model is captured once, with one size that varies, and does not run. A size that fits has a plan for
exactly that size, which was checked; of one that does not, it is said whether that is proven. No figure is scaled from
another size: each is of a plan that was made.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from .. import extents, notebook
from ..errors import CompileError, InfeasibleBudget, OptionError
from .backend import Backend
from .budget import Budget, budget_of
from .costs import costed
from .execution import Step
from .joint import document
from .joint import largest as largest_call
from .optimizer_state import state_bytes
from .planned import Below, held
from .reading import reads_outside
from .settings import planner_named, seconds, too_few
from .studying import predicted_for, studied
from .varying import Varying

# The dimension of the batch's tensors along which each axis lies.
_DIMENSIONS = {"batch": 0, "length": 1}
_NAMES = {"batch": "batch size", "length": "length"}
# Sizes below the largest one at which the samples per second are predicted, as shares of it.
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
# The most seconds of the search for a size's plan, unless told.
_DEADLINE = 0.25
# The most seconds of a search for the plan that holds the least, which says where to look next.
_BRIEF = 0.1
# The largest size that is asked for.
_MOST = 1 << 24
# The largest factor by which a size that fits is exceeded.
_GROWTH = 4


@dataclass(frozen=True)
class Tried:
    """A size, and the plan for it: the bytes that a step holds, all that the budget counts included; the predicted seconds
    of a step, of one without a plan, and those that no plan beats; the number of recomputed calls; and samples, or steps
    along the length, per second. Without a plan they are `None`, and no plan needs less bytes than `needed`: if that is not
    more than the budget, it is not proven that the size does not fit. `smallest` bytes are known to suffice, if that was
    asked."""

    size: int
    peak: int | None = None
    needed: int = 0
    smallest: int | None = None
    seconds: float | None = None
    unplanned_seconds: float | None = None
    bound_seconds: float | None = None
    recomputed: int | None = None
    per_second: float | None = None

    @property
    def fits(self) -> bool:
        """Whether there is a plan for it."""
        return self.peak is not None


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
            "" if self.is_proven else ", beyond which no plan was found"
        return (f"{self.model}: the largest {_NAMES[self.axis]} within {notebook.bytes_(self.budget)} is {self.size}{end}; the most per "
                f"second: {self.fastest}")

    def _rows(self) -> list[tuple[str, ...]]:
        return [(str(one.size), notebook.bytes_(one.peak) if one.fits else f"needs {notebook.bytes_(one.needed)}",
                 notebook.seconds(one.seconds), notebook.seconds(one.unplanned_seconds),
                 "–" if one.per_second is None else f"{one.per_second:,.1f}", "–" if one.recomputed is None else f"{one.recomputed:,}")
                for one in self.tried]


_HEAD = ("size", "peak", "time of a step", "unplanned", "per second", "calls that run again")


def largest(model: nn.Module, batch: Any, budget: int | str | Budget, *, optimizer: torch.optim.Optimizer | type | str | None = None,
            axis: str = "batch", machine: str | None = None, differentiable_outputs: bool = False,
            loss_memory: int | str | None = None, deadline: float | str = _DEADLINE, planner: str = "auto") -> Largest:
    """The largest batch of `model` that trains within `budget`, and the one with the most samples per second, which may be
    smaller: recomputation takes time. The model does not run, and no memory runs out.

    `batch` is one batch as `tightfit.plan` takes it. Its tensors' first dimension grows with `axis="batch"`, and their second
    one with `axis="length"`; all of them have the same size there. The model is captured with that size as a symbol, and
    each size that is tried has the graph that capturing it would give. Times and what operators take while they run are
    measured at that size, on the model's device, or predicted for a `machine`.

    `optimizer`, `differentiable_outputs`, `loss_memory` and `planner` are those of `tightfit.compile`; gradients do not exist
    when a step begins. `deadline` is for the search of each size. Raises `InfeasibleBudget` if the smallest size, 2, does
    not fit, and `CompileError` if the model cannot be captured, or makes a constant of the size.
    """
    room, limit, known = budget_of(budget).bytes, seconds(deadline), planner_named(planner)
    if room is None:
        raise OptionError('budget="min" has no largest batch; give a number of bytes')
    if axis not in _DIMENSIONS:
        raise OptionError(f'axis={axis!r} is neither "batch" nor "length"')
    machine = predicted_for(model, batch, machine)
    given = _given(batch, axis)

    def capture(size: int) -> _Captured:
        backend = studied(model, _resized(batch, axis, size), differentiable_outputs=differentiable_outputs, loss_memory=loss_memory,
                          dimension=_DIMENSIONS[axis])
        return _Captured(backend, backend.runs[-1], _symbol(backend.runs[-1], axis))

    beside = 0 if optimizer is None else state_bytes(optimizer, model.parameters())
    search = _Search(functools.partial(_tried, _Captures(capture, capture(given)), room, beside, machine, limit, known), room)
    return _found(search, given, axis, type(model).__name__)


def largest_of(backend: Backend, known: Mapping[str, int]) -> Largest:
    """The same for a compiled model, whose batches have varied: along the axis that is not `known`, with what the loop holds
    now and within what was captured."""
    for axis, size in known.items():
        if axis not in _DIMENSIONS or not isinstance(size, int) or isinstance(size, bool) or size < extents.LEAST:
            raise OptionError(f"{axis}={size!r} is no size of a batch; give batch= or length=, each {extents.LEAST} or more")
    varying = next((run for run in reversed(backend.runs) if isinstance(run, Varying) and run.joint.has_backward), None)
    symbols = {} if varying is None else {axis: varying.symbol_along(dimension) for axis, dimension in _DIMENSIONS.items()}
    free = [axis for axis, symbol in symbols.items() if symbol is not None and axis not in known]
    fixed = {symbols[axis]: size for axis, size in known.items() if symbols.get(axis) is not None}
    if not free:
        raise OptionError(f"no size of {backend.name}'s batches has varied that is not given; call it with batches of two sizes first, or ask "
                          "tightfit.largest")
    if len(free) > 1:
        raise OptionError(f"batches of {backend.name} have varied in batch size and length; give one of them, such as batch=8")
    [axis] = free
    room = backend.ledger.budget.bytes
    if room is None:
        raise OptionError('budget="min" has no largest batch')
    beside = sum(backend.ledger.others().values())
    captures = _Captures(None, _Captured(backend, varying, symbols[axis], fixed))
    search = _Search(functools.partial(_tried, captures, room, beside, None, min(backend.settings.deadline, _DEADLINE),
                                       backend.settings.planner), room)
    return _found(search, max(step.joint.extent_along(_DIMENSIONS[axis]) for step in varying.steps.values()), axis, backend.name)


def _found(search: _Search, given: int, axis: str, name: str) -> Largest:
    """What a search finds that begins with the given size."""
    size, room = search.run(given), search.room
    if size is None:
        least = search.tried.get(extents.LEAST)
        if least is None:
            raise CompileError(f"{name} takes no {_NAMES[axis]} of {extents.LEAST}")
        raise InfeasibleBudget(
            f"{too_few(room, least.needed)} {name} with a {_NAMES[axis]} of {extents.LEAST}: no schedule needs less than "
            f"{least.needed:,}. Give a larger budget; a {_NAMES[axis]} of 1 has a graph of its own, which tightfit.plan plans",
            budget=room, needed=least.needed, smallest=least.needed, binding=None, live=[])
    for share in _SHARES:
        search.look(max(round(size * share), extents.LEAST))
    tried = tuple(search.tried[one] for one in sorted(search.tried))
    fastest = max((one for one in tried if one.fits), key=lambda one: one.per_second)
    is_limit = size + 1 in search.barred
    above = search.tried.get(size + 1)
    return Largest(axis, room, size, fastest.size, tried, size if is_limit else None,
                   is_limit or (above is not None and above.needed > room), name)


@dataclass
class _Captured:
    """A graph with one size as a symbol; others that vary have `fixed` sizes. The backend keeps what was captured."""

    backend: Backend
    varying: Varying
    symbol: sympy.Symbol
    fixed: Mapping[sympy.Symbol, int] = field(default_factory=dict)

    @property
    def upper(self) -> int:
        """The largest size that it allows."""
        found = self.varying.environment.var_to_range[self.symbol].upper
        return int(found) if found.is_Integer else _MOST

    def at(self, size: int) -> dict[sympy.Symbol, int]:
        """The symbols at a size."""
        return {**self.fixed, self.symbol: size}

    def allows(self, size: int) -> bool:
        """Whether what was assumed of the symbols holds for a size."""
        known = {symbol: sympy.Integer(each) for symbol, each in self.at(size).items()}
        ranges = self.varying.environment.var_to_range
        return all(bool(ranges[symbol].lower <= each <= ranges[symbol].upper) for symbol, each in known.items()) and \
            all(guard.expr.xreplace(known) is not sympy.false for guard in self.varying.environment.guards)


class _Captures:
    """The captures of a model: PyTorch chooses other operators from some sizes on, and there the next one begins, if more may be
    made."""

    def __init__(self, capture: Callable[[int], _Captured] | None, first: _Captured) -> None:
        self._capture = capture
        self._known = [first]
        # Sizes at which the model cannot be captured.
        self._failed: set[int] = set()

    def step(self, size: int) -> Step | None:
        """The step at a size; `None` if there is none, as where positions have a table."""
        while (found := next((one for one in self._known if one.allows(size)), None)) is None:
            at = self._border(size)
            if self._capture is None or at in self._failed:
                return None
            try:
                self._known.append(self._capture(at))
            except CompileError:
                self._failed.add(at)
            else:
                if not self._known[-1].allows(at):
                    self._failed.add(at)
        try:
            step = found.varying.at(found.varying.sizes_at(found.at(size)))
        except (CompileError, RuntimeError, ValueError, LookupError, TypeError):
            return None
        return None if reads_outside(step.joint.module.graph) else step

    def _border(self, size: int) -> int:
        """The size to capture next on the way to this one."""
        uppers = [one.upper for one in self._known]
        return max(uppers) + 1 if max(uppers) < size else size


class _Search:
    """The search for the largest size that fits: where a line through two peaks says first, then around that."""

    def __init__(self, try_: Callable[[int, bool], Tried | None], room: int) -> None:
        self._try = try_
        self.room = room
        self.tried: dict[int, Tried] = {}
        # Sizes that the model does not take.
        self.barred: set[int] = set()

    def look(self, size: int, *, is_near: bool = False) -> bool:
        """Whether a size fits."""
        if size not in self.tried and size not in self.barred:
            found = self._try(size, is_near)
            if found is None:
                self.barred.add(size)
            else:
                self.tried[size] = found
        return size in self.tried and self.tried[size].fits

    def run(self, given: int) -> int | None:
        """The largest size that fits, beginning with this one; `None` if none does."""
        low, high, at = 0, _MOST, given
        while low + 1 < high and at >= extents.LEAST:
            before = high - low
            if self.look(at, is_near=True):
                low = at
            else:
                high = at
            at = self._next(low, high, is_slow=high - low > before // 2)
        return low or None

    def _next(self, low: int, high: int, *, is_slow: bool) -> int:
        """The size to try next, between one that fits and one that does not. If the last one left more than half of the
        interval, it is halved now."""
        if low == 0:
            return max(high // 2, extents.LEAST) if high > extents.LEAST else 0
        guess = self._guess(low)
        if high == _MOST:
            return min(max(guess or 0, 2 * low if guess is None else low + max(low // 16, 1)), _GROWTH * low, _MOST - 1)
        if guess is None or is_slow:
            guess = math.isqrt(low * high)
        return min(max(guess, low + 1), high - 1)

    def _guess(self, low: int) -> int | None:
        """The size for which the room would just suffice, by a line through two that are close."""
        found = [one for one in self.tried.values() if one.smallest is not None]
        known = [(one.size, one.smallest) for one in sorted(found, key=lambda one: abs(one.smallest - self.room))][:2]
        known.sort()
        if len(known) < 2 or known[1][1] <= known[0][1]:
            return None
        (one, least), (other, more) = known
        return max(low, one + int((self.room - least) * (other - one) / (more - least)))


def _tried(captures: _Captures, room: int, beside: int, machine: str | None, limit: float, planner: str,
           size: int, is_near: bool) -> Tried | None:
    """A size, with its plan; `None` if the model does not take it. If it `is_near` the largest one, the bytes that suffice for
    it are of interest."""
    step = captures.step(size)
    if step is None:
        return None
    beside += step.outside + step.reserve
    # A call's results may lie where its inputs were.
    if (needed := largest_call(step.joint) // 2 + beside) > room:
        return Tried(size, needed=needed)
    graph = document(step.joint, step.name, between=step.loss.memory.between)
    if machine is None:
        graph = costed(graph, step.device).document
    below = None if step.tier is None else Below(step.tier.size, *step.tier.rates)
    search = functools.partial(held, graph, machine=machine, below=below, planner=planner)
    try:
        found = search(max(room - beside, 1), limit)
    except InfeasibleBudget as error:
        return Tried(size, needed=error.needed + beside, smallest=error.smallest + beside)
    smallest = min(search(None, min(limit, _BRIEF)).peak, found.peak) + beside if is_near else None
    return Tried(size, found.peak + beside, 0, smallest, found.seconds, found.unplanned_seconds, found.bound_seconds,
                 found.recomputed, size / found.seconds)


def _symbol(varying: Any, axis: str) -> sympy.Symbol:
    """The symbol of the size that varies."""
    symbols = set() if not isinstance(varying, Varying) else varying.symbols
    if len(symbols) != 1:
        raise CompileError(f"the model makes a constant of the {_NAMES[axis]} that it is captured with, so nothing is known about others: look for "
                           "its size in a reshape, in a mask or in a table that the forward makes" if not symbols else
                           f"the tensors of the batch have several sizes that grow with the {_NAMES[axis]}; give those in which it is the same")
    [symbol] = symbols
    return symbol


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


def _resized(batch: Any, axis: str, size: int) -> Any:
    """A batch of another size; its values do not matter."""
    dimension = _DIMENSIONS[axis]

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() <= dimension or leaf.shape[dimension] == size:
            return leaf
        return leaf.new_zeros([*leaf.shape[:dimension], size, *leaf.shape[dimension + 1:]], requires_grad=leaf.requires_grad)

    return pytree.tree_map(resized, batch)
