"""Removes from a captured graph what computes nothing: aliases, copies to the same type, chains of views, dead nodes.

Invariant: every remaining value is bit for bit what it was, and no value changes shape or dtype; `copy_` into buffers
stays.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from .capture import MODULE, PHASE, Capture
from .extents import alike, is_contiguous

aten = torch.ops.aten

_IDENTITIES = {
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
}


def simplify(captured: Capture) -> None:
    """Simplifies in place, and updates the capture's own references."""
    graph = captured.graph
    if captured.tangent is not None:
        _seed_backward(captured)
    replaced: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function":
            shorten(node)
            source = equivalent(node)
            if source is not None:
                follow(node, source)
                node.replace_all_uses_with(source)
                replaced[node] = source
                graph.erase_node(node)
    captured.loss = replaced.get(captured.loss, captured.loss)
    if captured.prediction is not None:
        captured.prediction = replaced.get(captured.prediction, captured.prediction)
    captured.gradients = {name: replaced.get(node, node) for name, node in captured.gradients.items()}
    _drop_dead(captured)


def _seed_backward(captured: Capture) -> None:
    """Replaces the tangent of the loss by the constant one."""
    tangent = captured.tangent
    assert tangent is not None
    first = next((node for node in captured.graph.nodes if node.op == "call_function" and tangent in node.all_input_nodes), None)
    if first is not None:
        value = tangent.meta["val"]
        with captured.graph.inserting_before(first):
            one = captured.graph.call_function(
                aten.full.default, (list(value.shape), 1.0), {"dtype": value.dtype}, name="loss_gradient"
            )
        one.meta.update({"val": value, PHASE: "backward", MODULE: ""})
        tangent.replace_all_uses_with(one)
    captured.graph.erase_node(tangent)
    captured.tangent = None


def _same(node: fx.Node, source: fx.Node) -> bool:
    a, b = node.meta["val"], source.meta["val"]
    is_same = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and a.device == b.device
    return is_same and alike(node, source)


def equivalent(node: fx.Node) -> fx.Node | None:
    """An earlier node with the same elements in the same layout."""
    target = node.target
    if target in _IDENTITIES:
        return node.args[0]
    if target is aten.t.default and isinstance(node.args[0], fx.Node) and node.args[0].target is target:
        return node.args[0].args[0]
    if target in (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default,
                  aten._to_copy.default, aten.permute.default, aten.slice.Tensor, aten.slice_backward.default, aten.squeeze.dims):
        return node.args[0] if _same(node, node.args[0]) else None
    return None


def follow(node: fx.Node, source: fx.Node) -> None:
    """Makes views of a removed copy views of what was copied."""
    copy, original = node.meta["val"], source.meta["val"]
    storage = copy.untyped_storage()._cdata
    if original.untyped_storage()._cdata == storage:
        return
    from_start = original.storage_offset() - copy.storage_offset()
    views = [node]
    while views:
        for user in views.pop().users:
            view = user.meta.get("val")
            if isinstance(view, torch.Tensor) and view.untyped_storage()._cdata == storage:
                with torch.no_grad():
                    user.meta["val"] = original.as_strided(view.shape, view.stride(), from_start + view.storage_offset())
                views.append(user)


def _composed(inner: fx.Node, outer: fx.Node) -> list[int]:
    rank = outer.meta["val"].dim()
    return [inner.args[1][dim % rank] % rank for dim in outer.args[1]]


def shorten(node: fx.Node) -> None:
    """Makes a view of a view read the first one's source, if that gives the same view."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source.op != "call_function" or source.target is not node.target:
        return
    base = source.args[0]
    if node.target is aten.permute.default:
        node.args = (base, _composed(source, node))
    elif node.target is aten.view.default and is_contiguous(base):
        node.args = (base, node.args[1])


def _drop_dead(captured: Capture) -> None:
    """Erases calls that nothing uses; random numbers that are never read are not drawn."""
    for node in reversed(list(captured.graph.nodes)):
        if node.op in ("placeholder", "output") or node.users:
            continue
        if node.op == "call_function" and node.target is not operator.getitem and node.target._schema.is_mutable:
            continue
        captured.graph.erase_node(node)
