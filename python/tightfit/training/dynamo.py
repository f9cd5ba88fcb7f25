"""What is asked of Dynamo, and what it says when it cannot.

Invariant: a model is captured as one graph with the shapes that it has, or an exception says why not; Dynamo's own settings
are afterwards what they were before.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import traceback
from typing import Any

import torch
from torch._dynamo import exc
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..errors import CompileError, TightfitError

# How many shapes, modes and types of batches a model may be compiled for.
_SHAPES = 256
# What Dynamo raises when there are more, by the releases of PyTorch.
_TOO_MANY = ("FailOnRecompileLimitHit", "RecompileLimitExceeded")
# Models warn and log while they run; what is captured need not.
_LOGGING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log", "warning_once", "info_once",
            "warning_advice")

# What it says where a call went by without it.
NOTHING = "found no compiled frames"
FAILURES = (exc.TorchDynamoException, exc.FailOnRecompileLimitHit)


def capturing() -> contextlib.AbstractContextManager[Any]:
    """Dynamo's settings while a model may be captured; may be entered again and again."""
    ignored = {getattr(logging.Logger, name) for name in _LOGGING if hasattr(logging.Logger, name)}
    return torch._dynamo.config.patch(
        recompile_limit=_SHAPES, accumulated_recompile_limit=4 * _SHAPES, optimize_ddp=False,
        ignore_logging_functions=ignored | set(torch._dynamo.config.ignore_logging_functions),
    )


def isolated() -> dict[str, bool]:
    """The option by which models of one class do not share their limit of shapes, where PyTorch has it."""
    known = inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


def translated(error: Exception) -> TightfitError:
    """The exception for what Dynamo says."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(error, TightfitError):
        return error
    if isinstance(inner, TightfitError):
        return inner
    said = [line.strip() for line in str(inner or error).splitlines() if line.strip()]
    reason = said[0] if said else type(error).__name__
    hint = next((line.removeprefix("Explanation:").strip() for line in said if line.startswith("Explanation:")), "")
    if type(error).__name__ in _TOO_MANY:
        return CompileError(f"the model was called with more than {_SHAPES} kinds of batches, each of which needs a plan of its "
                            "own; pad batches to a few lengths, and make numbers that change from call to call tensors")
    if isinstance(error, exc.TorchRuntimeError):
        cause = next((line for line in reversed(said) if "Error" in line), reason)
        return CompileError(f"the model's forward fails on this batch: {cause}{_place(error)}")
    return CompileError(
        f"the model cannot be captured as one graph: {reason}{_place(error)}. {hint + ' ' if hint else ''}Make that part "
        "of the forward free of control flow that depends on the contents of tensors, and of calls that leave PyTorch; "
        "recurrent layers (LSTM, GRU) are not supported"
    )


def uncaptured() -> CompileError:
    """The exception for a call of which Dynamo captured nothing."""
    if _get_current_dispatch_mode_stack():
        return CompileError("a mode for dispatched operators is active (a FLOP counter, a TorchDispatchMode, saved tensors that "
                            "may be changed), and PyTorch captures nothing there; call the model outside of it")
    return CompileError("PyTorch captures nothing of this model: its forward is PyTorch's own code, which this release does not "
                        "capture by itself; give a module of yours that calls it")


def _place(error: Exception) -> str:
    stack = getattr(error, "real_stack", None)
    if not stack:
        return ""
    frame: traceback.FrameSummary = stack[-1]
    return f", at {frame.filename}:{frame.lineno} in {frame.name}"
