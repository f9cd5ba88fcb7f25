"""The user's settings for a model's training: what its budget counts, and how its steps run.

Invariant: every value was checked; sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import fx

from .. import _native
from ..errors import OptionError
from ..given import asked, flag, size

class Placement(Enum):
    """What gives the tensors of a step their places in the device's memory."""

    # PyTorch's allocator, when they are made.
    ALLOCATOR = auto()
    # The plan: each has an address in one slab.
    ADDRESSES = auto()
    # Inductor's code.
    INDUCTOR = auto()


class EvaluationMode(Enum):
    """How calls without gradients run."""

    PLANNED = "planned"
    EAGER = "eager"
    EAGER_WHERE_ROOM = "eager where there is room"


@dataclass(frozen=True)
class Offload:
    """Tensors are placed by PyTorch's allocator, and may be away in this many bytes of another memory."""

    size: int


@dataclass(frozen=True)
class Settings:
    """The options of `tightfit.compile`."""

    # Seconds that a search may take; `None`: a second of processor time.
    deadline: float | None = None
    differentiable_outputs: bool = False
    loss_memory: int | None = None
    placement: Placement | Offload = Placement.ALLOCATOR
    planner: str = "auto"
    # The ways to divide a step that are tried.
    ways: tuple[str, ...] = ("off",)
    # How calls without gradients run.
    evaluation: EvaluationMode = EvaluationMode.EAGER_WHERE_ROOM


def differentiated(joint: Any) -> int:
    """Bytes, at least 4 per element, of the outputs that a loss outside of the model may differentiate."""
    return sum(tangent.meta["val"].numel() * max(4, tangent.meta["val"].element_size()) for tangent in joint.tangents
               if isinstance(tangent, fx.Node) and tangent.meta["val"].numel() > 1)


def settings(*, differentiable_outputs: bool = False, loss_memory: Any = None,
             deadline: Any = None, fused: Any = False, addresses: Any = False, offload: Any = None,
             planner: Any = "auto", evaluation: Any = None, split: Any = "off", bits: Any = "equal") -> Settings:
    """Settings from the user's arguments. Raises `OptionError`."""
    flag(differentiable_outputs, "differentiable_outputs")
    placement = _placement(flag(fused, "fused"), flag(addresses, "addresses"), offload)
    known = planner_named(planner)
    if isinstance(placement, Offload) and known != "auto":
        raise OptionError(f"planner={planner!r} moves nothing, so it does not go with offload={offload!r}; give one of them")
    memory = None if loss_memory is None else size(loss_memory, "loss_memory")
    return Settings(deadline_of(deadline), differentiable_outputs, memory, placement, known, _ways(split, bits, placement, known),
                    _evaluation(evaluation, placement))


def _ways(split: Any, bits: Any, placement: Placement | Offload, planner: str) -> tuple[str, ...]:
    """The ways to divide a step that are tried; those that are asked for need a plan that can have them."""
    ways = parts_of(split, bits)
    can_be = placement is not Placement.INDUCTOR and planner == "auto"
    if can_be or ways == ("off",):
        return ways
    if split == "auto":
        return ("off",)
    what = "fused=True" if placement is Placement.INDUCTOR else f"planner={planner!r}"
    raise OptionError(f"split={split!r} does not go with {what}, which leaves the step as it is; give one of them")


def _placement(fused: bool, addresses: bool, offload: Any) -> Placement | Offload:
    """The setting that three options make, which exclude each other."""
    if fused and addresses:
        raise OptionError("fused=True leaves order and memory to Inductor, and addresses=True plans both; give one of them")
    if offload is not None and (fused or addresses):
        name = "fused" if fused else "addresses"
        raise OptionError(f"{name}=True and offload={offload!r} do not go together: what moves has neither Inductor's code nor "
                          "an address of its own; give one of them")
    if offload is not None:
        return Offload(size(offload, "offload"))
    return Placement.INDUCTOR if fused else Placement.ADDRESSES if addresses else Placement.ALLOCATOR


def _evaluation(given: Any, placement: Placement | Offload) -> EvaluationMode:
    """How calls without gradients run. What has addresses or Inductor's code cannot run eagerly."""
    needs_plans = placement in (Placement.ADDRESSES, Placement.INDUCTOR)
    if given is None:
        return EvaluationMode.PLANNED if needs_plans else EvaluationMode.EAGER_WHERE_ROOM
    if given not in ("eager", "planned"):
        raise OptionError(f"evaluation={given!r} is neither \"eager\", for calls without gradients that run as PyTorch runs them, "
                          "nor \"planned\"; without it, those run eagerly for which the budget has room")
    if given == "eager" and needs_plans:
        name = "fused" if placement is Placement.INDUCTOR else "addresses"
        raise OptionError(f"with {name}=True calls without gradients have plans, too, so evaluation=\"eager\" does not go with it; "
                          "give one of them")
    return EvaluationMode(given)


def planner_named(given: Any) -> str:
    """The name of a planner, which the compiled package knows."""
    if not isinstance(given, str):
        raise OptionError(f"planner={given!r} is no name of a planner; write one such as \"auto\" or \"sac\"")
    return _native.planner(given)


def parts_of(split: Any, bits: Any) -> tuple[str, ...]:
    """The ways to divide a step that are tried, for the options `split` and `bits`; `"off"` is the step as it is. Raises
    `OptionError`."""
    if bits not in ("equal", "any"):
        raise OptionError(f"bits={bits!r} is neither \"equal\", for chunks that change no bit of the results, nor \"any\", for "
                          "those that may change their last digits")
    if split == "auto":
        return ("off", "equal") if bits == "equal" else ("off", "16", "16:totals")
    if isinstance(split, bool) or not isinstance(split, (int, str)):
        raise OptionError(f"split={split!r} says not how a step is divided; give \"off\", \"auto\", a number of chunks, that and "
                          "\":totals\", or \"8+4\" for layers in chunks, too")
    try:
        return (asked(_native.parts, str(split)),)
    except OptionError as error:
        raise OptionError(f"split={split!r}: {error}, or \"auto\"") from None


def seconds(given: Any) -> float:
    """The seconds that the search for a plan may take: a number, or text such as `"500ms"`."""
    return asked(_native.seconds, given)


def deadline_of(given: Any) -> float | None:
    """The same where none need be given."""
    return None if given is None else seconds(given)


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
