"""A graph that was captured with sizes that vary, and the steps that run it: each for sizes up to its own.

Invariant: a step's graph is what capturing at its sizes gives, and it runs smaller ones with the integers that follow
from those: the same operators in the same order. It counts no less than they hold, since every storage grows with the
sizes. Only a step that runs no sizes but its own may be divided. Steps that were used most recently are kept.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

from .. import extents
from ..errors import CompileError, InfeasibleBudget
from ..nodes import tensors
from .budget import Budget
from .dividing import WHOLE
from .execution import Step
from .instance import Instance
from .joint import Argument, Joint

# Number of steps that are kept.
_KEPT = 256

Sizes = tuple[int, ...]


class Varying:
    """A graph whose sizes vary, run like a step. With `is_shared`, a step also runs smaller sizes than its own."""

    def __init__(self, module: fx.GraphModule, arguments: Sequence[Argument], outputs: int,
                 step: Callable[[Joint], Step], budget: Budget, *, is_shared: bool) -> None:
        self.module = fx.GraphModule(module, copy.deepcopy(module.graph))
        self.arguments = arguments
        self.outputs = outputs
        self.step = step
        self.budget = budget
        # The graph as it was captured; nothing was simplified, which would restrict its sizes.
        self.joint = Joint.captured(self.module, arguments, outputs)
        self.steps: OrderedDict[Sizes, Step] = OrderedDict()
        # Sizes whose step cannot be made, or had no plan within the budget, with the bytes that the loop held then.
        self.refused: dict[Sizes, int] = {}
        # How often the budget had been changed then.
        self.changes = 0
        # Seconds that calls lost by running at other sizes than these, which have no step.
        self.lost: Counter[Sizes] = Counter()
        # Seconds that calls lost in steps for more sizes than these, which are not divided.
        self.lost_undivided: Counter[Sizes] = Counter()
        # Whether a step that runs no sizes but its own can be divided, once one for more had no plan.
        self.divides = False
        # Number of forward passes of steps that are no longer kept.
        self.past = 0
        self._sizes = [index for index, primal in enumerate(self.joint.primals) if isinstance(primal.meta["val"], int | torch.SymInt)]
        # Their expressions: symbols, integers that capturing has fixed, and what follows from both.
        self._expressions = [extents.expression(self.joint.primals[index].meta["val"]) for index in self._sizes]
        for node in (*self.joint.primals, *self.joint.tangents):
            if not free_symbols(node.meta["val"]) <= self.symbols:
                raise CompileError(f"a size of {node.target} does not follow from the sizes of the batch; please report this model")
        self.is_shared = is_shared and all(map(extents.grows, _storages(self.module.graph)))

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """The sizes that vary."""
        return frozenset(found for found in self._expressions if found.is_Symbol)

    def symbols_along(self, dimension: int) -> frozenset[sympy.Symbol]:
        """The sizes that vary along a dimension of the batch's tensors."""
        sizes = {extents.expression(value.shape[dimension]) for primal, argument in zip(self.joint.primals, self.arguments, strict=True)
                 if argument.phase == "input" and isinstance(value := primal.meta["val"], torch.Tensor) and value.dim() > dimension}
        return frozenset(size for size in sizes if size.is_Symbol)

    @property
    def environment(self) -> ShapeEnv:
        """What capturing has assumed of them."""
        return next(value.node.shape_env for index in self._sizes if isinstance(value := self.joint.primals[index].meta["val"], torch.SymInt))

    def sizes_at(self, known: Mapping[sympy.Symbol, int]) -> Sizes:
        """The sizes among the arguments where these vary."""
        return tuple(int(found.xreplace({symbol: sympy.Integer(size) for symbol, size in known.items()})) for found in self._expressions)

    def at(self, sizes: Sizes) -> Step:
        """A step for these sizes, which is not kept."""
        return self.step(self._at(sizes))

    @property
    def calls(self) -> int:
        """Number of forward passes that it has run."""
        return self.past + sum(step.calls for step in self.steps.values())

    def forward(self, arguments: list[Any]) -> list[Any]:
        """The forward pass, by a step for the sizes among the arguments."""
        sizes = tuple(arguments[index] for index in self._sizes)
        if self.changes != self.budget.members.changes:
            self.changes = self.budget.members.changes
            self.refused.clear()
        at = self._chosen(sizes)
        is_alone = self._is_alone(sizes, at)
        step = self._used(sizes if is_alone else at, is_alone=is_alone)
        try:
            return step.forward(arguments)
        except InfeasibleBudget:
            self.divides = step.divides_alone
            if at == sizes and not self.divides:
                raise
        # What does not fit at larger sizes, or at any up to these, may fit at these alone.
        self.refused[at] = _held(step)
        return self._used(sizes, is_alone=self.divides).forward(arguments)

    def backward(self, arguments: list[Any]) -> list[Any]:
        """The backward pass, by the step of the forward pass."""
        pending = getattr(arguments[0], "tightfit", None)
        # Any step explains what became of the token.
        step = next(reversed(self.steps.values())) if pending is None else pending.step
        return step.backward(arguments)

    def _used(self, sizes: Sizes, *, is_alone: bool = False) -> Step:
        """The step for these sizes, made if there is none; with `is_alone`, one that runs no others."""
        if sizes not in self.steps or (is_alone and self.steps[sizes].divides_alone):
            began = time.perf_counter()
            made = self.step(self._at(sizes, is_alone=is_alone))
            made.spent += time.perf_counter() - began
            if self.steps:
                last = next(reversed(self.steps.values()))
                made.holds_outputs, made.must_hold_outputs = last.holds_outputs, last.must_hold_outputs
            larger = [at for at in self.steps if _covers(at, sizes)]
            if larger:
                made.between.inherit(self.steps[min(larger, key=math.prod)].between)
            if sizes in self.steps:
                self.past += self.steps[sizes].calls
            self.steps[sizes] = made
            if len(self.steps) > _KEPT:
                self.past += self.steps.popitem(last=False)[1].calls
        self.steps.move_to_end(sizes)
        return self.steps[sizes]

    def _chosen(self, sizes: Sizes) -> Sizes:
        """The sizes of the step that is to run these: one that recomputes nothing, or one up to the next sizes on the
        scale. If a step for those has to be made, a larger one runs them until this has cost as much as making steps does:
        so it never costs more than twice what it has to."""
        if sizes in self.steps or not self.is_shared or min(sizes) < extents.LEAST:
            return sizes
        above = self._above(sizes)
        larger = [at for at, step in self.steps.items() if step.joint.sizes and _covers(at, sizes) and not self._is_refused(at, step)]
        fitting = [at for at in larger if self.steps[at].lost == 0 or _covers(above, at)]
        if fitting:
            return min(fitting, key=math.prod)
        wanted = sizes if above in self.refused else above
        if larger:
            closest = min(larger, key=math.prod)
            self.lost[wanted] += self.steps[closest].lost * math.prod(sizes) / math.prod(closest)
            if self.lost[wanted] < statistics.fmean(step.spent for step in self.steps.values()):
                return closest
        if wanted != sizes:
            try:
                if (step := self._used(wanted)).joint.sizes and step.may_fit():
                    return wanted
            except Exception:  # noqa: BLE001: the model may not go as far, as where positions have a table
                pass
            self.refused[wanted] = 0
            self.steps.pop(wanted, None)
        return sizes

    def _is_alone(self, sizes: Sizes, at: Sizes) -> bool:
        """Whether these sizes get a step that runs no others, and can be divided, rather than the one at `at`: for the
        smallest peak, where that has no plan or not even room for its largest call, or once it has cost as much time as
        making steps does."""
        if at not in self.steps and self.divides and self._above(sizes) in self.refused:
            return True
        step = self._used(at)
        if not step.divides_alone:
            return False
        if self._is_refused(at, step) or not step.may_fit():
            return True
        alone = [one for one in self.steps.values() if not one.joint.sizes]
        if any(one.made and one.made[-1].split == WHOLE for one in alone):
            # Chunks were no better at other sizes.
            return False
        if self.budget.bytes is None:
            return True
        if step.made:
            self.lost_undivided[sizes] += step.lost * math.prod(sizes) / math.prod(at)
        return self.lost_undivided[sizes] > statistics.fmean(one.spent for one in self.steps.values())

    def _is_refused(self, sizes: Sizes, step: Step) -> bool:
        """Whether a step has no plan while the loop holds as much as now."""
        return sizes in self.refused and _held(step) >= self.refused[sizes]

    def _above(self, sizes: Sizes) -> Sizes:
        """The next sizes on the scale."""
        return self.sizes_at({found: _above(size) for found, size in zip(self._expressions, sizes, strict=True) if found.is_Symbol})

    def _at(self, sizes: Sizes, *, is_alone: bool = False) -> Joint:
        """The graph at these sizes; with `is_alone`, of a step that runs no others."""
        module = fx.GraphModule(self.module, copy.deepcopy(self.module.graph))
        instance = Instance(module, dict(zip(self._sizes, sizes, strict=True)))
        instance.run()
        if self.is_shared and instance.is_exact and not is_alone:
            return Joint.of(module, self.arguments, self.outputs, sizes=tuple(self._sizes))
        instance.fix()
        return Joint.of(module, self.arguments, self.outputs)


def _held(step: Step) -> int:
    return sum(step.ledger.others().values())


def _covers(sizes: Sizes, others: Sizes) -> bool:
    return all(one >= other for one, other in zip(sizes, others, strict=True))


def _above(size: int) -> int:
    """The next size on a scale of powers of two and of three times those."""
    if size <= extents.LEAST:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def _storages(graph: fx.Graph) -> set[sympy.Expr]:
    """The bytes of all storages."""
    return {extents.expression(tensor.untyped_storage().nbytes())
            for node in graph.nodes if node.op != "get_attr" for tensor in tensors(node.meta.get("val"))}
