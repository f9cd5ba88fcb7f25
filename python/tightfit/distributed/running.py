"""Runs a planned pipeline on the ranks of a process group, by `torch.distributed.pipelining`.

Invariant: a step leaves in every parameter's gradient the mean over all micro-batches, whichever rank has the parameter;
ranks that share one have the same. An evaluation leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.utils import _pytree as pytree

from ..errors import ExportError, OptionError
from .cutting import Answer, Cut
from .evaluating import Evaluation
from .messages import EACH_HAS_A_GRADIENT, Messages
from .runtime import Place, runtime
from .stage import Stage, evaluating

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .planning import StagePlan


class Pipeline:
    """This rank's stages of a model, and the order in which they run.

    `stages` are modules: give their parameters, `parameters()`, to an optimizer, and call `step` where a loop runs the
    forward and the backward pass. `evaluate` and `predict` use evaluation mode, whichever mode the stages are in.
    """

    def __init__(self, plan: StagePlan, cut: Cut, loss_fn: Callable[..., torch.Tensor], mesh: DeviceMesh | None) -> None:
        group = None if mesh is None or mesh.mesh_dim_names is None else mesh["pp"].get_group()
        self.rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
        if ranks != plan.ranks:
            raise OptionError(f"the plan is for {plan.ranks} ranks, and the group has {ranks}; plan for as many devices")
        every = stages_of(plan, cut)
        _one_owner(every)
        if (reason := undividable(plan, every)) is not None:
            raise OptionError(reason)
        passed = _passed(every, cut)
        evaluated = cut.evaluated
        if isinstance(evaluated, Answer):
            with evaluating(every):
                passed_then = _passed(every, cut)
        mine = [stage for stage, rank in enumerate(plan.placement) if rank == self.rank]
        self.stages = {stage: every[stage] for stage in mine}
        self._shared = _shared(plan, every, self.rank, group)
        # The groups of ranks that have to agree that a batch is valid.
        self._groups = [group]
        if mesh is not None and mesh.mesh_dim_names is not None and "dp" in mesh.mesh_dim_names:
            self._groups.append(mesh["dp"].get_group())
            _shard(self.stages, mesh["dp"], bool(self._shared), "W" in plan.csv)
        self._place = place = Place(self.stages, _device(every), group)
        self._microbatches = plan.microbatches
        self._first, self._last = 0 in self.stages, len(every) - 1 in self.stages
        self._given = passed[0]
        self._targets: list[Any] = []
        self._loss_fn = loss_fn
        answer = cut.answer

        def share(values: tuple[torch.Tensor, ...], number: torch.Tensor) -> torch.Tensor:
            return loss_fn(answer.of(values), self._targets[int(number)]) / plan.microbatches

        self._runtime, _ = runtime(plan, place, passed, share)
        # The model in evaluation mode, or the reason why there is none.
        self._evaluation = Evaluation(plan, place, evaluated, passed_then) if isinstance(evaluated, Answer) else evaluated

    def step(self, inputs: Any = None, target: Any = None) -> torch.Tensor | None:
        """Forward and backward pass of all micro-batches. `inputs` are those of the whole batch, which is divided along
        its first dimension; only the first stage's rank uses them. `target`, a tensor or a structure of tensors, is
        divided likewise and used only by the last stage's rank, which returns the mean of the losses of the
        micro-batches. Other ranks return `None`. Raises `OptionError` if the batch does not consist of this many
        micro-batches like the one that the pipeline was made for; if one rank refuses a batch, all do."""
        arguments, self._targets = self._parts(inputs, target)
        for stage in self.stages.values():
            if not stage.training:
                stage.train()
        # Gradients left by earlier steps were summed in those steps.
        earlier = [parameter.grad for parameter, _ in self._shared]
        for parameter, _ in self._shared:
            parameter.grad = None
        losses: list[torch.Tensor] = []
        if self._last:
            numbers = torch.arange(self._microbatches)
            self._runtime.step(*arguments, target=numbers, losses=losses, return_outputs=False)
            self._targets = []
        else:
            self._runtime.step(*arguments, return_outputs=False)
        for (parameter, group), before in zip(self._shared, earlier, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad, group=group)
            if before is not None:
                parameter.grad += before
        return torch.stack([loss.detach() for loss in losses]).sum() if self._last else None

    def evaluate(self, inputs: Any = None, target: Any = None) -> torch.Tensor | None:
        """What `step` returns, in evaluation mode and without gradients: dropout is off, and batch norms read their
        statistics. No state changes. Raises `ExportError` if the model could not be traced in evaluation mode."""
        evaluation = self._evaluated()
        arguments, targets = self._parts(inputs, target)
        losses: list[torch.Tensor] = []

        def take(values: tuple[torch.Tensor, ...], number: int) -> None:
            losses.append(self._loss_fn(evaluation.answer.of(values), targets[number]) / self._microbatches)

        evaluation.run(arguments, take)
        return torch.stack(losses).sum() if self._last else None

    def predict(self, inputs: Any = None) -> Any:
        """What the model returns for the whole batch, in evaluation mode and without gradients, on the last stage's
        rank; other ranks return `None`. Tensors of the micro-batches are joined along their first dimension, and
        scalars, which have none, become a tensor with one element per micro-batch. Raises `ExportError` like
        `evaluate`."""
        evaluation = self._evaluated()
        arguments, _ = self._parts(inputs, None)
        whole: list[torch.Tensor] = []

        def take(values: tuple[torch.Tensor, ...], number: int) -> None:
            parts = [value if value.dim() else value[None] for value in values]
            if not whole:
                whole.extend(part.new_empty(self._microbatches * len(part), *part.shape[1:]) for part in parts)
            for all_rows, part in zip(whole, parts, strict=True):
                all_rows[number * len(part):(number + 1) * len(part)] = part

        evaluation.run(arguments, take)
        return evaluation.answer.of(whole) if self._last else None

    def _evaluated(self) -> Evaluation:
        if isinstance(self._evaluation, str):
            raise ExportError(self._evaluation)
        return self._evaluation

    def _parts(self, inputs: Any, target: Any) -> tuple[tuple[torch.Tensor, ...], list[Any]]:
        """The first stage's arguments, and the targets of the micro-batches. Each rank checks what it uses; if one went
        on without the others, it would take the next batch's activations for this one's."""
        arguments, targets, refusal = (), [], None
        try:
            arguments = self._arguments(inputs)
            targets = _divided(target, self._microbatches) if self._last else []
        except Exception as error:  # noqa: BLE001: the others are told first
            refusal = error
        is_refused = torch.tensor(int(refusal is not None), device=self._place.device)
        for group in self._groups:
            distributed.all_reduce(is_refused, distributed.ReduceOp.MAX, group)
        if refusal is not None:
            raise refusal
        if is_refused.item():
            raise OptionError("another rank refuses its part of this batch, and says why; no rank has computed anything")
        return arguments, targets

    def _arguments(self, inputs: Any) -> tuple[torch.Tensor, ...]:
        """The first stage's arguments, for all micro-batches."""
        if not self._first:
            return ()
        arguments = tuple(leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
        _like(arguments, self._given, self._microbatches)
        return arguments

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's parameters, each once."""
        return iter({id(parameter): parameter for _, parameter in self.named_parameters()}.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters by the names that they have in the model."""
        for stage in self.stages.values():
            yield from stage.named().items()


def _divided(target: Any, parts: int) -> list[Any]:
    """The targets of the micro-batches; anything that is not a tensor is the same for each of them."""
    leaves, structure = pytree.tree_flatten(target)
    columns = []
    for leaf in leaves:
        rows = leaf.shape[0] if isinstance(leaf, torch.Tensor) and leaf.dim() else 0
        if isinstance(leaf, torch.Tensor) and (rows == 0 or rows % parts):
            raise OptionError(f"a batch is {parts} micro-batches of as many rows each, and a target has {rows} rows")
        columns.append(leaf.chunk(parts) if isinstance(leaf, torch.Tensor) else [leaf] * parts)
    return [pytree.tree_unflatten([column[part] for column in columns], structure) for part in range(parts)]


def _like(arguments: tuple[torch.Tensor, ...], given: tuple[torch.Tensor, ...], parts: int) -> None:
    """Refuses other shapes: PyTorch would send tensors that ranks do not expect, and they would wait forever."""
    if len(arguments) != len(given):
        raise OptionError(f"the pipeline was made for {len(given)} input tensors, and this batch has {len(arguments)}")
    for argument, example in zip(arguments, given, strict=True):
        shape = [parts * example.shape[0], *example.shape[1:]]
        if list(argument.shape) != shape or argument.dtype != example.dtype:
            raise OptionError(
                f"a batch is {parts} micro-batches like the one that the pipeline was made for, {example.dtype} {shape} in all, "
                f"and this one has {argument.dtype} {list(argument.shape)}"
            )


def _passed(stages: list[Stage], cut: Cut) -> list[tuple[torch.Tensor, ...]]:
    """What enters each stage, and what leaves the last one, as tensors without memory: so no rank has to run a stage on
    meaningless numbers to find the shapes. Makes messages ones that this release of PyTorch can send."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.enable_grad() if stages[0].training else torch.no_grad():
        passed: list[tuple[torch.Tensor, ...]] = [tuple(mode.from_tensor(value) for value in cut.inputs.values())]
        for stage in stages:
            # Even so, tensors of one element are really computed.
            with stage.without_statistics():
                made = stage(*passed[-1])
            passed.append(_leaves(made))
        if EACH_HAS_A_GRADIENT:
            for number in range(1, len(stages)):
                messages = Messages(passed[number])
                stages[number - 1].way.sent = stages[number].way.received = messages
                passed[number] = _leaves(messages.sent(passed[number]))
    return passed


def _leaves(values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(value.detach().requires_grad_(value.requires_grad) for value in values)


def stages_of(plan: StagePlan, cut: Cut) -> list[Stage]:
    """All stages of a plan, on all ranks."""
    stages: list[Stage] = []
    first = 0
    for layers in plan.recomputed:
        stages.append(Stage(cut, first, first + len(layers), layers))
        first += len(layers)
    return stages


def undividable(plan: StagePlan, stages: list[Stage]) -> str | None:
    """Why PyTorch cannot compute gradients of inputs and of weights separately, if the plan has it do so: if nothing
    before a stage is trained, it finds no gradients of the stage's inputs, and with them loses those of its weights; if
    several operators of a stage read a weight, it needs parts of autograd's graph again that it has freed."""
    if "W" not in plan.csv:
        return None
    trained = [any(parameter.requires_grad for parameter in stage.parameters()) for stage in stages]
    first = trained.index(True) if True in trained else 0
    again = [(number, stage.reads_again()) for number, stage in enumerate(stages)]
    reason = f"stage {first} is the first one with trained parameters" if first > 0 else None
    reason = next((f"stage {number} reads {name!r} more than once" for number, name in again if name is not None), reason)
    return reason and (
        f"{reason}, and {plan.schedule} computes gradients of inputs and of weights apart, which PyTorch cannot do there; plan "
        "with schedule=\"1f1b\", \"interleaved\" or \"gpipe\""
    )


def _one_owner(stages: list[Stage]) -> None:
    """Checks that no other stage has what a stage writes in its forward pass: each would have its own copy."""
    of_stages = [stage.statistics() for stage in stages]
    for writer, (written, _) in enumerate(of_stages):
        for reader, (_, held) in enumerate(of_stages):
            if reader != writer and (both := written & held):
                raise OptionError(
                    f"stage {writer} writes {min(both)!r} in its forward pass, and stage {reader} has it too; a statistic "
                    "belongs to one stage: plan for fewer devices, or with another schedule"
                )


def _shared(plan: StagePlan, stages: list[Stage], own: int,
            group: Any) -> list[tuple[nn.Parameter, distributed.ProcessGroup]]:
    """This rank's parameters that other ranks have too, with the group of those ranks; all ranks make all groups."""
    owners: dict[int, set[int]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for stage, rank in zip(stages, plan.placement, strict=True):
        for parameter in filter(lambda parameter: parameter.requires_grad, stage.named().values()):
            owners.setdefault(id(parameter), set()).add(rank)
            parameters[id(parameter)] = parameter
    groups: dict[tuple[int, ...], Any] = {}
    shared = []
    for key, ranks in owners.items():
        if len(ranks) < 2:
            continue
        members = tuple(sorted(ranks))
        if members not in groups:
            everywhere = [distributed.get_global_rank(group, rank) if group is not None else rank for rank in members]
            groups[members] = distributed.new_group(everywhere, use_local_synchronization=True)
        if own in ranks:
            shared.append((parameters[key], groups[members]))
    return shared


def _shard(stages: dict[int, Stage], mesh: DeviceMesh, shares: bool, divides: bool) -> None:
    """FSDP2: a layer gathers its parameters when it runs. If backward passes are split, PyTorch needs the gathered
    parameters between the halves, so they stay until the end of the step."""
    if shares:
        raise OptionError("a parameter that several ranks of a pipeline share cannot be sharded too; untie it, or leave dp out")
    for stage in stages.values():
        for layer in stage.layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh, reshard_after_forward=not divides)
        fully_shard(stage, mesh=mesh, reshard_after_forward=not divides)


def _device(stages: list[Stage]) -> torch.device:
    devices = {parameter.device for stage in stages for parameter in stage.parameters()}
    if len(devices) > 1:
        raise OptionError(f"the model lies on {', '.join(sorted(map(str, devices)))}; put all of it on this rank's device")
    return devices.pop() if devices else torch.device("cpu")
