"""Runs a planned pipeline on the ranks of a process group, by `torch.distributed.pipelining`.

Invariant: a step leaves in every parameter's gradient the mean over all micro-batches, whichever rank has the parameter;
ranks that share one have the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.utils import _pytree as pytree

from ..errors import OptionError
from .cutting import Cut
from .stage import Stage

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .planning import StagePlan


class Pipeline:
    """This rank's stages of a model, and the order in which they run.

    `stages` are modules: give their parameters, `parameters()`, to an optimizer, and call `step` where a loop calls
    forward and backward pass.
    """

    def __init__(self, plan: StagePlan, cut: Cut, loss_fn: Callable[..., torch.Tensor], mesh: DeviceMesh | None) -> None:
        group = None if mesh is None or mesh.mesh_dim_names is None else mesh["pp"].get_group()
        self.rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
        if ranks != plan.ranks:
            raise OptionError(f"the plan is for {plan.ranks} ranks, and the group has {ranks}; plan for as many devices")
        every = _stages(plan, cut)
        _gradients_reach(plan, every)
        mine = [stage for stage, rank in enumerate(plan.placement) if rank == self.rank]
        self.stages = {stage: every[stage] for stage in mine}
        self._shared = _shared(plan, every, self.rank, group)
        if mesh is not None and mesh.mesh_dim_names is not None and "dp" in mesh.mesh_dim_names:
            _shard(self.stages, mesh["dp"], bool(self._shared), "W" in plan.csv)
        device = _device(every)
        count = len(plan.placement)
        placed = dict(enumerate(plan.placement))
        stages = [PipelineStage(module, stage, count, device, group=group) for stage, module in self.stages.items()]
        for stage in stages:
            stage.stage_index_to_group_rank = placed
        self._microbatches = plan.microbatches
        self._first, self._last = 0 in self.stages, count - 1 in self.stages
        # PyTorch would divide gradients at the end, and one that two stages share twice.
        def share(output: Any, target: Any) -> torch.Tensor:
            return loss_fn(output, target) / plan.microbatches

        self._runtime = _PipelineScheduleRuntime(stages, plan.microbatches, loss_fn=share, scale_grads=False)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.csv"
            path.write_text(plan.csv)
            self._runtime._load_csv(str(path))
        for stage in stages:
            stage.stage_index_to_group_rank = placed

    def step(self, inputs: Any = None, target: Any = None) -> torch.Tensor | None:
        """Forward and backward pass of all micro-batches. `inputs` are those of the whole batch, which is divided along its
        first dimension, and count on the rank of the first stage; `target` counts on that of the last one, which
        answers the mean of the losses of the micro-batches. Other ranks answer `None`. Raises `OptionError` where the batch
        is not one of as many equal micro-batches."""
        arguments: tuple[Any, ...] = ()
        if self._first:
            arguments = tuple(pytree.tree_leaves(inputs))
        given = (*arguments, *(pytree.tree_leaves(target) if self._last else ()))
        for tensor in given:
            _divisible(tensor, self._microbatches)
        # What earlier steps left there was summed then.
        earlier = [parameter.grad for parameter, _ in self._shared]
        for parameter, _ in self._shared:
            parameter.grad = None
        losses: list[torch.Tensor] = []
        if self._last:
            self._runtime.step(*arguments, target=target, losses=losses, return_outputs=False)
        else:
            self._runtime.step(*arguments, return_outputs=False)
        for (parameter, group), before in zip(self._shared, earlier, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad, group=group)
            if before is not None:
                parameter.grad += before
        return torch.stack([loss.detach() for loss in losses]).sum() if self._last else None

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's parameters, each once."""
        return iter({id(parameter): parameter for _, parameter in self.named_parameters()}.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters by the names that they have in the model."""
        for stage in self.stages.values():
            yield from stage.named().items()


def _divisible(tensor: Any, parts: int) -> None:
    """PyTorch would make fewer parts, or unequal ones, for which other ranks wait for ever."""
    rows = tensor.shape[0] if isinstance(tensor, torch.Tensor) and tensor.dim() else 0
    if rows == 0 or rows % parts:
        what = f"{rows} rows" if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
        raise OptionError(f"a batch is {parts} micro-batches of as many rows each, and this one has {what}")


def _stages(plan: StagePlan, cut: Cut) -> list[Stage]:
    stages: list[Stage] = []
    first = 0
    for layers in plan.recomputed:
        stages.append(Stage(cut, first, first + len(layers), layers))
        first += len(layers)
    return stages


def _gradients_reach(plan: StagePlan, stages: list[Stage]) -> None:
    """Where nothing before a stage is trained, PyTorch finds no gradients of its inputs, and with these loses those of its
    weights where both are computed apart."""
    trained = [any(parameter.requires_grad for parameter in stage.parameters()) for stage in stages]
    first = trained.index(True) if True in trained else 0
    if first > 0 and "W" in plan.csv:
        raise OptionError(
            f"stage {first} is the first one with trained parameters, and {plan.schedule} computes gradients of inputs and of "
            "weights apart, which PyTorch does wrong there; plan with schedule=\"1f1b\", \"interleaved\" or \"gpipe\""
        )


def _shared(plan: StagePlan, stages: list[Stage], own: int,
            group: Any) -> list[tuple[nn.Parameter, distributed.ProcessGroup]]:
    """This rank's parameters that others have too, with the group of those; all ranks make all groups."""
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
    """FSDP2: a layer gathers its parameters when it runs. Where backward passes are divided, PyTorch looks for the gathered
    ones between the parts, so they stay until the end of the step."""
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
