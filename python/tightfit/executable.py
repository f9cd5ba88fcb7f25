"""Checks what the engine requires of a step before it is written: a model and batch that it can hold, and its
operators.

Invariant: the judge of graphs is the engine's own compiler; what it refuses is refused before any file is written, with
the operators, the modules that call them, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from . import _native
from .batch import leaves
from .errors import ExportError, TightfitError
from .graph import to_gzip

_INSTEAD = "or export with execute=False, a graph to plan with"
_FLOATS = (torch.float16, torch.bfloat16, torch.float64)


def check_model(model: nn.Module, batch: tuple[Any, Any]) -> None:
    """Refuses a batch or a model that a step for the engine cannot have."""
    if not all(isinstance(part, torch.Tensor) for part in batch):
        found = [len(leaves(part)) for part in batch]
        raise ExportError(
            "an executable step needs example_batch = (inputs, targets), one tensor each, and this one has "
            f"{_counted(found[0], 'tensor')} of inputs and {_counted(found[1], 'tensor')} of targets: wrap the model "
            f"in a module whose forward makes the others from its one input, {_INSTEAD}"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise ExportError(f"{name!r} lives on {tensor.device}; move the model to the CPU with .cpu()")
        if tensor.dtype in _FLOATS:
            raise ExportError(f"{name!r} has dtype {tensor.dtype}; executable steps are float32, convert with "
                              f".float(), {_INSTEAD}")


def check_graph(graph: dict[str, Any]) -> None:
    """Checks that the engine executes a graph."""
    _check_memory(graph)
    try:
        found = _native.obstacle(to_gzip(graph))
    except TightfitError as error:
        raise ExportError(f"the engine cannot read this step: {error}; {_INSTEAD.removeprefix('or ')}") from error
    if found is not None:
        lacking, name, reason = found
        raise ExportError(_lacks(graph, lacking) if lacking else _cannot(graph, name, reason))


def _check_memory(graph: dict[str, Any]) -> None:
    """Checks memory layouts: the engine writes each parameter, buffer and input as one block without gaps."""
    owner: dict[int, str] = {}
    for node in graph["nodes"]:
        if node["op"] == "placeholder":
            output, name = node["outputs"][0], node.get("parameter", node["name"])
            if not output.get("contiguous", True) or output.get("offset", 0):
                raise ExportError(f"{name!r} does not lie in memory as one piece from its start; make it one of its "
                                  f"own with .contiguous() or .clone(), {_INSTEAD}")
            if owner.setdefault(output["storage"], name) != name:
                raise ExportError(f"{owner[output['storage']]!r} and {name!r} lie in the same memory; give one of them "
                                  f"its own with .clone(), {_INSTEAD}")


def _lacks(graph: dict[str, Any], operators: Iterable[str]) -> str:
    each = []
    for operator in operators:
        calls = [node for node in graph["nodes"] if node["op"] == operator]
        where = list(dict.fromkeys(_module(graph, node) for node in calls))
        others = f" and {_counted(len(where) - 3, 'module')} more" if len(where) > 3 else ""
        each.append(f"{operator} ({_counted(len(calls), 'call')}, first {calls[0]['name']!r}; in "
                    f"{', '.join(where[:3])}{others})")
    return f"the engine lacks {' and '.join(each)}: write these modules with other operators, {_INSTEAD}"


def _cannot(graph: dict[str, Any], name: str | None, reason: str) -> str:
    node = next((node for node in graph["nodes"] if node["name"] == name), None)
    if node is None:
        return f"the engine cannot execute this step: {reason}; {_INSTEAD.removeprefix('or ')}"
    return (f"the engine cannot execute {name!r}, a call of {node['op']} in {_module(graph, node)}: {reason}; write "
            f"that module with other operators or types, {_INSTEAD}")


def _module(graph: dict[str, Any], node: dict[str, Any]) -> str:
    path = graph["modules"][node.get("module", 0)]
    if path:
        return f"module {path!r}"
    return "the loss" if node["phase"] == "loss" else "the model itself"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
