"""`tightfit.compile`: a model whose forward and backward pass stay within a budget of bytes, in any training loop.

Invariant: the model is changed in place and stays what it was: its class, its parameters, the keys of its state. A call
with gradients that no plan runs raises an exception: no training step silently falls back to PyTorch's own execution.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import notebook
from ..batch import listed
from ..errors import CompileError, OptionError
from .addresses import install
from .admission import as_built, unsharded
from .backend import Backend
from .budget import Budget, budget_of
from .dynamo import FAILURES, NOTHING, Capturing, frame, isolated, translated, uncaptured
from .engine import unwatch, watch
from .evaluation import Evaluation
from .execution import Plan, Step
from .marking import Marking
from .optimizer_state import state_bytes
from .planned import Swapped
from .settings import EvaluationMode, Placement, settings

if TYPE_CHECKING:
    from .sizing import Largest

Module = TypeVar("Module", bound=nn.Module)


def compile(
    model: Module,
    budget: int | str | Budget,
    *,
    optimizer: torch.optim.Optimizer | type | str | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    differentiable_outputs: bool = False,
    loss_memory: int | str | None = None,
    deadline: float | str | None = None,
    fused: bool = False,
    addresses: bool = False,
    offload: int | str | None = None,
    planner: str = "auto",
    evaluation: str | None = None,
    split: int | str = "auto",
    bits: str = "equal",
) -> Module:
    """Makes each forward and backward pass of `model` stay within `budget` bytes, and returns the model.

    `budget` is an `int`, text such as `"6GiB"` or `"80% of device"`, `"min"` for the smallest that the planner reaches,
    or a `Budget` that several models share. It counts what the model's device holds during a step: parameters, buffers,
    gradients, the batch, the optimizer's state, what is saved for the backward pass, and what operators take while they
    run. Not included are memory that `optimizer.step()` takes for itself, and what the loop holds that is unrelated to
    its models.

    The first call with a new shape of batch, or in another mode, captures the model, measures its operators one by one,
    plans, and runs. Later calls run the plan. Gradients are those that PyTorch computes without this, bit for bit:
    recomputation uses the same operators and the same random numbers.

    `optimizer` is the optimizer, its class or its name: room is reserved for its state before it exists. Without it the
    state counts from the first step in which it exists.

    With a `loss`, a function of the model's output and the targets, model and loss are captured and planned as one, and
    a call with `targets` returns what the function returns; other calls return the model's output, as before:

        model = tightfit.compile(model, budget="6GiB", loss=functional.cross_entropy)
        loss = model(inputs, targets=targets)     # functional.cross_entropy(model(inputs), targets)

    The memory of a loss outside of the model is counted in the first step, and planned for from the second on. In the
    first step it may take more than the plan, which recomputes as much as it can, leaves for it; then a warning says
    so. `loss_memory` is an upper bound of what such a loss takes between forward and backward pass: with it the first
    step is planned like any other.

    A model that returns a loss has its other outputs detached, which saves the memory of their gradients; with
    `differentiable_outputs=True` they are not. `deadline` is how long the search for a plan may take, for each way to
    divide the loss that is tried: seconds, or text such as `"500ms"`; without it a second of processor time, at most four
    seconds, and what a first plan takes beyond that. Steps run by a plan that was found in a quarter of a second while it goes on, unless addresses are planned or
    Inductor runs the plan. Where nothing is found and nothing proves that nothing fits, it is repeated with up to two
    seconds before the budget is refused.

    With `fused=True` Inductor runs the plan's partition with fused kernels. Gradients are equal up to rounding, and
    **the budget is no guarantee**: it only decides what is saved. The first steps are measured (`measured_peak` of
    `plans`), and if they hold more, a warning says so once, and nothing is refused.

    With `addresses=True` the budget limits the bytes *reserved* on a GPU: PyTorch's allocator is replaced for the whole
    process, the allocations of a plan's first steps are recorded, and those of all later ones lie at planned addresses
    in one slab. This has to be requested before anything is on the GPU; move the model afterwards.

    With `offload`, a size such as `"64GiB"`, what the step holds may also be moved away while it is not needed, to at
    most this many bytes of another memory: pinned host memory if the model is on a GPU, or an unnamed file in the
    folder for temporary files if it is on a processor. So budgets can be met that no recomputation meets. Parameters
    and optimizer state stay where they are, as does what the loop receives.

    `planner` names the planner that decides what is recomputed, as in `tightfit plan --planner`: `"auto"` searches, and
    the others are published rules. Of those, `"sac"` checkpoints modules, and saves operators within them, as PyTorch's
    `sac_milp` and its policy decide.

    If the graph has the loss of a language model, because the model returns it or with `loss`, plans may compute it in
    chunks of rows: logits and what follows from them exist for a part of the batch's tokens at a time, in the forward pass
    and once more in the backward pass (doc/theory/split.md). That is done where it makes a faster plan within the budget,
    or any, and changes no bit: products of chunks are compared with those of all rows first. With `bits="any"` that
    does not matter, and chunks may also add up the gradient of the head's weight, which needs less. Where nothing else
    fits, or for "min", what layers do not keep is in chunks, too. `split=N` asks for N chunks of the loss, `split="N+M"`
    for M of layers, too, whatever their bits, and `split="off"` for none. Logits that the model returns as well exist for
    all rows.

    Calls without gradients (in `torch.no_grad()`, `torch.inference_mode()`, and within `generate()`) are not captured:
    they run eagerly where the budget has room. The first of each kind of batch is counted; if it held more than was
    left, a warning says so, and such calls are planned from then on. With `evaluation="planned"` they are from the
    first, as they always are with `fused=True` and `addresses=True`; with `evaluation="eager"` they never are, and the
    budget is not for them.

    Raises `OptionError` if an option makes no sense and `CompileError` if the model is already compiled. Calls of the
    model raise `InfeasibleBudget` if the budget is too small, with the proof, `CompileError` if the model cannot be
    captured as one graph, `BudgetExceeded` if what the loop holds leaves too little, and `OffloadError` if the other
    memory does not suffice.
    """
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise CompileError("data parallelism stands around the model already; give tightfit.compile the model inside, "
                           "model.module, and go on with what stands around it")
    as_built(model, "tightfit.compile")
    _can_have(loss, model, differentiable_outputs, loss_memory)
    asked = settings(differentiable_outputs=differentiable_outputs, loss_memory=loss_memory, deadline=deadline,
                     fused=fused, addresses=addresses, offload=offload, planner=planner, evaluation=evaluation, split=split,
                     bits=bits)
    if asked.placement is Placement.ADDRESSES:
        install()
    backend = Backend(asked, budget_of(budget), model, type(model).__name__)
    if optimizer is not None:
        trains(optimizer, model)
        backend.ledger.reserved = state_bytes(optimizer, model.parameters())
    compiled = torch.compile(frame(model), backend=backend.entry, fullgraph=True, **isolated())
    model._compiled_call_impl = Call(
        compiled, backend, None if loss is None else _with_loss(model, loss, backend),
        None if asked.evaluation is EvaluationMode.PLANNED else _Eager(backend, loss))
    _Watch.over(model, backend)
    watch(model)
    return model


def trains(optimizer: Any, model: nn.Module) -> None:
    """Refuses an optimizer of another model, whose state would be counted as nothing."""
    if isinstance(optimizer, torch.optim.Optimizer):
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in trained for parameter in model.parameters()):
            raise OptionError(f"optimizer= trains none of the parameters of {type(model).__name__}; give the one that does, or its class")


def _can_have(loss: Any, model: nn.Module, differentiable_outputs: bool, loss_memory: Any) -> None:
    """Refuses options that cannot be combined with `loss`."""
    if loss is None:
        return
    if not callable(loss):
        raise OptionError(f"loss={loss!r} is no function of the model's output and the targets; give one, such as "
                          "torch.nn.functional.cross_entropy")
    if "targets" in inspect.signature(model.forward).parameters:
        raise OptionError(f"the forward of {type(model).__name__} takes targets itself, so it is captured with its loss; leave loss= out")
    for name, value in (("loss_memory", loss_memory), ("differentiable_outputs", differentiable_outputs or None)):
        if value is not None:
            raise OptionError(f"with loss= the loss is captured, so {name}= has nothing to say; give one of them")


class _WithLoss(nn.Module):
    """A model and its loss, as one module."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, targets: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.loss(self.model(*args, **kwargs), targets)


def _with_loss(model: nn.Module, loss: Callable[[Any, Any], Any], backend: Backend) -> Any:
    """The function that runs a model with its loss by plans of the same backend."""
    whole = _WithLoss(model, loss)
    whole.compile(backend=backend.entry, fullgraph=True, **isolated())
    return whole._compiled_call_impl


@dataclass(frozen=True)
class PlanInfo:
    """One plan of a compiled model.

    `budget` is the requested one in bytes, or `None` if it was `"min"`. `peak` is the most bytes that a step holds
    under the plan, including all that the budget counts, and `unplanned_peak` the same with nothing recomputed;
    `seconds` and `unplanned_seconds` are predicted from measured calls, and no plan within the budget takes less than
    `bound_seconds` (`None` if nothing is proven). `recomputed` is the number of recomputed calls. `batch` has the
    shapes of the largest batch that it runs, `accumulates` says that gradients existed when the step began, `trains`
    that there is a backward pass, and `unmeasured` names the operators that could not be measured, so that what they
    take while they run is unknown. `model` is the name of the model's class. `measured_peak` is the most bytes that the first steps
    held, if they are measured: with `fused=True`. `slab` is the size of the slab in bytes, once addresses are planned:
    with `addresses=True`. `offloaded` is the number of bytes of the tier that the step needs, and `swapped` says which
    tensors are away and when, the longest free time first: with `offload`. `split` says into which chunks the
    step is divided, if it is.
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
    model: str = ""
    measured_peak: int | None = None
    slab: int | None = None
    offloaded: int = 0
    swapped: tuple[Swapped, ...] = ()
    split: str | None = None

    def __str__(self) -> str:
        return notebook.lines(self._title(), notebook.HEAD, notebook.figures(self))

    def _repr_html_(self) -> str:
        return notebook.table(self._title(), notebook.HEAD, notebook.figures(self))

    def _title(self) -> str:
        kind = "training" if self.trains else "evaluation"
        added = ", gradients are added to" if self.accumulates else ""
        return f"{self.model}, {kind} on {listed(self.batch)}{added}"


class Plans(list[PlanInfo]):
    """Plans in the order in which they were made."""

    def __init__(self, plans: Iterable[PlanInfo], backend: Backend) -> None:
        super().__init__(plans)
        self._backend = backend

    def __reduce__(self) -> tuple[Any, ...]:
        # What was planned can be written down, and who planned it cannot.
        return list, (list(self),)

    def largest(self, **known: int) -> Largest:
        """The largest batch that the model can be called with, as `tightfit.largest` finds it, with what the loop holds now:
        the largest length for `largest(batch=8)`, the largest batch size for `largest(length=512)`, and without an argument
        along the only axis in which batches have varied. Sizes are those for which the model was captured."""
        from .sizing import largest_of  # it plans by the functions for compiled models

        return largest_of(self._backend, known)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self)) or "no plans yet"

    def _repr_html_(self) -> str:
        return "".join(plan._repr_html_() for plan in self) or notebook.table("no plans yet", (), [])


def plans(model: nn.Module) -> Plans:
    """The plans that a compiled model has made so far, in their order; waits for searches that go on while steps run."""
    call = getattr(model, "_compiled_call_impl", None)
    if not isinstance(call, Call):
        raise CompileError(f"this {type(model).__name__} was not compiled by tightfit.compile, whose model this takes; what "
                           "tightfit.step gives has its plans itself, as `.plans`")
    return plans_of(call.backend)


def plans_of(backend: Backend) -> Plans:
    """The plans of a backend's steps, once no search goes on."""
    for step in backend.steps:
        step.settle()
    return Plans((info(step, plan) for step in backend.steps for plan in step.made), backend)


def release(model: Module) -> Module:
    """Makes a compiled model what it was, and returns it: it no longer has plans, and its budget no longer counts what it
    holds. Backward passes of calls that it made until then run as planned."""
    call = getattr(model, "_compiled_call_impl", None)
    if not isinstance(call, Call):
        raise CompileError(f"this {type(model).__name__} was not compiled by tightfit.compile, so there is nothing to release")
    if call.backend.ledger.tier is not None and call.backend.ledger.waits:
        raise CompileError(f"a backward pass of this {type(model).__name__} may come that needs what is offloaded; run it first, or let "
                           "go of the loss")
    model._compiled_call_impl = None
    _Watch.models.pop(model, None)
    call.backend.ledger.forget()
    unwatch(model)
    return model


def info(step: Step, plan: Plan) -> PlanInfo:
    """The record of a plan."""
    held = plan.held
    return PlanInfo(
        plan.budget, held.peak + plan.beside, held.unplanned_peak + plan.beside, held.seconds,
        held.unplanned_seconds, held.bound_seconds, held.recomputed, step.batch(), bool(plan.accumulated),
        step.joint.has_backward, sorted(step.refused), step.name, step.measured_peak, plan.course.slab,
        held.below, tuple(Swapped(**facts) for facts in held.swapped), None if plan.split == "off" else plan.split,
    )


class Call:
    """A call of a compiled model."""

    def __init__(self, compiled: Any, backend: Backend, with_loss: Any = None, eager: _Eager | None = None) -> None:
        self.compiled = compiled
        self.backend = backend
        self.with_loss = with_loss
        self.eager = eager
        self.marking = Marking(is_on=backend.settings.placement not in (Placement.INDUCTOR, Placement.ADDRESSES))
        self.options = Capturing()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.eager is not None and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            has_run, result = self.eager(args, kwargs)
            if has_run:
                return result
        before = self.backend.calls
        self.backend.ledger.given = args, kwargs
        try:
            result = self._captured(args, kwargs)
        except FAILURES as error:
            if (model := self.backend.model) is not None:
                unsharded(model, "tightfit.compile")
            failure = translated(error)
            raise failure from failure.__cause__
        except RuntimeError as error:
            if NOTHING not in str(error):
                raise
            raise uncaptured() from None
        finally:
            self.backend.ledger.given = ()
        if self.backend.calls == before:
            raise CompileError("PyTorch ran this call without the plan; the result was thrown away. Call the model itself, "
                               "outside of torch.compile and of torch.compiler.disable")
        return result

    def _captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call by its plan; a graph is captured if there is none for it."""
        runs, before = self.backend.runs, len(self.backend.runs)
        with self.marking.marked((args, kwargs)) as is_marked:
            try:
                result = self._run(args, kwargs)
            except FAILURES:
                if not is_marked and not self.options.varies:
                    raise
            else:
                if self.marking.is_on and not self.marking.is_new and len(runs) > before:
                    # No shape made this capture necessary; if it was a number, it will change again.
                    self.options.vary(varies=True)
                return result
        self.options.vary(varies=False)
        result = self._run(args, kwargs)
        # So it can be captured, but only for each shape.
        self.marking.is_on = False
        return result

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.options:
            if self.with_loss is None or "targets" not in kwargs:
                return self.compiled(*args, **kwargs)
            return self.with_loss(kwargs["targets"], args, _without_targets(kwargs))


class _Eager:
    """Calls without gradients, as PyTorch runs them."""

    def __init__(self, backend: Backend, loss: Callable[[Any, Any], Any] | None) -> None:
        self.backend = backend
        self.loss = loss
        self.evaluation = Evaluation(backend, is_bounded=backend.settings.evaluation is not EvaluationMode.EAGER)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Runs a call unless it has to be planned; returns whether it ran, and its result."""
        model, loss = self.backend.model, self.loss
        if loss is None or "targets" not in kwargs:
            return self.evaluation.run(lambda: model._call_impl(*args, **kwargs), (args, kwargs))
        rest = _without_targets(kwargs)
        return self.evaluation.run(lambda: loss(model._call_impl(*args, **rest), kwargs["targets"]), (args, kwargs))


def _without_targets(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: given for name, given in kwargs.items() if name != "targets"}


class _Watch:
    """Counts the state of optimizers once it exists."""

    models: weakref.WeakKeyDictionary[nn.Module, Backend] = weakref.WeakKeyDictionary()
    handle: Any = None
    counted: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @classmethod
    def over(cls, model: nn.Module, backend: Backend) -> None:
        """Watches what optimizers keep for a model; one that has already made steps is counted at its next."""
        cls.models[model] = backend
        cls.counted.clear()
        if cls.handle is None:
            cls.handle = register_optimizer_step_post_hook(cls.stepped)

    @classmethod
    def stepped(cls, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Called after a step of an optimizer: its state exists."""
        entries = len(optimizer.state)
        if cls.counted.get(optimizer) == entries:
            return
        cls.counted[optimizer] = entries
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model, backend in list(cls.models.items()):
            own = [parameter for parameter in model.parameters() if id(parameter) in trained]
            if own:
                backend.ledger.states[optimizer] = state_bytes(optimizer, own)
