"""What is asked of Dynamo, and what it says when it cannot.

Invariant: a model is captured as one graph with the shapes that it has, or an exception says why not; Dynamo's own settings
are afterwards what they were before.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
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

# What it says of recurrent layers, and of branches that it cannot follow.
_RECURRENT = "RNN, GRU, or LSTM"
_DATA_DEPENDENT = "data-dependent"
# Logs with a traceback what is raised as well.
_FAKES = logging.getLogger("torch._subclasses.fake_tensor")
_TORCH = os.path.dirname(torch.__file__) + os.sep

# What it says where a call went by without it.
NOTHING = "found no compiled frames"
FAILURES = (exc.TorchDynamoException, exc.FailOnRecompileLimitHit)


class _Ignored(set[Any]):
    """Functions of logging that are passed over. Copies are their names: PyTorch before 2.13 sorts its settings and writes
    them down as JSON, for its own records, and logs an exception where it cannot."""

    def __deepcopy__(self, _: dict[int, Any]) -> list[str]:
        return sorted(getattr(function, "__qualname__", repr(function)) for function in self)


class Capturing:
    """Dynamo's settings while a model may be captured; a context that may be entered again and again."""

    def __init__(self) -> None:
        loggers = [getattr(logging.Logger, name) for name in _LOGGING if hasattr(logging.Logger, name)]
        self.settings = torch._dynamo.config.patch(
            recompile_limit=_SHAPES, accumulated_recompile_limit=4 * _SHAPES, optimize_ddp=False,
            ignore_logging_functions=_Ignored([*loggers, *torch._dynamo.config.ignore_logging_functions]),
        )
        self.was_silent = False

    def __enter__(self) -> None:
        self.settings.__enter__()
        self.was_silent, _FAKES.disabled = _FAKES.disabled, True

    def __exit__(self, *raised: object) -> None:
        _FAKES.disabled = self.was_silent
        self.settings.__exit__(*raised)


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
    text = str(inner or error)
    said = [line.strip() for line in text.splitlines() if line.strip()]
    reason = said[0].rstrip(".") if said else type(error).__name__
    if type(error).__name__ in _TOO_MANY:
        return CompileError(f"the model was called with more than {_SHAPES} kinds of batches, each of which needs a plan of its "
                            "own; pad batches to a few lengths, and make numbers that change from call to call tensors")
    if isinstance(error, exc.TorchRuntimeError):
        own = re.search(r"got (\w+)\((['\"])(.*)\2\)", text)
        cause = own[3].rstrip(".") if own else next((line for line in reversed(said) if "Error" in line), reason)
        return CompileError(f"the model's forward fails on this batch{_place(error)}: {cause}")
    if isinstance(error, exc.BackendCompilerFailed):
        return CompileError(f"compiling the model fails with {type(inner).__name__ if inner else 'this'}: {reason}")
    if _RECURRENT in text:
        return CompileError(f"the model calls a recurrent layer (RNN, GRU, LSTM){_place(error)}, and those are not supported. "
                            "Write its recurrence as a loop of operators, or train it without tightfit")
    if _DATA_DEPENDENT in text:
        return CompileError(f"the model cannot be captured as one graph{_place(error)}: its control flow depends on the contents "
                            "of a tensor. Compute both ways and choose with torch.where, or compute that part outside of the "
                            "model")
    explained = next((line.removeprefix("Explanation:").strip(" .") for line in said if line.startswith("Explanation:")), reason)
    return CompileError(f"the model cannot be captured as one graph{_place(error)}: {explained}. Leave what PyTorch cannot "
                        "capture out of the forward: calls that leave PyTorch, and control flow that depends on what tensors hold")


def uncaptured() -> CompileError:
    """The exception for a call of which Dynamo captured nothing."""
    if _get_current_dispatch_mode_stack():
        return CompileError("a mode for dispatched operators is active (a FLOP counter, a TorchDispatchMode, saved tensors that "
                            "may be changed), and PyTorch captures nothing there; call the model outside of it")
    return CompileError("PyTorch captures nothing of this model: its forward is PyTorch's own code, which this release does not "
                        "capture by itself; give a module of yours that calls it")


def _place(error: Exception) -> str:
    """Where in the model's own code that was, if that is known."""
    stack: list[traceback.FrameSummary] = list(getattr(error, "real_stack", None) or [])
    if not stack:
        return ""
    own = [frame for frame in stack if not frame.filename.startswith(_TORCH)]
    frame = (own or stack)[-1]
    return f", at {frame.filename}:{frame.lineno} in {frame.name}"
