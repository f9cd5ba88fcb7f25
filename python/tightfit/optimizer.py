"""The optimizers a step can end with: their options, the state they keep, their graph operator, and that by PyTorch.

Invariant: `args` of an optimizer node are the parameter, its gradient, then the states in the order of `states`; the
learning rate is not part of the node, since the run gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .errors import ExportError

_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    "sgd": {"momentum": 0.0, "weight_decay": 0.0},
}
_LEARNING_RATES = {"adamw": 1e-3, "sgd": 1e-2}


@dataclass(frozen=True)
class Optimizer:
    """One optimizer with its options resolved."""

    kind: str
    options: dict[str, Any]
    learning_rate: float

    @property
    def operator(self) -> str:
        return f"tightfit.{self.kind}"

    @property
    def states(self) -> list[str]:
        """Names of the state tensors kept per parameter, each of the parameter's shape."""
        if self.kind == "adamw":
            return ["exp_avg", "exp_avg_sq"]
        return ["momentum"] if self.options["momentum"] else []


def resolve(optimizer: str | dict[str, Any] | None, learning_rate: float | None) -> Optimizer | None:
    """Reads `"adamw"`, `{"kind": "adamw", "weight_decay": 0.1, …}` or `None` (gradients become outputs)."""
    if optimizer is None:
        return None
    given = {"kind": optimizer} if isinstance(optimizer, str) else dict(optimizer)
    kind = given.pop("kind", None)
    if kind not in _DEFAULTS:
        raise ExportError(f"optimizer {kind!r} is not known; use one of {', '.join(sorted(_DEFAULTS))} or None")
    unknown = sorted(set(given) - set(_DEFAULTS[kind]))
    if unknown:
        raise ExportError(f"optimizer {kind!r} has no option {unknown[0]!r}; it has {', '.join(_DEFAULTS[kind])}")
    options = {key: given.get(key, default) for key, default in _DEFAULTS[kind].items()}
    if "betas" in options:
        options["betas"] = [float(beta) for beta in options["betas"]]
    rate = _LEARNING_RATES[kind] if learning_rate is None else float(learning_rate)
    if not rate > 0.0:
        raise ExportError(f"learning_rate is {rate}; it must be positive")
    return Optimizer(kind, options, rate)


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
