"""`tightfit.compile`: a model whose forward and backward pass stay within a budget of bytes, in whatever loop.

Invariant: the model is changed in place and stays what it was: its class, its parameters, the keys of its state. A call
that no plan ran is an exception: nothing falls back to PyTorch's own execution silently.
"""

from __future__ import annotations

import logging
import traceback
import weakref
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch._dynamo import exc
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..errors import CompileError, OptionError, TightfitError
from .backend import Backend
from .execution import Plan, Step
from .optimizer_state import state_bytes
from .settings import Settings, budget as budget_of, size

Module = TypeVar("Module", bound=nn.Module)

# How many shapes, modes and types of batches a model may be compiled for.
_SHAPES = 64


def compile(
    model: Module,
    budget: int | str,
    *,
    optimizer: torch.optim.Optimizer | type | str | None = None,
    differentiable_outputs: bool = False,
    loss_memory: int | str | None = None,
    deadline: float = 1.0,
) -> Module:
    """Makes each forward and backward pass of `model` stay within `budget` bytes, and returns the model.

    `budget` is an `int`, text such as `"6GiB"`, or `"min"` for the smallest that the planner reaches. It counts what the
    model's device holds during a step: parameters, buffers, gradients, the batch, the optimizer's state, what is saved
    for the backward pass, and what operators take while they run. Memory that `optimizer.step()` takes for itself is not
    part of it, nor is what the loop holds that has nothing to do with this model.

    The first call with a new shape of batch, or in another mode, captures the model, measures its operators one by one,
    plans, and runs. Later calls run the plan. Gradients are those that PyTorch computes without this, bit for bit:
    what is computed again is computed by the same operators, with the same random numbers.

    `optimizer` is the optimizer, its class or its name: room is kept for its state before it exists. Without it the
    state counts from the first step on in which it is there.

    A model that returns a loss has its other outputs detached, which saves the memory of their gradients; with
    `differentiable_outputs=True` they are not. `loss_memory` is what a loss outside of the model takes between forward
    and backward pass; by default twice what the outputs that it reads take in 32 bits. `deadline` is how many seconds
    a plan may take to be found.

    Raises `OptionError` where an option makes no sense and `CompileError` where the model is compiled already. Calls of
    the model raise `InfeasibleBudget` where the budget is too small, with the proof, `CompileError` where the model
    cannot be captured as one graph, and `BudgetExceeded` where the loop holds what leaves too little.
    """
    if not isinstance(model, nn.Module):
        raise OptionError(f"{type(model).__name__} is no torch.nn.Module; give the model itself")
    if isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None:
        raise CompileError("the model is compiled already; give tightfit.compile a model as it was built, and leave "
                           "torch.compile, model.compile and torch_compile=True out")
    if not isinstance(deadline, (int, float)) or not 0 < deadline < float("inf"):
        raise OptionError(f"deadline={deadline!r} is no time; write a number of seconds such as 1.0")
    memory = None if loss_memory is None else size(loss_memory, "loss_memory")
    settings = Settings(budget_of(budget), float(deadline), differentiable_outputs, memory)
    backend = Backend(settings, model, type(model).__name__)
    if optimizer is not None:
        backend.ledger.reserved = state_bytes(optimizer, model.parameters())
    model.compile(backend=backend, dynamic=False, fullgraph=True)
    model._compiled_call_impl = Call(model._compiled_call_impl, backend)
    _Watch.over(model, backend)
    return model


@dataclass(frozen=True)
class PlanInfo:
    """One plan of a compiled model.

    `peak` are the most bytes that a step holds under it, all that the budget counts included, and `unplanned_peak` the
    same with nothing computed again; `seconds` and `unplanned_seconds` are predicted from measured calls, and no plan
    within the budget takes less than `bound_seconds` (`None` where nothing is proven). `recomputed` is how many calls
    run again. `batch` are the shapes of the batch, `accumulates` says that gradients were there when the step began,
    `trains` that there is a backward pass, and `unmeasured` names the operators that could not be measured, so that what
    they take while they run is not known.
    """

    budget: int | None
    peak: int
    unplanned_peak: int
    seconds: float
    unplanned_seconds: float
    bound_seconds: float | None
    recomputed: int
    batch: list[list[int]]
    accumulates: bool
    trains: bool
    unmeasured: list[str]


def plans(model: nn.Module) -> list[PlanInfo]:
    """The plans that a compiled model has made so far, in their order."""
    call = model._compiled_call_impl
    if not isinstance(call, Call):
        raise CompileError("the model was not compiled by tightfit.compile")
    return [info(step, plan) for step in call.backend.steps for plan in step.made]


def info(step: Step, plan: Plan) -> PlanInfo:
    """What is to be said of a plan."""
    held = plan.held
    return PlanInfo(
        step.settings.budget, held.peak + plan.beside, held.unplanned_peak + plan.beside, held.seconds,
        held.unplanned_seconds, held.bound_seconds, held.recomputed, step.batch(), bool(plan.accumulated),
        step.joint.has_backward, sorted(step.refused),
    )


class Call:
    """A call of a compiled model."""

    def __init__(self, compiled: Any, backend: Backend) -> None:
        self.compiled = compiled
        self.backend = backend
        ignored = {getattr(logging.Logger, name) for name in dir(logging.Logger)
                   if name in ("debug", "info", "warning", "warn", "error", "exception", "critical", "log",
                               "warning_once", "info_once", "warning_advice")}
        self.options = torch._dynamo.config.patch(
            recompile_limit=_SHAPES, accumulated_recompile_limit=4 * _SHAPES, optimize_ddp=False,
            ignore_logging_functions=ignored | set(torch._dynamo.config.ignore_logging_functions),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = self.backend.calls
        try:
            with self.options:
                result = self.compiled(*args, **kwargs)
        except exc.TorchDynamoException as error:
            raise _translated(error) from None
        if self.backend.calls == before:
            raise CompileError("PyTorch ran this call without the plan; the result was thrown away. Call the model itself, "
                               "outside of torch.compile and of torch.compiler.disable")
        return result


def _translated(error: exc.TorchDynamoException) -> TightfitError:
    """The exception for what Dynamo says."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, TightfitError):
        return inner
    said = [line.strip() for line in str(inner or error).splitlines() if line.strip()]
    reason = said[0] if said else type(error).__name__
    hint = next((line.removeprefix("Explanation:").strip() for line in said if line.startswith("Explanation:")), "")
    if isinstance(error, (exc.RecompileLimitExceeded, exc.FailOnRecompileLimitHit)):
        return CompileError(f"the model was called with more than {_SHAPES} kinds of batches, each of which needs a plan of its "
                            "own; pad batches to a few lengths")
    return CompileError(
        f"the model cannot be captured as one graph: {reason}{_place(error)}. {hint + ' ' if hint else ''}Make that part "
        "of the forward free of control flow that depends on the contents of tensors, and of calls that leave PyTorch; "
        "recurrent layers (LSTM, GRU) are not supported"
    )


def _place(error: exc.TorchDynamoException) -> str:
    stack = getattr(error, "real_stack", None)
    if not stack:
        return ""
    frame: traceback.FrameSummary = stack[-1]
    return f", at {frame.filename}:{frame.lineno} in {frame.name}"


class _Watch:
    """Counts the state of optimizers once it is there."""

    models: weakref.WeakKeyDictionary[nn.Module, Backend] = weakref.WeakKeyDictionary()
    handle: Any = None
    counted: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @classmethod
    def over(cls, model: nn.Module, backend: Backend) -> None:
        """Watches what optimizers keep for a model."""
        cls.models[model] = backend
        if cls.handle is None:
            cls.handle = register_optimizer_step_post_hook(cls.stepped)

    @classmethod
    def stepped(cls, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer has made a step: its state is there."""
        entries = len(optimizer.state)
        if cls.counted.get(optimizer) == entries:
            return
        cls.counted[optimizer] = entries
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model, backend in list(cls.models.items()):
            own = [parameter for parameter in model.parameters() if id(parameter) in trained]
            if own:
                backend.ledger.states[optimizer] = state_bytes(optimizer, own)
