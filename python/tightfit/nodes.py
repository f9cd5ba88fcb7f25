"""Facts about single nodes of a captured graph: results, views, random numbers, operations.

Invariant: reads nodes and changes none; knows neither models nor graph files.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten


def is_call(node: fx.Node) -> bool:
    """Whether a node calls an operator, rather than naming a tensor or picking a result."""
    return node.op == "call_function" and node.target is not operator.getitem


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a node's value: itself, or those of its results."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, (tuple, list)) else []


def used_outputs(node: fx.Node) -> set[int]:
    """The indices of the results that some node uses."""
    return {user.args[1] for user in node.users if user.target is operator.getitem}


def is_view(node: fx.Node, outputs: list[torch.Tensor | None]) -> bool:
    """Whether all of a call's outputs lie in storages of its inputs."""
    inputs = {tensor.untyped_storage()._cdata
              for source in node.all_input_nodes for tensor in tensors(source.meta["val"])}
    made = [tensor.untyped_storage()._cdata for tensor in outputs if tensor is not None]
    return bool(made) and all(storage in inputs for storage in made)


def draws(node: fx.Node) -> bool:
    """Whether a call really draws random numbers, rather than merely being able to."""
    overload, args = node.target, {}
    for argument, given in zip(overload._schema.arguments, node.args, strict=False):
        args[argument.name] = given
    args.update(node.kwargs)
    if overload is aten.native_dropout.default:
        return bool(args.get("train")) and args["p"] > 0.0
    if "dropout_p" in {argument.name for argument in overload._schema.arguments}:
        return torch.Tag.nondeterministic_seeded in overload.tags and args.get("dropout_p", 0.0) > 0.0 \
            and "backward" not in overload.__name__
    return torch.Tag.nondeterministic_seeded in overload.tags


def flops(node: fx.Node) -> int:
    """Floating-point operations (a multiply-add is two) by PyTorch's own formulas; 0 if it has none for the call."""
    packet = node.target.overloadpacket

    def value(argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda source: source.meta["val"])

    args, kwargs = value(node.args), value(dict(node.kwargs))
    formula = flop_registry.get(packet)
    try:
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=node.meta["val"]))
    except AssertionError:  # for attention whose batches are broadcast
        return 0
