"""Bytes of the state that optimizers keep: existing state, or what a class of optimizers will make.

Invariant: existing state is counted as it is; future state is reserved by PyTorch's own rules for the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..devices import kind_of
from ..errors import OptionError


def _adam(options: Mapping[str, Any]) -> int:
    return 3 if options.get("amsgrad") else 2


def _rmsprop(options: Mapping[str, Any]) -> int:
    return 1 + bool(options.get("momentum")) + bool(options.get("centered"))


# Number of copies of a parameter in its state, by the class's name and the options of its group (torch.optim, 2.15).
_COPIES: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "adadelta": lambda options: 2,
    "adagrad": lambda options: 1,
    "adam": _adam,
    "adamax": lambda options: 2,
    "adamw": _adam,
    "asgd": lambda options: 1,
    "lbfgs": lambda options: 2 * int(options.get("history_size", 100)) + 5,
    "muon": lambda options: 1,
    "nadam": lambda options: 2,
    "radam": lambda options: 2,
    "rmsprop": _rmsprop,
    "rprop": lambda options: 2,
    "sgd": lambda options: 1 if options.get("momentum") else 0,
    "sparseadam": lambda options: 2,
}

# Optimizers that keep one state for all parameters, under the first of them.
_OF_ALL = ("lbfgs",)

# Bytes of the step count that a parameter's state has besides its copies.
_STEP = 8


def state_bytes(optimizer: Any, parameters: Iterable[torch.Tensor]) -> int:
    """Bytes of the state of an optimizer for these parameters on their device.

    `optimizer` is an optimizer, its class, or the name of one of PyTorch's classes. For an optimizer of another class
    only existing state counts. Raises `OptionError`.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if isinstance(optimizer, torch.optim.Optimizer):
        return _of_instance(optimizer, trained)
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", "")
    copies = _COPIES.get(name.lower())
    if copies is None:
        raise OptionError(f"optimizer={optimizer!r} is no optimizer of PyTorch's; give the optimizer itself, its class, or "
                          f"one of {', '.join(sorted(_COPIES))}")
    return sum(copies({}) * _size(parameter) + kind_of(parameter.device).block(_STEP) for parameter in trained)


def _of_instance(optimizer: torch.optim.Optimizer, trained: list[torch.Tensor]) -> int:
    wanted = {id(parameter) for parameter in trained}
    name = type(optimizer).__name__.lower()
    copies = _COPIES.get(name, lambda options: 0)
    if name in _OF_ALL:
        return _of_all(optimizer, trained, copies)
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in wanted:
                continue
            state = optimizer.state.get(parameter)
            if state:
                total += sum(_size(item) for item in _tensors(state) if item.device == parameter.device)
            else:
                total += copies(group) * _size(parameter) + kind_of(parameter.device).block(_STEP)
    return total


def _of_all(optimizer: torch.optim.Optimizer, trained: list[torch.Tensor], copies: Callable[[Mapping[str, Any]], int]) -> int:
    """The size that a state for all parameters together grows to."""
    wanted, devices = {id(parameter) for parameter in trained}, {parameter.device for parameter in trained}
    there = sum(_size(tensor) for tensor in _tensors(optimizer.state) if tensor.device in devices)
    coming = sum(copies(group) * _size(parameter) + kind_of(parameter.device).block(_STEP)
                 for group in optimizer.param_groups for parameter in group["params"] if id(parameter) in wanted)
    return max(there, coming)


def _tensors(item: Any) -> Iterable[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, Mapping):
        for inner in item.values():
            yield from _tensors(inner)
    elif isinstance(item, (list, tuple)):
        for inner in item:
            yield from _tensors(inner)


def _size(tensor: torch.Tensor) -> int:
    return kind_of(tensor.device).block(tensor.untyped_storage().nbytes())
