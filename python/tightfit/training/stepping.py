"""`tightfit.step`: forward pass, backward pass and update as one function within a budget of bytes.

Invariant: a parameter is updated by the user's own optimizer as soon as its gradient exists and no later node reads its
old value; then the gradient is freed. Only what the plan keeps is kept between the passes, and a step that no plan runs
raises an exception.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..errors import CompileError, OptionError
from ..given import flag
from .admission import as_built
from .backend import Backend
from .budget import Budget, budget_of
from .compiling import Call, PlanInfo, plans_of
from .dynamo import isolated
from .execution import Step
from .joint import Joint, document, is_tensor
from .ledger import Ledger
from .residents import Residents
from .settings import Offload, Settings, device_of, settings
from .tier import Tier
from .updates import Updates

# The most bytes of a state's scalars, such as the number of updates.
_NUMBER = 64
# Features that users may look for but that need all gradients at once, by the option's name.
_NOT_HERE = {
    "clip_grad_norm": "clipping needs the norm of all gradients before the first update",
    "clip_grad_value": "clipping is done to gradients before an update, and here each is gone right after it",
    "max_norm": "clipping needs the norm of all gradients before the first update",
    "max_grad_norm": "clipping needs the norm of all gradients before the first update",
    "scaler": "a GradScaler looks at all gradients before it decides whether to update",
    "grad_scaler": "a GradScaler looks at all gradients before it decides whether to update",
    "accumulate": "accumulated gradients stay from one batch to the next, and here each is gone after its update",
    "accumulation_steps": "accumulated gradients stay from one batch to the next, and here each is gone after its "
                          "update",
    "gradient_accumulation_steps":
        "accumulated gradients stay from one batch to the next, and here each is gone after its update",
    "closure": "a closure computes the loss several times in one step",
}


def step(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    *,
    budget: int | str | Budget,
    outputs: bool = False,
    deadline: float | str | None = None,
    offload: int | str | None = None,
    split: int | str = "auto",
    bits: str = "equal",
    **others: Any,
) -> TrainingStep:
    """A function that makes one training step of `model` within `budget` bytes: forward pass, backward pass and the
    updates by `optimizer`, each as soon as its gradient exists, which is then freed.

    With a `loss_fn` the last positional argument of the function is the targets, and all others go to the model:

        step = tightfit.step(model, functional.cross_entropy, optimizer, budget="6GiB")
        loss = step(inputs, targets)          # loss_fn(model(inputs), targets)

    With `loss_fn=None` the model computes its loss and returns it: alone, first in a tuple, or as `loss` in a mapping,
    as transformers models do. A batch that is one dict is unpacked:

        loss = step(**batch)                  # or step(batch)

    It returns the loss, detached; with `outputs=True` the loss and what the model returned, detached too. Parameters,
    buffers, the optimizer's state and the loss are those of the plain loop, bit for bit, and `optimizer.state_dict()`,
    `load_state_dict()` and schedulers of the learning rate work between steps as usual. `.grad` is empty before and
    afterwards. `step.plans` has the plans.

    `budget` is an `int`, text such as `"6GiB"`, or `"min"` for the smallest that the planner reaches. It counts what
    the model's device holds at any time of the step: parameters, buffers, batch, the optimizer's state, gradients while
    they exist, what is saved and what is recomputed, and what operators and updates take while they run. `deadline` is
    how long the search for a plan may take, for each way to divide the loss: seconds, or text such as `"500ms"`;
    without it a second of processor time, at most four seconds, and what a first plan takes beyond that.

    With `offload`, a size such as `"64GiB"`, parameters, the optimizer's state and what the step computes may be moved
    away while they are not needed, to at most this many bytes of another memory: pinned host memory if the model is on
    a GPU, or an unnamed file in the folder for temporary files if it is on a processor. So a model can be trained whose
    parameters and state alone exceed the budget. Between two steps what is away lies there as CPU tensors, and can be
    read, written, saved and loaded as usual; other tensors that share a parameter's memory keep that memory.

    Where that makes a faster plan within the budget, or any, the loss of a language model is computed in chunks of rows:
    logits and what follows from them exist for a part of the batch's tokens at a time, and their gradient, in its own
    type, is all that is left of them (doc/theory/split.md). Before such a plan runs, products of chunks are compared with
    those of all rows, and it is left out if a bit differs. With `bits="any"` that does not matter, and it may also be that
    not even the logits' gradient exists for all rows: that of the head's weight is a total to which each chunk adds a
    term, which changes its last digits. Where nothing else fits, or for "min", what layers do not keep is in chunks, too.
    `split=N` asks for N chunks of the loss, `split="8:totals"` for 8 that add to a total, `split="8+4"` for layers in 4,
    too, whatever their bits, and `split="off"` for none. Steps in which nothing can be divided are planned as they are.

    Anything that needs all gradients at once is refused; use tightfit.compile for it: clipping, GradScaler,
    accumulation, closures, and optimizers that are not known to update each parameter independently.

    Raises `OptionError` for invalid options and optimizers, and `CompileError` if the model is already compiled or
    cannot be captured; calls of the function raise `InfeasibleBudget` if the budget is too small, with the proof.
    """
    for name in others:
        if name in _NOT_HERE:
            raise OptionError(f"{name}= is no option of tightfit.step: {_NOT_HERE[name]}; use tightfit.compile, which "
                              "leaves the update to your loop")
        raise TypeError(f"step() got an unexpected keyword argument {name!r}")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise OptionError("DistributedDataParallel sums gradients of several processes before any update; use "
                          "tightfit.compile")
    as_built(model, "tightfit.step")
    if loss_fn is not None and not callable(loss_fn):
        raise OptionError(f"loss_fn={loss_fn!r} is no function of the model's output and the targets; give one, or "
                          "None where the model returns its loss")
    flag(outputs, "outputs")
    updates = Updates(optimizer)
    chosen = settings(deadline=deadline, offload=offload, split=split, bits=bits)
    return TrainingStep(model, loss_fn, updates, chosen, budget_of(budget), outputs)


class TrainingStep:
    """One training step, to be called with a batch; `tightfit.step` makes it."""

    def __init__(self, model: nn.Module, loss_fn: Any, updates: Updates, asked: Settings, budget: Budget,
                 outputs: bool) -> None:
        # The backend refers to the model weakly; the module that is compiled holds it.
        self._residents = None
        if isinstance(asked.placement, Offload):
            tensors = [parameter for group in updates.optimizer.param_groups for parameter in group["params"]]
            self._residents = Residents(updates.optimizer, Tier(asked.placement.size, device_of(tensors)))
        self._backend = Backend(asked, budget, model, type(model).__name__,
                                step=functools.partial(_WholeStep, updates, self._residents))
        if self._residents is not None:
            self._backend.ledger.tier = self._residents.tier
            self._residents.leave()
        whole = _Whole(model, loss_fn, outputs)
        whole.compile(backend=self._backend.entry, fullgraph=True, **isolated())
        self._call = Call(whole._compiled_call_impl, self._backend)
        self._takes_targets = loss_fn is not None

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """Makes a step and returns the loss, and the model's outputs if they were requested."""
        if self._takes_targets and (not batch or len(batch) + len(named) < 2):
            raise OptionError("a step with a loss_fn takes the targets as its last positional argument: step(inputs, "
                              "targets)")
        if not self._takes_targets and len(batch) == 1 and isinstance(batch[0], Mapping) and not named:
            batch, named = (), dict(batch[0])
        residents = self._residents
        try:
            if residents is not None and not residents.tier.kind.is_processor:
                # Dynamo tells calls apart by the devices of their tensors.
                residents.hide()
            with torch.enable_grad():
                results = self._call(*batch, **named)
        finally:
            if residents is not None:
                residents.show()
        loss, *given = results
        return (loss.detach(), given[0]) if given else loss.detach()

    @property
    def plans(self) -> list[PlanInfo]:
        """The plans that were made so far, in their order; waits for searches that go on while steps run."""
        return list(plans_of(self._backend))


class _Whole(nn.Module):
    """A model with its loss, as one module."""

    def __init__(self, model: nn.Module, loss_fn: Any, outputs: bool) -> None:
        super().__init__()
        self.model, self.loss_fn, self.outputs = model, loss_fn, outputs

    def forward(self, *batch: Any, **named: Any) -> tuple[Any, ...]:
        if self.loss_fn is None:
            output = self.model(*batch, **named)
            loss = _loss(output)
        else:
            output = self.model(*batch[:-1], **named)
            loss = self.loss_fn(output, batch[-1])
        return (loss, _detached(output)) if self.outputs else (loss,)


def _loss(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    return output["loss"] if isinstance(output, Mapping) else output[0]


def _detached(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.detach()
    if isinstance(output, Mapping):
        return {name: _detached(item) for name, item in output.items()}
    if isinstance(output, (tuple, list)):
        return tuple(_detached(item) for item in output)
    return output


class _WholeStep(Step):
    """A captured graph whose plans include all updates."""

    accumulates = False
    nests = False

    def __init__(self, updates: Updates, residents: Residents | None, joint: Joint, settings: Settings, ledger: Ledger, device: torch.device,
                 name: str, outside: int, outside_parameters: Sequence[Any] = ()) -> None:
        super().__init__(_checked(joint), settings, ledger, device, name, outside, outside_parameters)
        self.updates = updates
        self.update = updates.run
        self.residents = residents
        if residents is not None:
            self.resident = lambda parameter, is_state: residents.of(parameter, is_state=is_state)
        self.holds_outputs = True
        self._plans_by: dict[Hashable, Any] = {}

    def _forward(self, arguments: list[Any]) -> list[Any]:
        """The whole step: empties `arguments`, updates the parameters, and returns the outputs."""
        updates = self.updates
        self.ledger.find_unread(arguments[index] for index in self._inputs)
        trained = {index: arguments[index] for index in self._accumulating}
        updates.begin({self.joint.arguments[index].name: tensor for index, tensor in trained.items()})
        self.ledger.reserved = updates.state_bytes(trained.values(), self.device)
        if self.residents is not None:
            # The plan counts the state itself; only the scalars, such as step counts, stay in the ledger.
            self.ledger.reserved -= sum(self._states(arguments).values()) - _NUMBER * len(trained)
        self.plans = self._plans_by.setdefault(updates.signature(), {})
        plan = self.plan(frozenset(), self._others(None, [arguments[index] for index in self._idle], []), arguments)
        self.calls += 1
        self._enter(self.ledger.members.waiting(), plan, arguments)
        if self.residents is not None:
            wanted = {self.resident(arguments[index], is_state): below for index, is_state, below in plan.code.residents}
            self.residents.begin(wanted)
            self.tier.room(max(plan.held.below - self.tier.used, 0), self.name)
        outputs, _ = plan.code.forward(arguments)
        updates.end()
        self.ledger.hand_out(outputs)
        return [*outputs, torch.empty(0)]

    def backward(self, arguments: list[Any]) -> list[Any]:
        """Never called: the loss of a step is detached."""
        raise RuntimeError("the backward pass of this step has run, and its updates have been made")

    def _whole(self, accumulated: frozenset[int], holds: bool, arguments: Sequence[Any]) -> dict[str, Any]:
        """The graph that is planned, which includes the updates."""
        costs = {index: self.updates.update(arguments[index]) for index in self._accumulating}
        states = None if self.residents is None else self._states(arguments)
        return document(self.joint, self.name, updates=costs, states=states)

    def _states(self, arguments: Sequence[Any]) -> dict[int, int]:
        """The bytes of each parameter's state."""
        return {index: self.updates.state_bytes_of(arguments[index]) for index in self._accumulating}


def _checked(joint: Joint) -> Joint:
    """A graph that can be a whole step, with the names that parameters have in the model. Raises `CompileError`."""
    arguments = tuple(replace(argument, name=argument.name.removeprefix("model.")) for argument in joint.arguments)
    loss = joint.outputs[0] if joint.outputs else None
    if not joint.has_backward:
        raise CompileError("no parameter gets a gradient from this loss; unfreeze what is to be trained, and compute "
                           "the loss from it, outside of torch.inference_mode")
    if not is_tensor(loss) or loss.meta["val"].numel() != 1 or len(joint.tangents) != 1:
        raise CompileError("the loss is not one number; return the mean or the sum of the losses, first in a tuple or "
                           "as 'loss' in a mapping, from the model or the loss_fn")
    inputs = [argument.name for argument, gradient in zip(arguments, joint.gradients, strict=True)
              if gradient is not None and not argument.is_parameter]
    if inputs:
        raise CompileError(f"{inputs[0]!r} asks for a gradient and is no parameter, and here gradients go once their "
                           "parameters are updated; detach it, make it a parameter, or use tightfit.compile")
    return replace(joint, arguments=arguments)
