"""Evaluates calls that the engine has no kernel for, if they depend on nothing but constants.

Invariant: what is folded reads no parameter, no buffer, no input and no random number, so that it is the same in every
step; a constant is named by its content, so that equal ones are one buffer and different ones never share a name.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import fx

from .capture import MODULE, PHASE, Capture

aten = torch.ops.aten

# Libraries use these to find where packed sequences begin if they are not told: arithmetic on position numbers.
FOLDED = {aten.cumsum.default, aten.index.Tensor}


def fold(captured: Capture) -> None:
    """Replaces each constant call of `FOLDED` by its value; nodes that only fed it are dead afterwards."""
    graph, module = captured.graph, captured.module
    constant: set[fx.Node] = set()
    known: dict[fx.Node, Any] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr" or (_is_pure(node) and all(source in constant for source in node.all_input_nodes)):
            constant.add(node)
        if node not in constant or node.target not in FOLDED:
            continue
        value = _evaluate(module, node, known)
        name = _name(value)
        module.register_buffer(name, value, persistent=False)
        with graph.inserting_before(node):
            folded = graph.get_attr(name)
        folded.meta.update({"val": value, PHASE: node.meta[PHASE], MODULE: node.meta[MODULE]})
        node.replace_all_uses_with(folded)
        constant.add(folded)


def _is_pure(node: fx.Node) -> bool:
    """Whether a call gives the same result for the same arguments and does nothing else."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return not node.target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags


def _evaluate(module: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Any]) -> torch.Tensor:
    """The value of a constant call; its sources come before it, so the graph's order is an order of evaluation."""
    needed, pending = {node}, [node]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in needed and source not in known:
                needed.add(source)
                pending.append(source)
    with torch.no_grad():
        for source in sorted(needed):
            if source.op == "get_attr":
                known[source] = getattr(module, source.target)
            else:
                args, kwargs = fx.node.map_arg((source.args, source.kwargs), known.__getitem__)
                known[source] = source.target(*args, **kwargs)
    return known[node].contiguous()


def _name(value: torch.Tensor) -> str:
    content = hashlib.sha256(f"{value.dtype}{tuple(value.shape)}".encode())
    content.update(value.numpy().tobytes())
    return f"folded_{content.hexdigest()[:12]}"
