"""The optimizers a step can end with: their options, the state they keep and their graph operator.

Invariant: `args` of an optimizer node are the parameter, its gradient, then the states in the order of `states`; the
learning rate is not part of the node, since the run gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
