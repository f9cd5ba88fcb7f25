"""The quickest way to call an operator from Python: PyTorch's functions and methods take half the time of `torch.ops`.

Invariant: the chosen way was observed to call the same operator with the same arguments; observing it computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Way:
    """A way to call an operator: a method of its first argument, by its name, or a function.

    PyTorch parses numbers more quickly than a list of them. `lists` says what becomes of a list of numbers after the
    first argument: it stays a list (`"kept"`), its numbers become arguments (`"spread"`), or its only number does
    (`"number"`).
    """

    method: str | None = None
    function: Callable[..., Any] | None = None
    lists: str = "kept"

    def given(self, args: Sequence[Any]) -> list[Any]:
        """The arguments as they are passed, the first one included."""
        if self.lists == "kept":
            return list(args)
        return [args[0], *args[1], *args[2:]]

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the operator."""
        given = self.given(args)
        if self.method is not None:
            return getattr(given[0], self.method)(*given[1:], **kwargs)
        return self.function(*given, **kwargs)


class _Seen(Exception):
    """Carries a call out of the dispatcher before anything is computed."""

    def __init__(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.operator, self.args_seen, self.kwargs_seen = operator, args, kwargs


class _Look(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Seen(func, args, kwargs or {})


def candidates(overload: torch._ops.OpOverload, args: Sequence[Any]) -> list[Way]:
    """Ways to call an operator, the quickest first."""
    name = overload._schema.name.removeprefix("aten::")
    if not overload._schema.name.startswith("aten::"):
        return []
    found = []
    is_method = isinstance(getattr(torch.Tensor, name, None), type(torch.Tensor.view))
    if args and isinstance(args[0], torch.Tensor) and is_method:
        if len(args) > 1 and isinstance(args[1], list) and args[1] and all(isinstance(one, int) and not isinstance(one, bool) for one in args[1]):
            if len(args) == 2:
                found.append(Way(method=name, lists="spread"))
            elif len(args[1]) == 1:
                found.append(Way(method=name, lists="number"))
        found.append(Way(method=name))
    for namespace in (torch._C._VariableFunctions, torch._C._nn):
        function = getattr(namespace, name, None)
        if function is not None:
            found.append(Way(function=function))
    return found


def quickest(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Way:
    """The quickest way to make this call, whose tensors may be meta tensors."""
    wanted = _complete(overload, args, kwargs)
    for way in candidates(overload, args):
        try:
            with torch.no_grad(), _Look():
                way.call(args, kwargs)
        except _Seen as seen:
            if seen.operator is overload and _same(_complete(overload, seen.args_seen, seen.kwargs_seen), wanted):
                return way
        except (TypeError, RuntimeError, ValueError, NotImplementedError):
            continue
    # The function that `torch.ops` itself calls, without the Python frame around it.
    is_plain = type(overload) is torch._ops.OpOverload
    return Way(function=getattr(overload, "_op", overload) if is_plain else overload)


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
