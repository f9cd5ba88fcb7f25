"""The quickest way to call an operator from Python: PyTorch's own functions and methods take half of what `torch.ops` takes.

Invariant: whatever is chosen was seen to call the same operator with the same arguments; nothing is computed to see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Seen(Exception):
    """Carries a call out of the dispatcher before anything is computed."""

    def __init__(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.operator, self.args_seen, self.kwargs_seen = operator, args, kwargs


class _Look(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Seen(func, args, kwargs or {})


def candidates(overload: torch._ops.OpOverload, first_is_tensor: bool) -> list[tuple[str, Any]]:
    """Ways to call an operator, the quickest first: `("method", name)` of the first argument, or `("function", …)`."""
    name = overload._schema.name.removeprefix("aten::")
    found: list[tuple[str, Any]] = []
    if not overload._schema.name.startswith("aten::"):
        return found
    if first_is_tensor and isinstance(getattr(torch.Tensor, name, None), type(torch.Tensor.view)):
        found.append(("method", name))
    for namespace in (torch._C._VariableFunctions, torch._C._nn):
        function = getattr(namespace, name, None)
        if function is not None:
            found.append(("function", function))
    return found


def quickest(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, Any]:
    """The quickest way to make this call, whose tensors may be meta tensors."""
    first_is_tensor = bool(args) and isinstance(args[0], torch.Tensor)
    wanted = _complete(overload, args, kwargs)
    for kind, what in candidates(overload, first_is_tensor):
        call: Callable[..., Any] = getattr(args[0], what) if kind == "method" else what
        given = args[1:] if kind == "method" else args
        try:
            with torch.no_grad(), _Look():
                call(*given, **kwargs)
        except _Seen as seen:
            if seen.operator is overload and _same(_complete(overload, seen.args_seen, seen.kwargs_seen), wanted):
                return kind, what
        except (TypeError, RuntimeError, ValueError, NotImplementedError):
            continue
    return "function", overload


def _complete(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments in the schema's order, defaults included."""
    complete = []
    for index, argument in enumerate(overload._schema.arguments):
        if index < len(args) and not argument.kwarg_only:
            complete.append(args[index])
        else:
            complete.append(kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None))
    return complete


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other
