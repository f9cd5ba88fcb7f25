"""The optimizers a step can end with: their options, state and graph operator, and its implementation in PyTorch.

Invariant: `args` of an optimizer node are the parameter, its gradient, then the states in the order of `states`; the
learning rate is not part of the node, since the run gives it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import nn

from .errors import ExportError
from .torch_optimizer import described

_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    "sgd": {"momentum": 0.0, "weight_decay": 0.0},
}
_LEARNING_RATES = {"adamw": 1e-3, "sgd": 1e-2}


@dataclass(frozen=True)
class Optimizer:
    """One optimizer with its options resolved; `groups` are those of parameters that have options of their own."""

    kind: str
    options: dict[str, Any]
    learning_rate: float
    groups: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def operator(self) -> str:
        return f"tightfit.{self.kind}"

    def options_of(self, fqn: str) -> dict[str, Any]:
        """The options of one parameter's update."""
        return self.groups.get(fqn, self.options)

    def states_of(self, fqn: str) -> list[str]:
        """Names of the state tensors kept for a parameter, each of the parameter's shape."""
        if self.kind == "adamw":
            return ["exp_avg", "exp_avg_sq"]
        return ["momentum"] if self.options_of(fqn)["momentum"] else []


def resolve(optimizer: Any, learning_rate: float | None, model: nn.Module, *, execute: bool) -> Optimizer | None:
    """Reads `"adamw"`, `{"kind": "adamw", "weight_decay": 0.1, …}`, an optimizer of `torch.optim` or its class, or
    `None` (gradients become outputs)."""
    if optimizer is None:
        return None
    groups: dict[str, dict[str, Any]] = {}
    if isinstance(optimizer, str):
        given: dict[str, Any] = {"kind": optimizer}
    elif isinstance(optimizer, Mapping):
        given = dict(optimizer)
    else:
        found = described(optimizer, model, learning_rate, execute=execute)
        given, groups = {"kind": found.kind} | found.options, found.groups
        learning_rate = found.learning_rate if learning_rate is None else learning_rate
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        raise ExportError(f"optimizer {kind!r} is not known; use one of {', '.join(sorted(_DEFAULTS))} or None")
    rate = _LEARNING_RATES[kind] if learning_rate is None else _number("learning_rate", learning_rate)
    if execute and not 0.0 < rate < math.inf:
        raise ExportError(f"learning_rate is {rate}; it must be positive and finite")
    own = {fqn: _options(kind, options) for fqn, options in groups.items()}
    return Optimizer(kind, _options(kind, given), rate, own)


def _options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(map(str, set(given) - set(_DEFAULTS[kind])))
    if unknown:
        raise ExportError(f"optimizer {kind!r} has no option {unknown[0]!r}; it has {', '.join(_DEFAULTS[kind])}")
    options = {key: given.get(key, default) for key, default in _DEFAULTS[kind].items()}
    for key, value in options.items():
        if key == "betas":
            if not isinstance(value, (list, tuple)) or len(value) != 2:
                raise ExportError(f"betas are {value!r}; give two numbers from 0 to below 1")
            options[key] = [_number(key, beta) for beta in value]
            if not all(0.0 <= beta < 1.0 for beta in options[key]):
                raise ExportError(f"betas are {options[key]}; both lie from 0 to below 1")
        elif not 0.0 <= _number(key, value) < math.inf:
            raise ExportError(f"{key} is {value}; it must be finite and not negative")
    return options


def _number(name: str, value: Any) -> float:
    is_one = isinstance(value, torch.Tensor) and value.numel() == 1
    if isinstance(value, bool) or not (is_one or isinstance(value, Real)):
        raise ExportError(f"{name} is {value!r}; give a number")
    return float(value)


def adamw(learning_rate: float, step: int, parameter: torch.Tensor, gradient: torch.Tensor, exp_avg: torch.Tensor,
          exp_avg_sq: torch.Tensor, *, betas: list[float], eps: float, weight_decay: float) -> list[torch.Tensor]:
    """`tightfit.adamw` by PyTorch's fused kernel, which makes no tensor of its own; the first step is 1."""
    count = torch.full((), float(step), device=parameter.device)
    torch._fused_adamw_([parameter], [gradient], [exp_avg], [exp_avg_sq], [], [count], lr=learning_rate, beta1=betas[0],
                        beta2=betas[1], weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=False)
    return [parameter, exp_avg, exp_avg_sq]


def sgd(learning_rate: float, step: int, parameter: torch.Tensor, gradient: torch.Tensor, *momentum_buffer: torch.Tensor,
        momentum: float, weight_decay: float) -> list[torch.Tensor]:
    """`tightfit.sgd` by PyTorch's fused kernel; a momentum buffer starts at zero."""
    torch._fused_sgd_([parameter], [gradient], list(momentum_buffer), weight_decay=weight_decay, momentum=momentum,
                      lr=learning_rate, dampening=0.0, nesterov=False, maximize=False, is_first_step=False)
    return [parameter, *momentum_buffer]
