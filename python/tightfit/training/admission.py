"""Which models are accepted: as they were built, on one device.

Invariant: a refusal names what is refused and a way out; if parameters are sharded, also the line of the user's code
that passed the model.
"""

from __future__ import annotations

import os
import sys
import traceback
from itertools import chain
from typing import Any

import torch
from torch import nn

from ..errors import CompileError, OptionError

_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep


def as_built(model: Any, function: str) -> None:
    """Refuses what `function` cannot take: something that is not a model (`OptionError`), or a model that was compiled
    or sharded (`CompileError`)."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"{type(model).__name__} is no torch.nn.Module; give the model itself")
    if isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None:
        raise CompileError(f"the model is compiled already; give {function} a model as it was built, and leave "
                           "torch.compile, model.compile and torch_compile=True out")
    unsharded(model, function)


def unsharded(model: nn.Module, function: str) -> None:
    """Refuses a model whose parameters FSDP shards, inside of it or around it."""
    sharded, modules = sys.modules.get("torch.distributed.fsdp"), list(model.modules())
    kinds = (("FSDPModule", "FSDP2 (fully_shard)"), ("FullyShardedDataParallel", "FSDP"))
    inside = (call for kind, call in kinds if any(isinstance(module, getattr(sharded, kind, ())) for module in modules))
    # FSDP marks the modules that it wraps.
    around = ("FSDP" for module in modules if getattr(module, "_is_fsdp_managed_module", False))
    if (call := next(chain(inside, around), None)) is not None:
        raise CompileError(
            f"{call} shards the parameters of {type(model).__name__}{_given()}, and a plan is for parameters that are whole. "
            f"Give {function} the model without it, and DistributedDataParallel around that; or let "
            "tightfit.distributed shard the stages of a pipeline, by a mesh with the dimensions \"dp\" and \"pp\"")


def _given() -> str:
    """The place in the caller's code that passed the model, if it is known."""
    frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(_OWN)
              and not frame.filename.startswith(os.path.dirname(torch.__file__) + os.sep)]
    return f", at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
