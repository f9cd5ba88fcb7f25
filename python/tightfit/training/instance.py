"""A graph that was captured with sizes that vary, at one set of sizes.

Invariant: each node has the value that capturing at these sizes gives it, and what it had before is kept in its `meta`
as `extents.VARYING`; integers among the calls' arguments that follow from the sizes are extents.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .. import extents
from ..errors import CompileError
from ..extents import LAID_OUT, VARYING, Extent
from ..nodes import tensors


def is_symbolic(value: Any) -> bool:
    """Whether a value, an example of an argument or a result in a graph, has a size that varies."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return True
    return any(isinstance(size, torch.SymInt) for tensor in tensors(value) for size in (*tensor.shape, *tensor.stride()))


class Instance:
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
            # Capturing may have fixed a size, which is an integer then.
            if (found := extents.expression(placeholders[index].meta["val"])).is_Symbol:
                self.known[found] = sympy.Integer(size)
                self.names[found] = sympy.Symbol(extents.name(index), integer=True)
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
                    self._compare(node)
        for node in list(graph.nodes):
            is_erased = node.op == "call_function" and self._is_number(node)
            if is_erased or node in self.numbers:
                number = self._extent(node)
                for user in list(node.users):
                    user.args, user.kwargs = fx.node.map_arg(
                        (user.args, dict(user.kwargs)), lambda other, node=node, number=number: number if other is node else other)
                if is_erased:
                    graph.erase_node(node)

    def _compare(self, node: fx.Node) -> None:
        """Refuses sizes for which the graph was not captured, where calls make other results. What is contiguous at these
        sizes alone tells nothing about what others take."""
        made, varying = tensors(self.values[node]), tensors(node.meta[VARYING])
        if node.op == "call_function" and [list(tensor.shape) for tensor in made] != \
                [[self._number(size) for size in tensor.shape] for tensor in varying]:
            raise CompileError(f"the graph of a batch of other sizes does not hold at these: {node.target} makes something else")
        if isinstance(self.values[node], torch.Tensor) and self.values[node].is_contiguous() and not extents.is_contiguous(node):
            # Where it is not contiguous, operators may copy it first.
            self.is_exact = False

    def fix(self) -> None:
        """Makes its extents integers: the graph is for these sizes alone."""
        for node in self.module.graph.nodes:
            node.meta.pop(VARYING, None)
            node.meta.pop(LAID_OUT, None)
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
        node.meta[LAID_OUT] = tuple([self._written(size) for size in sizes] for sizes in (value.shape, value.stride()))
        return made.requires_grad_(value.requires_grad)

    def _written(self, size: Any) -> int:
        """A size as an extent, if it varies."""
        number = self._number(size)
        if not isinstance(size, torch.SymInt) or size.node.expr.is_Integer:
            return number
        text = extents.written(size.node.expr, self.names)
        self.is_exact &= text is not None
        return number if text is None else Extent(number, text)

    def _number(self, size: Any) -> int:
        return int(extents.expression(size).xreplace(self.known))
