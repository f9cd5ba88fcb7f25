"""What `torch.distributed.pipelining` runs: a rank's stages, in a plan's order.

Invariant: the shapes of messages were found beforehand, so no stage is run in order to find them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from .stage import Stage

if TYPE_CHECKING:
    from .planning import StagePlan


class Place(NamedTuple):
    """This rank's stages by their numbers, its device, and the group of all ranks of the pipeline."""

    stages: dict[int, Stage]
    device: torch.device
    group: distributed.ProcessGroup | None


def runtime(plan: StagePlan, place: Place, passed: list[tuple[torch.Tensor, ...]],
            loss_fn: Callable[[tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor],
            kind: type[RankStage] | None = None) -> tuple[_PipelineScheduleRuntime, list[PipelineStage]]:
    """`passed` is what enters each stage, and what leaves the last one. `loss_fn` is called with the latter and the
    number of the micro-batch, since PyTorch divides only targets that are tensors."""
    count = len(plan.placement)
    placed = dict(enumerate(plan.placement))
    stages = [
        (kind or RankStage)(module, stage, count, place.device, passed[stage], passed[stage + 1], group=place.group)
        for stage, module in place.stages.items()
    ]
    for stage in stages:
        stage.stage_index_to_group_rank = placed
    # PyTorch would scale gradients at the end, and scale twice those that two stages share.
    made = _PipelineScheduleRuntime(stages, plan.microbatches, loss_fn=loss_fn, scale_grads=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        path.write_text(plan.csv)
        made._load_csv(str(path))
    for stage in stages:
        stage.stage_index_to_group_rank = placed
    return made, stages


class RankStage(PipelineStage):
    """A stage that sends no message to its own rank."""

    def _get_init_p2p_neighbors_ops(self) -> list[distributed.P2POp]:
        # PyTorch's first releases begin with a message to each neighbour, even on one rank, which gloo cannot send.
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]
