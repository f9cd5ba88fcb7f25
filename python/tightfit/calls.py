"""What the calls of a graph file mean in PyTorch: operators by their names, arguments from JSON.

Invariant: knows neither models nor captures; all code that runs or measures a graph's calls reads them here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .graph import DTYPES
from .optimizer import adamw, sgd

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}

# They take the learning rate and the number of the step before the node's own arguments.
OPTIMIZERS: dict[str, Callable[..., list[torch.Tensor]]] = {"tightfit.adamw": adamw, "tightfit.sgd": sgd}

# The options that these operators have in a graph.
_OPTIONS = ("betas", "eps", "momentum", "weight_decay")


def overload(op: str) -> torch._ops.OpOverload | None:
    """The operator of this name, if this PyTorch has it; one that takes the name of a file is not accepted."""
    found: Any = torch.ops
    for part in op.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        return None
    return None if any("file" in argument.name for argument in found._schema.arguments) else found


def arguments(node: Mapping[str, Any], value: Callable[[int], Any],
              device: torch.device | None = None) -> tuple[list[Any], dict[str, Any]]:
    """A node's positional and keyword arguments; `value` maps the id of a value to what represents it.

    If a call names a device, it becomes `device`, or stays the file's if none is given. Raises `ValueError` if the
    operator has no such argument, or if a constant is not one of PyTorch's: a file is not code.
    """
    called = None if node["op"] in OPTIMIZERS else overload(node["op"])
    names = [] if called is None else [argument.name for argument in called._schema.arguments]
    known = _OPTIONS if called is None else names
    unknown = next((name for name in node.get("kwargs", {}) if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{node['op']} has no argument {unknown!r}")
    given = node.get("args", [])
    named = zip([*names, *[""] * len(given)], given, strict=False)
    args = [_decoded(item, name, value, device) for name, item in named]
    return args, {name: _decoded(item, name, value, device) for name, item in node.get("kwargs", {}).items()}


def _decoded(item: Any, name: str, value: Callable[[int], Any], device: torch.device | None) -> Any:
    if isinstance(item, Mapping):
        return value(item["value"])
    if isinstance(item, list):
        return [_decoded(one, name, value, device) for one in item]
    if not isinstance(item, str):
        return item
    if name == "device":
        return torch.device(item) if device is None else device
    if item.startswith("torch."):
        constant = getattr(torch, item.removeprefix("torch."), None)
        if not isinstance(constant, (torch.dtype, torch.layout, torch.memory_format)):
            raise ValueError(f"{item!r} is no type, layout or memory format")
        return constant
    return float(item) if item in ("inf", "-inf", "nan") else item
