"""Indices that a graph makes itself, such as positions, and whether they lie in the tables that they are for.

Invariant: only what depends on nothing but the graph is computed, and of that only integers. PyTorch finds an index that is
too large when a call runs, not when it is captured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# The largest number of elements that is computed.
_MOST = 1 << 20

# Calls that read by an index: the positions of table and index among the arguments, and that of the dimension.
_READS = {aten.embedding.default: (0, 1, None), aten.index_select.default: (0, 2, 1), aten.gather.default: (0, 2, 1)}


def reads_outside(graph: fx.Graph) -> bool:
    """Whether a call reads a row that its table does not have, whatever the batch holds."""
    known: dict[fx.Node, torch.Tensor | None] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _READS:
            table, index, along = (None if at is None else node.args[at] for at in _READS[node.target])
            found = _constant(index, known)
            if found is not None and found.numel() and int(found.max()) >= table.meta["val"].shape[along or 0]:
                return True
    return False


def _constant(node: Any, known: dict[fx.Node, torch.Tensor | None]) -> torch.Tensor | None:
    """The integers of a node that depends on nothing but the graph."""
    if not isinstance(node, fx.Node):
        return None
    waiting = [node]
    while waiting:
        at = waiting[-1]
        missing = [source for source in at.all_input_nodes if source not in known]
        if missing and _is_integer(at):
            waiting += missing
            continue
        known[at] = _computed(at, known)
        waiting.pop()
    return known[node]


def _is_integer(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and isinstance(value, torch.Tensor) \
        and value.dtype in (torch.int64, torch.int32)


def _computed(node: fx.Node, known: dict[fx.Node, torch.Tensor | None]) -> torch.Tensor | None:
    if not _is_integer(node) or node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags \
            or "empty" in node.target._schema.name or node.meta["val"].numel() > _MOST:
        return None
    if any(known.get(source) is None for source in node.all_input_nodes):
        return None
    given = {name: item for name, item in node.kwargs.items() if name not in ("device", "pin_memory")}
    args, kwargs = fx.node.map_arg((node.args, given), known.__getitem__)
    return node.target(*args, **kwargs, **({"device": "cpu"} if "device" in node.kwargs else {}))
