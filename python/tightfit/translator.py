"""Calls of a captured fx graph as nodes of a `tightfit-graph/1` document.

Invariant: each call is one node, in the captured order; a result that nothing reads is workspace of its call. What is
captured, and what else the graph has, is up to the two kinds of graphs: exported steps and joint graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .errors import ExportError
from .graph import GraphBuilder, ValueId
from .nodes import draws, flops, is_call, is_view, used_outputs


class Translator:
    """The state of one translation: the graph under construction, and the values of each captured node."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.values: dict[fx.Node, ValueId | list[ValueId | None]] = {}

    def call(self, node: fx.Node, phase: str, *, module: str, differentiates: str | None, stream: bool) -> None:
        """Adds a call; a random one draws from PyTorch's running generator (`stream`), or has a seed of its own."""
        overload = node.target
        if not isinstance(overload, torch._ops.OpOverload):
            raise ExportError(f"node {node.name!r} calls {overload}, which is no operator of PyTorch's dispatcher; take "
                              "control flow operators and other higher-order calls out of the model")
        raw = node.meta.get("val")
        several = isinstance(raw, (tuple, list))
        results = list(map(self.described, raw)) if several else [raw]
        used = used_outputs(node) if several else {0}
        made = {index: tensor for index, tensor in enumerate(results) if isinstance(tensor, torch.Tensor)}
        for tensor in made.values():
            if tensor.layout is not torch.strided:
                raise ExportError(f"node {node.name!r} produces a tensor of layout {tensor.layout}; only strided ones are written: "
                                  "make it dense, such as with nn.Embedding(…, sparse=False)")
        mutates, random = overload._schema.is_mutable, draws(node)
        outputs = [made.get(index) if index in used else None for index in range(len(results))]
        if mutates:
            outputs = [self.builder.tensor(self.value(node.args[0]))]
        args, kwargs = (fx.node.map_arg(given, self.value) for given in (node.args, dict(node.kwargs)))
        view = not mutates and is_view(node, outputs)
        values = self.builder.node(
            node.name, str(overload), phase, list(args), kwargs, outputs, module=module, flops=0 if view else flops(node),
            random=random, stream=random and stream, mutates=mutates, cost=not view, differentiates=differentiates,
            dropped=[tensor for index, tensor in made.items() if index not in used],
        )
        self.values[node] = values if several else values[0]

    def described(self, result: Any) -> Any:
        """One of several results as the graph has it."""
        return result

    def value(self, node: fx.Node) -> ValueId:
        """The value of a captured node, which may be one result of a call."""
        is_part = node.op == "call_function" and not is_call(node)
        found = self.values[node.args[0]][node.args[1]] if is_part else self.values[node]
        if not isinstance(found, ValueId):
            raise ExportError(f"node {node.name!r} is used as one tensor but is none; please report this model")
        return found
