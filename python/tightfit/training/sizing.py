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
from torch.utils._sympy.functions import Mod

from .. import extents, notebook
from ..errors import CompileError, InfeasibleBudget, OptionError
from .backend import Backend
from .budget import Budget, budget_of
from .costs import costed
from .execution import Step
from .compiling import trains
from .joint import Joint, document
from .joint import largest as largest_call
from .optimizer_state import state_bytes
from .planned import Below, Held, held
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
# How much longer the search is repeated where it found nothing.
_LONGER = 4
# The most seconds of a search for the plan that holds the least, which says where to look next.
_BRIEF = 0.1
# The largest size that is asked for.
_MOST = 1 << 24
# The most captures of one model.
_CAPTURES = 8
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
    asked, limit, known = budget_of(budget), seconds(deadline), planner_named(planner)
    room = asked.bytes
    if room is None:
        raise OptionError('budget="min" has no largest batch; give a number of bytes')
    if not isinstance(axis, str) or axis not in _DIMENSIONS:
        raise OptionError(f'axis={axis!r} is neither "batch" nor "length"')
    machine = predicted_for(model, batch, machine)
    given = _given(batch, axis)

    def capture(size: int) -> _Captured:
        resized = _resized(batch, axis, size)
        with torch.enable_grad():
            backend = studied(model, resized, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory,
                              dimension=_DIMENSIONS[axis], by="tightfit.largest")
        run = backend.runs[-1]
        return _Captured(backend, run, run.symbols if isinstance(run, Varying) else frozenset(), size, unread=_unread(backend))

    first = capture(given)
    if not first.symbols:
        raise CompileError(f"the model makes a constant of the {_NAMES[axis]} that it is captured with, so nothing is known about others: "
                           "look for its size in a reshape, in a mask or in a table that the forward makes")
    beside = asked.held()
    if optimizer is not None:
        trains(optimizer, model)
        beside += state_bytes(optimizer, model.parameters())
    search = _Search(functools.partial(_tried, _Captures(capture, first), room, beside, machine, limit, known, _none), room, first.grid(given))
    return _found(search, given, axis, type(model).__name__)


def largest_of(backend: Backend, known: Mapping[str, int]) -> Largest:
    """The same for a compiled model, whose batches have varied: along the axis that is not `known`, with what the loop holds
    now and within what was captured."""
    for axis, size in known.items():
        if axis not in _DIMENSIONS or not isinstance(size, int) or isinstance(size, bool) or size < extents.LEAST:
            raise OptionError(f"{axis}={size!r} is no size of a batch; give batch= or length=, each {extents.LEAST} or more")
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
        raise OptionError(f"no batch size or length of {backend.name}'s batches has varied that is not given; call it with batches of two sizes "
                          "first, or ask tightfit.largest")
    if len(free) > 1:
        raise OptionError(f"batches of {backend.name} have varied in batch size and length; give one of them, such as batch=8")
    [axis] = free
    room = backend.ledger.budget.bytes
    if room is None:
        raise OptionError('budget="min" has no largest batch')
    captured = _Captured(backend, varying, symbols[axis], 0, fixed=fixed)
    given = max(step.joint.extent_along(_DIMENSIONS[axis]) for step in varying.steps.values())
    search = _Search(functools.partial(_tried, _Captures(None, captured), room, sum(backend.ledger.others().values()), None,
                                       min(backend.settings.deadline, _DEADLINE), backend.settings.planner,
                                       functools.partial(_accumulated, backend.model)), room, captured.grid(given))
    return _found(search, given, axis, backend.name)


def _none(_: Joint) -> frozenset[int]:
    """No gradients exist when a step begins."""
    return frozenset()


def _accumulated(model: nn.Module | None, joint: Joint) -> frozenset[int]:
    """The arguments of a graph whose gradients exist."""
    there = {name for name, parameter in ([] if model is None else model.named_parameters()) if parameter.grad is not None}
    return frozenset(index for index, argument in enumerate(joint.arguments)
                     if argument.is_parameter and joint.gradients[index] is not None and argument.name in there)


def _found(search: _Search, given: int, axis: str, name: str) -> Largest:
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
    for share in _SHARES:
        search.look(max(round(size * share / search.grid), 1) * search.grid)
    tried = tuple(search.tried[one] for one in sorted(search.tried))
    fastest = max((one for one in tried if one.fits), key=lambda one: one.per_second)
    next_ = size + search.grid
    is_limit = next_ in search.barred
    above = search.tried.get(next_)
    return Largest(axis, room, size, fastest.size, tried, size if is_limit else None,
                   is_limit or (above is not None and above.needed > room), name)


@dataclass
class _Captured:
    """A graph in which `symbols` stand for one size; others that vary have `fixed` sizes. Without symbols it is the graph for
    the one size `at`. The backend keeps what was captured; `unread` are bytes of the batch that the graph does not read."""

    backend: Backend
    run: Varying | Step
    symbols: frozenset[sympy.Symbol]
    at: int
    unread: int = 0
    fixed: Mapping[sympy.Symbol, int] = field(default_factory=dict)

    @property
    def upper(self) -> int:
        """The largest size that it allows."""
        ranges = [self.run.environment.var_to_range[symbol].upper for symbol in self.symbols]
        return min((int(upper) if upper.is_Integer else _MOST for upper in ranges), default=self.at)

    def known(self, size: int) -> dict[sympy.Symbol, int]:
        """The symbols at a size."""
        return {**self.fixed, **dict.fromkeys(self.symbols, size)}

    def allows(self, size: int) -> bool:
        """Whether what was assumed of the symbols holds for a size."""
        if not self.symbols:
            return size == self.at
        known = {symbol: sympy.Integer(each) for symbol, each in self.known(size).items()}
        ranges = self.run.environment.var_to_range
        return all(bool(ranges[symbol].lower <= each <= ranges[symbol].upper) for symbol, each in known.items()) and \
            all(guard.expr.xreplace(known) is not sympy.false for guard in self.run.environment.guards)

    def step(self, size: int) -> Step:
        """The step at a size that it allows."""
        return self.run.at(self.run.sizes_at(self.known(size))) if self.symbols else self.run

    def grid(self, given: int) -> int:
        """The number of which the model takes multiples, as far as its graph shows it, beginning with a size that it took."""
        found = 1
        for rest in {part for guard in self.run.environment.guards for part in guard.expr.atoms(sympy.Mod, Mod)}:
            (factor, of), divisor = rest.args[0].as_coeff_Mul(), rest.args[1]
            if of in self.symbols and divisor.is_Integer and factor.is_Integer:
                found = math.lcm(found, int(divisor) // math.gcd(int(factor), int(divisor)))
        return found if given % found == 0 else 1


class _Captures:
    """The captures of a model: PyTorch chooses other operators from some sizes on, and there the next one begins, if more may be
    made."""

    def __init__(self, capture: Callable[[int], _Captured] | None, first: _Captured) -> None:
        self._capture = capture
        self._known = [first]
        # Sizes at which the model cannot be captured.
        self._failed: set[int] = set()

    def step(self, size: int) -> tuple[Step, int] | None:
        """The step at a size, and the bytes of the batch that it does not read there; `None` if there is none, as where
        positions have a table. Raises `_TooMany` if that is not known."""
        while (found := next((one for one in self._known if one.allows(size)), None)) is None:
            at = self._border(size)
            # What lies between two sizes that fail is not tried.
            if self._capture is None or at in self._failed or min(self._failed, default=size) < size < max(self._failed, default=0):
                return None
            if len(self._known) + len(self._failed) >= _CAPTURES:
                raise _TooMany
            try:
                self._known.append(self._capture(at))
            except CompileError:
                self._failed.add(at)
        try:
            step = found.step(size)
            return None if reads_outside(step.joint.module.graph) else (step, found.unread * size // max(found.at, 1))
        except (CompileError, RuntimeError, ValueError, LookupError, TypeError):
            return None

    def _border(self, size: int) -> int:
        """The size to capture next on the way to this one."""
        uppers = [one.upper for one in self._known]
        return max(uppers) + 1 if max(uppers) < size and max(uppers) + 1 not in self._failed else size


class _TooMany(Exception):
    """More captures than there may be would be needed to know."""


class _Search:
    """The search for the largest size that fits, of multiples of `grid`: where a line through two peaks says first, then around
    that."""

    def __init__(self, try_: Callable[[int, bool], Tried | None], room: int, grid: int = 1) -> None:
        self._try = try_
        self.room = room
        self.grid = grid
        self.tried: dict[int, Tried] = {}
        # Sizes that the model does not take, and those of which that is not known.
        self.barred: set[int] = set()
        self.unknown: set[int] = set()

    def look(self, size: int, *, is_near: bool = False) -> bool:
        """Whether a size fits."""
        if size not in self.tried and size not in self.barred | self.unknown:
            try:
                found = self._try(size, is_near)
            except _TooMany:
                self.unknown.add(size)
                return False
            if found is None:
                self.barred.add(size)
            else:
                self.tried[size] = found
        return size in self.tried and self.tried[size].fits

    def run(self, given: int) -> int | None:
        """The largest size that fits, beginning with this one; `None` if none does."""
        grid = self.grid
        # Below `floor` are sizes that are too small for the model.
        low, high, at, floor = 0, _MOST // grid, given // grid, -(-extents.LEAST // grid)
        while low + 1 < high and floor <= at < high:
            before = high - low
            # One size may be missing among others.
            place = at + 1 if at * grid in self.barred and at + 1 < high else at
            if self.look(place * grid, is_near=True):
                low = max(low, place)
            elif low == 0 and place * grid in self.barred:
                floor = place + 1
            elif place * grid in self.barred and place == at and at + 1 < high:
                continue
            else:
                high = min(high, at)
            at = max(self._next(low, high, floor, is_slow=high - low > before // 2), floor)
        return low * grid or None

    def _next(self, low: int, high: int, floor: int, *, is_slow: bool) -> int:
        """What to try next, between what fits and what does not. If the last one left more than half of the interval, it is
        halved now."""
        if low == 0:
            return (floor + high) // 2 if high > floor else high
        guess = self._guess(low)
        if high == _MOST // self.grid:
            return min(max(guess or 0, 2 * low if guess is None else low + max(low // 16, 1)), _GROWTH * low, high - 1)
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
        return max(low, (one + int((self.room - least) * (other - one) / (more - least))) // self.grid)


def _tried(captures: _Captures, room: int, beside: int, machine: str | None, limit: float, planner: str,
           accumulated: Callable[[Joint], frozenset[int]], size: int, is_near: bool) -> Tried | None:
    """A size, with its plan; `None` if the model does not take it. If it `is_near` the largest one, the bytes that suffice for
    it are of interest."""
    found = captures.step(size)
    if found is None:
        return None
    step, unread = found
    beside += step.outside + step.reserve + unread
    # A call's results may lie where its inputs were.
    if (needed := largest_call(step.joint) // 2 + beside) > room:
        return Tried(size, needed=needed)
    graph = document(step.joint, step.name, accumulated=accumulated(step.joint), between=step.loss.memory.between)
    if machine is None:
        graph = costed(graph, step.device).document
    below = None if step.tier is None else Below(step.tier.size, *step.tier.rates)
    search = functools.partial(held, graph, machine=machine, below=below, planner=planner)
    try:
        found = _searched(search, max(room - beside, 1), limit)
    except InfeasibleBudget as error:
        return Tried(size, needed=error.needed + beside, smallest=error.smallest + beside)
    smallest = min(search(None, min(limit, _BRIEF)).peak, found.peak) + beside if is_near else None
    return Tried(size, found.peak + beside, 0, smallest, found.seconds, found.unplanned_seconds, found.bound_seconds,
                 found.recomputed, size / found.seconds)


def _unread(backend: Backend) -> int:
    """Bytes of the batch that was captured which the graph does not read."""
    tensors = [leaf for leaf in pytree.tree_leaves(backend.ledger.given) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors if tensor.untyped_storage()._cdata not in backend.ledger.read)


def _searched(search: Callable[[int, float], Held], room: int, limit: float) -> Held:
    """A plan within the room; where none is found and none is excluded, the search is repeated with more time."""
    try:
        return search(room, limit)
    except InfeasibleBudget as error:
        if error.needed > room:
            raise
    return search(room, _LONGER * limit)


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
