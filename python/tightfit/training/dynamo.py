"""The settings for Dynamo, and the translation of its errors.

Invariant: a model is captured as one graph, with fixed shapes except for what is marked, or an exception says why not;
Dynamo's own settings are afterwards what they were before.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import os
import re
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo import exc
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..errors import CompileError, TightfitError

# Number of shapes, modes and types of batches that a model may be compiled for.
_SHAPES = 256
# What Dynamo raises when there are more, in different releases of PyTorch.
_TOO_MANY = ("FailOnRecompileLimitHit", "RecompileLimitExceeded")
# Models warn and log while they run; captured graphs need not.
_LOGGING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log", "warning_once", "info_once",
            "warning_advice")

# Releases before 2.13 do not check parameters again while their module's dictionary is unchanged, and so miss that one
# was frozen or unfrozen.
_LOOKS_AGAIN = {"skip_tensor_guards_with_matching_dict_tags": False} if torch.__version__ < (2, 13) else {}

# Patterns in Dynamo's messages, and what to say instead of such a message; the first match counts.
_KNOWN = (
    ("RNN, GRU, or LSTM", "the model calls a recurrent layer (RNN, GRU, LSTM){place}, and those are not supported. Write its "
                          "recurrence as a loop of operators, or train it without tightfit"),
    ("Module-level backwards hooks", "the model cannot be captured as one graph{place}: a module inside it has a full backward hook, "
                                     "and such hooks run on the model as a whole alone. Register it there, or hook tensors or "
                                     "parameters (`register_hook`)"),
    ("Unsupported functorch tracing", "the model is called under a transform of torch.func (grad, vmap, jvp, …), which captures it once more. Call the "
                  "model as usual, and `backward()`; or apply torch.func to a copy that was not compiled"),
    (r"random_value_|Random\.random", "the model's control flow depends on Python's random numbers{place}, and a captured graph takes "
                                       "one branch. Draw the number in the loop and pass it as an argument of the model, or choose with "
                                       "torch.where"),
    ("tracing tensors with a grad_fn", "the model cannot be captured as one graph{place}: it reads the `grad_fn` of a tensor, as "
                                       "hooks of `register_backward_hook` on a module inside it do. Hook tensors or parameters "
                                       "(`register_hook`), or the model as a whole (`register_full_backward_hook`)"),
    ("operator `print`", "the model cannot be captured as one graph{place}: it prints, and a captured graph runs no such code. Print "
                         "outside of the model, or leave it out"),
    (r"\(_numpy/", "the model computes with NumPy{place}, and a plan needs to know such numbers before. Draw or compute them in the loop "
                "and pass them as arguments of the model, or write them with torch"),
    ("data-dependent", "the model cannot be captured as one graph{place}: its control flow depends on the contents of a tensor. "
                       "Compute both ways and choose with torch.where, or compute that part outside of the model"),
)
# Operators that run one of several graphs, or a graph several times.
_BRANCHES = ("cond", "while_loop", "scan", "map_impl", "associative_scan")
# The logger that logs, with a traceback, errors that are raised as well.
_FAKES = logging.getLogger("torch._subclasses.fake_tensor")
_TORCH = os.path.dirname(torch.__file__) + os.sep

# What Dynamo says if a call bypassed it.
NOTHING = "found no compiled frames"
FAILURES = (exc.TorchDynamoException, exc.FailOnRecompileLimitHit)


class _Ignored(set[Any]):
    """Logging functions that Dynamo ignores. Copies are their names: PyTorch before 2.13 sorts its settings and writes
    them down as JSON, for its own records, and logs an exception if it cannot."""

    def __deepcopy__(self, _: dict[int, Any]) -> list[str]:
        return sorted(getattr(function, "__qualname__", repr(function)) for function in self)


class Capturing:
    """Dynamo's settings while a model may be captured; a context that may be entered repeatedly."""

    def __init__(self) -> None:
        self.settings = self._patched(varies=False)
        self.varies = False
        self.was_silent = False

    def vary(self, *, varies: bool) -> None:
        """Whether integers that were seen to change, as arguments or attributes, are captured as sizes are."""
        self.settings, self.varies = self._patched(varies=varies), varies

    @staticmethod
    def _patched(*, varies: bool) -> Any:
        loggers = [getattr(logging.Logger, name) for name in _LOGGING if hasattr(logging.Logger, name)]
        return torch._dynamo.config.patch(
            recompile_limit=_SHAPES, accumulated_recompile_limit=4 * _SHAPES, optimize_ddp=False,
            assume_static_by_default=True, automatic_dynamic_shapes=varies, allow_unspec_int_on_nn_module=varies,
            specialize_float=True,
            ignore_logging_functions=_Ignored([*loggers, *torch._dynamo.config.ignore_logging_functions]),
            **_LOOKS_AGAIN,
        )

    def __enter__(self) -> None:
        self.settings.__enter__()
        self.was_silent, _FAKES.disabled = _FAKES.disabled, True

    def __exit__(self, *raised: object) -> None:
        _FAKES.disabled = self.was_silent
        self.settings.__exit__(*raised)


def isolated() -> dict[str, bool]:
    """The option that gives models of one class separate limits on shapes, if PyTorch has it."""
    known = inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


def frame(model: nn.Module) -> Callable[..., Any]:
    """A call of a model, written so that Dynamo captures it: releases before 2.14 do not enter a forward that is
    PyTorch's own, such as that of `nn.Sequential`, except from a function that is not."""
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self._call_impl(*args, **kwargs)

    code = getattr(model.forward, "__code__", None)
    is_torchs = code is not None and code.co_filename.startswith(_TORCH)
    return types.MethodType(call, model) if is_torchs and torch.__version__ < (2, 14) else model._call_impl


def translated(error: Exception) -> TightfitError:
    """Translates an exception of Dynamo's."""
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
    if (own := _own(text, error)) is not None:
        return own
    known = next((says for words, says in _KNOWN if re.search(words, text)), None)
    if known is not None:
        return CompileError(known.format(place=_place(error)))
    explanations = (line.removeprefix("Explanation:").strip(" .") for line in said if line.startswith("Explanation:"))
    explained = next(filter(None, explanations), reason)
    return CompileError(f"the model cannot be captured as one graph{_place(error)}: {explained}. Leave what PyTorch cannot "
                        "capture out of the forward: calls that leave PyTorch, and control flow that depends on what tensors hold")


def _own(text: str, error: Exception) -> CompileError | None:
    """The exception for one that the model's own code raises. Dynamo has only the text of that one, which becomes the
    cause if it is a built-in exception with plain arguments."""
    # Releases before 2.13 include the name of the class that wraps an exception's arguments.
    plain = re.sub(r"\[(ConstantVariable\(.*\))\]", r"\1", text)
    plain = re.sub(r"ConstantVariable\((\w+): (.*?)\)", r"\2", plain)
    raised = re.search(r"raised exception (\w+)(\(.*\))", plain)
    if raised and "Observed exception" in text:
        said, cause = raised[1] + raised[2], _rebuilt(raised[1], raised[2])
    elif "assertion failed" in text and "ConstantVariable" in text:
        said, cause = f"`{_line(error)}` does not hold", AssertionError(_line(error))
    else:
        return None
    failure = CompileError(f"the model's forward raises an exception on this batch{_place(error)}: {said}. Give the batch that it "
                           "expects, or mend the forward")
    failure.__cause__ = cause
    return failure


def _rebuilt(name: str, arguments: str) -> Exception | None:
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    try:
        given = ast.literal_eval(arguments.removesuffix(")") + ("" if arguments == "()" else ",") + ")")
        return kind(*given)
    except (ValueError, SyntaxError, TypeError):
        return None


def uncaptured() -> CompileError:
    """The exception for a call of which Dynamo captured nothing."""
    if _get_current_dispatch_mode_stack():
        return CompileError("a mode for dispatched operators is active (a FLOP counter, a TorchDispatchMode, saved tensors that "
                            "may be changed), and PyTorch captures nothing there; call the model outside of it")
    return CompileError("PyTorch captures nothing of this model: its forward is PyTorch's own code, which this release does not "
                        "capture by itself; give a module of yours that calls it")


def _place(error: Exception) -> str:
    """The place in the model's own code where that was, if known."""
    frame = _frame(error)
    return "" if frame is None else _at(frame.filename, frame.lineno, frame.name)


def _line(error: Exception) -> str:
    frame = _frame(error)
    return "" if frame is None else frame.line or ""


def _frame(error: Exception) -> traceback.FrameSummary | None:
    stack: list[traceback.FrameSummary] = list(getattr(error, "real_stack", None) or [])
    own = [frame for frame in stack if not frame.filename.startswith(_TORCH)]
    return next(iter((own or stack)[-1:]), None)


def _at(file: str, line: object, function: str) -> str:
    return f", at {file}:{line} in {function}"


def admit(module: fx.GraphModule) -> None:
    """Refuses a graph whose sizes or branches are known only at run time."""
    for node in module.graph.nodes:
        if getattr(node.target, "__name__", "") in _BRANCHES and isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CompileError(f"the model calls torch.{node.target.__name__}{_place_of(node)}, and what runs there is known only "
                               "while it runs. Compute both ways and choose with torch.where, or call it outside of the model")
        if free_unbacked_symbols(node.meta.get("example_value")):
            called = getattr(node.target, "__name__", str(node.target))
            raise CompileError(f"the model reads what a tensor holds (`{called}`{_place_of(node)}), and a plan needs to know all "
                               "sizes and numbers before. Keep numbers as tensors, choose elements with torch.where or by "
                               "multiplying with a mask, and call `.item()` outside of the model")


def _place_of(node: fx.Node) -> str:
    """The place in the model's own code where a node of a captured graph was made, if known."""
    frames = re.findall(r'File "(.+)", line (\d+), in (\S+)', node.stack_trace or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    return _at(*own[-1]) if own else ""
