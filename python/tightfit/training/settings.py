"""The user's settings for a model's training: the budget, and what it counts.

Invariant: every value was checked; sizes are bytes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import fx

from .. import _native
from ..errors import OptionError
from ..given import flag

# The most seconds that a search for a plan may be given, as in the program.
_MOST_SECONDS = 1e9
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
          "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Settings:
    """A budget in bytes (`None`: as few as possible) and the options of `tightfit.compile`."""

    budget: int | None
    deadline: float = 1.0
    differentiable_outputs: bool = False
    loss_memory: int | None = None
    fused: bool = False
    addresses: bool = False
    offload: int | None = None
    planner: str = "auto"


def differentiated(joint: Any) -> int:
    """Bytes, at least 4 per element, of the outputs that a loss outside of the model may differentiate."""
    return sum(tangent.meta["val"].numel() * max(4, tangent.meta["val"].element_size()) for tangent in joint.tangents
               if isinstance(tangent, fx.Node) and tangent.meta["val"].numel() > 1)


def settings(budget: Any, *, differentiable_outputs: bool = False, loss_memory: Any = None,
             deadline: Any = 1.0, fused: Any = False, addresses: Any = False, offload: Any = None,
             planner: Any = "auto") -> Settings:
    """Settings from the user's arguments. Raises `OptionError`."""
    for name, option in (("differentiable_outputs", differentiable_outputs), ("fused", fused), ("addresses", addresses)):
        flag(option, name)
    if fused and addresses:
        raise OptionError("fused=True leaves order and memory to Inductor, and addresses=True plans both; give one of them")
    below = None if offload is None else size(offload, "offload")
    for name, option in (("fused", fused), ("addresses", addresses)):
        if below is not None and option:
            raise OptionError(f"{name}=True and offload={offload!r} do not go together: what moves has neither Inductor's code nor "
                              "an address of its own; give one of them")
    known = planner_named(planner)
    if below is not None and known != "auto":
        raise OptionError(f"planner={planner!r} moves nothing, so it does not go with offload={offload!r}; give one of them")
    memory = None if loss_memory is None else size(loss_memory, "loss_memory")
    return Settings(budget_bytes(budget), seconds(deadline), differentiable_outputs, memory, fused, addresses,
                    below, known)


def planner_named(given: Any) -> str:
    """The name of a planner, which the compiled package knows."""
    if not isinstance(given, str):
        raise OptionError(f"planner={given!r} is no name of a planner; write one such as \"auto\" or \"sac\"")
    return _native.planner(given)


def seconds(given: Any) -> float:
    """The seconds that the search for a plan may take."""
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 < given <= _MOST_SECONDS:
        raise OptionError(f"deadline={given!r} is no time; write a number of seconds such as 1.0, at most 1e9")
    return float(given)


def budget_bytes(given: Any) -> int | None:
    """A budget from the user's argument: an `int` of bytes, `"6GiB"`, `"2.5GB"`, or `"min"` (`None`)."""
    if isinstance(given, str) and given.strip().endswith("%"):
        raise OptionError(f"budget={given!r} is a share, and what it is a share of is known only once the step was captured; "
                          "write an int of bytes, text such as \"6GiB\" or \"2.5GB\", or \"min\" for the smallest")
    if given == "min":
        return None
    budget = size(given, "budget", or_else=", or \"min\"")
    if budget == 0:
        raise OptionError(f"budget={given!r} has no room for anything; write the bytes that a step may hold, or \"min\" for the smallest")
    return budget


def size(given: Any, name: str, *, or_else: str = "") -> int:
    """A number of bytes, from an `int` or text with a unit."""
    advice = f"{name}={given!r} is no number of bytes; write an int, or text such as \"6GiB\" or \"2.5GB\"{or_else}"
    if isinstance(given, Integral) and not isinstance(given, bool):
        # Accepts NumPy's integers, too.
        given = int(given)
        number, unit = float(given), ""
    elif not isinstance(given, str):
        raise OptionError(advice)
    else:
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", given)
        if found is None or found[2].upper() not in _UNITS:
            raise OptionError(advice)
        number, unit = float(found[1]), found[2].upper()
        if unit == "" and not number.is_integer():
            raise OptionError(advice)
    total = number * _UNITS[unit]
    if not math.isfinite(total) or not 0 <= total < 2**60:
        raise OptionError(f"{name}={given!r} is out of range; write between 0 and 2**60 bytes")
    return given if isinstance(given, int) else int(total)


def too_few(budget: int, needed: int) -> str:
    """The beginning of the refusal of a budget, if no schedule needs less than `needed` bytes."""
    if budget < needed:
        return f"{budget:,} bytes are too few for"
    return f"no plan within {budget:,} bytes was found, which does not prove that there is none, for"


def device_of(tensors: list[torch.Tensor]) -> torch.device:
    """The one device that tensors are on. Raises `OptionError` if they are on several, or none.

    A scalar on the processor may take part in what runs elsewhere.
    """
    devices = sorted({str(tensor.device) for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}
                     or {str(tensor.device) for tensor in tensors})
    if len(devices) != 1:
        raise OptionError(f"the model and its batch are on {' and '.join(devices) or 'no device'}; a budget is for one "
                          "device: move all of them there")
    return torch.device(devices[0])
