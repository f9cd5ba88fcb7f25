"""A model's training step captured, planned and explained without a run: `tightfit.capture_step`, `plan` and `explain`.

Invariant: the model is not called on real data, and does not change; operators are measured on made-up tensors if the
model is on a device, and predicted for a named machine if it is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .. import planning
from ..batch import listed
from ..errors import CompileError, InfeasibleBudget, OptionError
from ..given import flag, text
from ..memoryless import is_memoryless, made_fake
from .admission import as_built
from .backend import Backend
from .budget import Budget, budget_of
from .compiling import PlanInfo, info
from .costs import costed
from .dynamo import Capturing, translated
from .dividing import Division, predicted
from .execution import Plan, Step, lost
from .joint import document
from .marking import marked_along
from .optimizer_state import state_bytes
from .planned import held
from .settings import deadline_of, planner_named, settings, too_few


class _Captured(Exception):
    """Ends the call that would run a step."""


class _Studied(Step):
    """A step that is captured but not run."""

    runs_smaller = False

    def forward(self, arguments: list[Any]) -> list[Any]:
        self.ledger.find_unread(arguments[index] for index in self._inputs)
        raise _Captured


def capture_step(model: nn.Module, batch: Any, *, differentiable_outputs: bool = False,
                 loss_memory: int | str | None = None, measure: bool = True) -> dict[str, Any]:
    """The training step of `model` on a batch as a graph: tightfit-graph/1, as `fit`, `pareto`, `report` and the other
    functions for graphs take it.

    `batch` is a tuple of positional arguments, a dict of keyword arguments, or one tensor. Either the model computes
    its loss, or its outputs are differentiated. Model and batch may be on the meta device or fake: then nothing is
    measured, and planning needs a `machine`. The graph has forward and backward pass, holding what separate calls of
    PyTorch hold; optimizers are not part of it. Raises `CompileError` if the model cannot be captured as one graph.
    """
    flag(measure, "measure")
    step = _step(model, batch, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory)
    return _costed(step, model, measure=measure and _is_real(model, batch))


def plan(model: nn.Module, batch: Any, budget: int | str | Budget = "min", *, machine: str | None = None,
         optimizer: torch.optim.Optimizer | type | str | None = None, differentiable_outputs: bool = False,
         loss_memory: int | str | None = None, deadline: float | str | None = None, planner: str = "auto",
         split: int | str = "auto", bits: str = "equal") -> PlanInfo:
    """The plan that `tightfit.compile` would make for this batch, without running the model.

    `batch` is a tuple of positional arguments, a dict of keyword arguments, or one tensor.
    With `machine` (such as `"h100-80gb"`) times are predicted for that machine, so models larger than the available
    memory can be planned from the meta device; otherwise, and with `"cpu"`, they are measured on the model's device.
    `planner`, `split` and `bits` are those of `tightfit.compile`; on a `machine`, chunks are taken to change no bit. Raises
    `InfeasibleBudget`.
    """
    budget, limit, known = budget_of(budget), deadline_of(deadline), planner_named(planner)
    ways = settings(planner=planner, split=split, bits=bits).ways
    asked = budget.bytes
    machine = predicted_for(model, batch, machine)
    step = _step(model, batch, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory)
    whole = document(step.joint, step.name, between=step.loss.memory.between)
    division = Division(ways if machine is None else predicted(ways), step.device)
    beside = step.outside + step.reserve + step.ledger.unread_bytes() + budget.held()
    beside += 0 if optimizer is None else state_bytes(optimizer, model.parameters())
    room = None if asked is None else max(asked - beside, 0)

    def planned() -> Plan:
        graph = _costed(step, model, measure=machine is None, graph=division.graph(whole))
        found = held(graph, room, limit, machine, planner=known)
        return Plan(found, None, frozenset(), True, beside, budget=asked)

    try:
        found = division.best(planned, lost, lambda: whole, is_smallest=room is None)
    except InfeasibleBudget as error:
        raise InfeasibleBudget(
            f"{too_few(asked, error.needed + beside)} {type(model).__name__} on a batch of {listed(step.batch())}: no "
            f"schedule needs less than {error.needed + beside:,}, and {error.smallest + beside:,} are known to suffice. Give "
            f"budget={error.smallest + beside} or more, or a smaller batch",
            budget=asked or 0, needed=error.needed + beside, smallest=error.smallest + beside, binding=error.binding,
            live=error.live,
        ) from None
    return info(step, found)


def explain(model: nn.Module, batch: Any, out: str | os.PathLike[str] = "report.html", *, machine: str | None = None,
            differentiable_outputs: bool = False, loss_memory: int | str | None = None, points: int | None = None) -> str:
    """Writes a page about the training step of `model` on a batch, and returns its path: memory over the step by role,
    what is alive at each instant, bytes by module, and the time that each budget costs. `batch` is a tuple of
    positional arguments, a dict of keyword arguments, or one tensor. A model on the meta device needs a `machine`, as
    for `plan`."""
    graph = captured(model, batch, machine, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory)
    planning.report(graph, out=out, machine=machine, points=points)
    return os.fspath(out)


def captured(model: nn.Module, batch: Any, machine: str | None, *, differentiable_outputs: bool = False,
             loss_memory: int | str | None = None) -> dict[str, Any]:
    """The training step as a graph, with times measured on the model's device, or to be predicted for `machine`."""
    machine = predicted_for(model, batch, machine)
    return capture_step(model, batch, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory,
                        measure=machine is None)


def _step(model: nn.Module, batch: Any, *, differentiable_outputs: bool, loss_memory: Any) -> Step:
    [step] = studied(model, batch, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory).steps[-1:]
    return step


def studied(model: nn.Module, batch: Any, *, differentiable_outputs: bool, loss_memory: Any, dimension: int | None = None,
            by: str = "tightfit.plan") -> Backend:
    """A backend that has captured the model with a batch, for the function `by`. The size of its tensors along a `dimension`
    varies."""
    as_built(model, by)
    model, batch = made_fake(model, batch)
    asked = settings(differentiable_outputs=differentiable_outputs, loss_memory=loss_memory)
    backend = Backend(asked, budget_of("min"), model, type(model).__name__, step=_Studied)
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else (tuple(batch), {}) if isinstance(batch, (tuple, list)) \
        else ((batch,), {})
    call = torch.compile(model, backend=backend.entry, fullgraph=True)
    backend.ledger.given = args, kwargs
    try:
        with Capturing(), _modes(model), marked_along(batch, dimension):
            call(*args, **kwargs)
    except _Captured:
        return backend
    except Exception as error:
        failure = translated(error)
        raise failure from failure.__cause__
    raise CompileError("the model computes nothing that could be captured")


def _modes(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """The fake mode that a model was built in."""
    fakes = (parameter for parameter in model.parameters() if isinstance(parameter, FakeTensor))
    first = next(fakes, None)
    return contextlib.nullcontext() if first is None else first.fake_mode


def _costed(step: Step, model: nn.Module, *, measure: bool, graph: dict[str, Any] | None = None) -> dict[str, Any]:
    graph = graph or document(step.joint, step.name, between=step.loss.memory.between)
    return costed(graph, step.device, parameters=model.parameters()).document if measure else graph


def predicted_for(model: nn.Module, batch: Any, machine: str | None) -> str | None:
    """The machine whose times are predicted; `None` if they are measured, as for the processor."""
    if machine is not None and not text(machine, "machine"):
        raise OptionError('machine="" names no machine; give one such as "h100-80gb", or leave it out')
    if machine not in (None, "cpu") or not isinstance(model, nn.Module):
        return machine
    if not _is_real(model, batch):
        raise OptionError('a model without memory cannot be measured; give the machine whose times are to be predicted, '
                          'such as machine="h100-80gb"')
    devices = {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]}
    if machine == "cpu" and not devices <= {"cpu"}:
        raise OptionError(f'machine="cpu" is measured on the processor, and the model is on {", ".join(sorted(devices))}; '
                          "leave machine out to measure it there")
    return None


def _is_real(model: nn.Module, batch: Any) -> bool:
    """Whether a model and its batch have memory."""
    tensors = [*model.parameters(), *model.buffers(), *pytree.tree_leaves(batch)]
    return not any(map(is_memoryless, tensors))
