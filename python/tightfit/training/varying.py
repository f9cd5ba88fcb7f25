"""A graph that was captured with sizes that vary, and the steps that run it: each for sizes up to its own.

Invariant: a step's graph is what capturing at its sizes gives, and it runs smaller ones with the integers that follow
from those: the same operators in the same order. It counts no less than they hold, since every storage grows with the
sizes. Steps that were used most recently are kept.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_symbols

from .. import extents
from ..errors import CompileError, InfeasibleBudget
from ..extents import VARYING, Extent
from ..nodes import tensors
from .execution import Step
from .joint import Argument, Joint

# Number of steps that are kept.
_KEPT = 256

Sizes = tuple[int, ...]


def is_symbolic(value: Any) -> bool:
    """Whether a value, an example of an argument or a result in a graph, has a size that varies."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return True
    return any(isinstance(size, torch.SymInt) for tensor in tensors(value) for size in (*tensor.shape, *tensor.stride()))


class Varying:
    """A graph whose sizes vary, run like a step. With `is_shared`, a step also runs smaller sizes than its own."""

    def __init__(self, module: fx.GraphModule, arguments: Sequence[Argument], outputs: int,
                 step: Callable[[Joint], Step], *, is_shared: bool) -> None:
        self.module = fx.GraphModule(module, copy.deepcopy(module.graph))
        self.arguments = arguments
        self.outputs = outputs
        self.step = step
        # The graph as it was captured; nothing was simplified, which would restrict its sizes.
        self.joint = Joint.captured(self.module, arguments, outputs)
        self.steps: OrderedDict[Sizes, Step] = OrderedDict()
        # Sizes whose step cannot be made, or has no plan within the budget.
        self.refused: set[Sizes] = set()
        # Number of forward passes of steps that are no longer kept.
        self.past = 0
        self._sizes = [index for index, primal in enumerate(self.joint.primals)
                       if not isinstance(primal.meta["val"], torch.Tensor)]
        numbers = {extents.expression(primal.meta["val"]) for primal in self.joint.primals
                   if isinstance(primal.meta["val"], torch.SymInt)}
        for node in (*self.joint.primals, *self.joint.tangents):
            if not free_symbols(node.meta["val"]) <= numbers:
                raise CompileError(f"a size of {node.target} does not follow from the sizes of the batch; please report this model")
        self.is_shared = is_shared and all(map(extents.grows, _storages(self.module.graph)))

    @property
    def calls(self) -> int:
        """Number of forward passes that it has run."""
        return self.past + sum(step.calls for step in self.steps.values())

    def forward(self, arguments: list[Any]) -> list[Any]:
        """The forward pass, by a step for the sizes among the arguments."""
        sizes = tuple(arguments[index] for index in self._sizes)
        at = self._chosen(sizes)
        try:
            return self._used(at).forward(arguments)
        except InfeasibleBudget:
            if at == sizes:
                raise
        # What does not fit at larger sizes may fit at these.
        self.refused.add(at)
        return self._used(sizes).forward(arguments)

    def backward(self, arguments: list[Any]) -> list[Any]:
        """The backward pass, by the step of the forward pass."""
        pending = getattr(arguments[0], "tightfit", None)
        # Any step explains what became of the token.
        step = next(reversed(self.steps.values())) if pending is None else pending.step
        return step.backward(arguments)

    def _used(self, sizes: Sizes) -> Step:
        """The step for these sizes, made if there is none."""
        if sizes not in self.steps:
            self.steps[sizes] = self.step(self._at(sizes))
            if len(self.steps) > _KEPT:
                self.past += self.steps.popitem(last=False)[1].calls
        self.steps.move_to_end(sizes)
        return self.steps[sizes]

    def _chosen(self, sizes: Sizes) -> Sizes:
        """The sizes of the step that is to run these: one that recomputes nothing, or the next ones on the scale."""
        if sizes in self.steps or not self.is_shared:
            return sizes
        larger = [at for at, step in self.steps.items() if step.joint.sizes and at not in self.refused and _covers(at, sizes)]
        unplanned = [at for at in larger if self.steps[at].made and _is_free(self.steps[at])]
        if unplanned:
            return min(unplanned, key=math.prod)
        above = tuple(map(_above, sizes))
        if above in larger:
            return above
        if above not in self.refused:
            try:
                if self._used(above).joint.sizes:
                    return above
            except Exception:  # noqa: BLE001: the model may not go as far, as where positions have a table
                pass
            self.refused.add(above)
        return sizes

    def _at(self, sizes: Sizes) -> Joint:
        """The graph at these sizes."""
        module = fx.GraphModule(self.module, copy.deepcopy(self.module.graph))
        instance = _Instance(module, dict(zip(self._sizes, sizes, strict=True)))
        instance.run()
        if self.is_shared and instance.is_exact:
            return Joint.of(module, self.arguments, self.outputs, sizes=tuple(self._sizes))
        instance.fix()
        return Joint.of(module, self.arguments, self.outputs)


def _is_free(step: Step) -> bool:
    held = step.made[-1].held
    return held.recomputed == 0 and held.below == 0


def _covers(sizes: Sizes, others: Sizes) -> bool:
    return all(one >= other for one, other in zip(sizes, others, strict=True))


def _above(size: int) -> int:
    """The next size on a scale of powers of two and of three times those."""
    if not isinstance(size, int) or size <= extents.LEAST:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def _storages(graph: fx.Graph) -> set[sympy.Expr]:
    """The bytes of all storages."""
    return {extents.expression(tensor.untyped_storage().nbytes())
            for node in graph.nodes if node.op != "get_attr" for tensor in tensors(node.meta.get("val"))}


class _Instance:
    """A graph that is being given its sizes: the value of each node so far."""

    def __init__(self, module: fx.GraphModule, sizes: dict[int, int]) -> None:
        self.module = module
        self.mode = FakeTensorMode()
        self.values: dict[fx.Node, Any] = {}
        self.storages: dict[int, torch.Tensor] = {}
        placeholders = module.graph.find_nodes(op="placeholder")
        self.numbers = {placeholders[index]: size for index, size in sizes.items()}
        # What each symbol stands for, as a number and by name.
        self.known: dict[sympy.Expr, sympy.Integer] = {}
        self.names: dict[sympy.Expr, sympy.Symbol] = {}
        for index, size in sizes.items():
            if isinstance(value := placeholders[index].meta["val"], torch.SymInt):
                self.known[extents.expression(value)] = sympy.Integer(size)
                self.names[extents.expression(value)] = sympy.Symbol(extents.name(index), positive=True, integer=True)
        # Whether what does not stay at other sizes has an expression.
        self.is_exact = True

    def run(self) -> None:
        """Gives each node its value, and calls their numbers."""
        graph = self.module.graph
        with self.mode, torch.no_grad():
            for node in graph.nodes:
                if node.op != "output":
                    self.values[node] = self._value(node)
                    node.meta[VARYING] = node.meta.get("val")
                    node.meta["val"] = self.values[node]
        for node in list(graph.nodes):
            is_erased = node.op == "call_function" and self._is_number(node)
            if is_erased or node in self.numbers:
                number = self._extent(node)
                for user in list(node.users):
                    user.args, user.kwargs = fx.node.map_arg(
                        (user.args, dict(user.kwargs)), lambda other, node=node, number=number: number if other is node else other)
                if is_erased:
                    graph.erase_node(node)

    def fix(self) -> None:
        """Makes its extents integers: the graph is for these sizes alone."""
        for node in self.module.graph.nodes:
            node.meta.pop(VARYING, None)
            node.args, node.kwargs = fx.node.map_aggregate(
                (node.args, dict(node.kwargs)), lambda item: int(item) if isinstance(item, Extent) else item)

    def _is_number(self, node: fx.Node) -> bool:
        """Whether a call computes with sizes alone: a number, or a check of some."""
        if tensors(self.values[node]):
            return False
        return self.values[node] is not None or not any(tensors(self.values[source]) for source in node.all_input_nodes)

    def _extent(self, node: fx.Node) -> Any:
        """The number of a node, with its expression if it depends on sizes."""
        number, varying = self.values[node], node.meta[VARYING]
        if not is_symbolic(varying):
            return number
        text = extents.written(extents.expression(varying), self.names) if isinstance(varying, torch.SymInt) else None
        if text is None:
            # It may be needed for a check, or for another number.
            self.is_exact &= not any(self._is_read(user) for user in node.users)
            return number
        return Extent(number, text)

    def _is_read(self, node: fx.Node) -> bool:
        return node.op == "output" or not (node.op == "call_function" and self._is_number(node))

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._given(node)
        if node.op == "get_attr":
            found = getattr(self.module, str(node.target))
            return found if isinstance(found, FakeTensor) else self.mode.from_tensor(found)
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self.values.__getitem__)
        return node.target(*args, **kwargs)

    def _given(self, node: fx.Node) -> Any:
        """The value of an argument or a tangent."""
        if node in self.numbers:
            return self.numbers[node]
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        shape, strides = ([self._number(size) for size in sizes] for sizes in (value.shape, value.stride()))
        storage = value.untyped_storage()
        if storage._cdata not in self.storages:
            elements = -(-self._number(storage.nbytes()) // value.element_size())
            self.storages[storage._cdata] = torch.empty(elements, dtype=value.dtype, device=value.device)
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        made.set_(self.storages[storage._cdata].untyped_storage(), self._number(value.storage_offset()), shape, strides)
        return made.requires_grad_(value.requires_grad)

    def _number(self, size: Any) -> int:
        return int(extents.expression(size).xreplace(self.known))
