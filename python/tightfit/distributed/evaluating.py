"""The forward passes of a pipeline alone, in evaluation mode.

Invariant: they leave parameters, gradients, buffers and random numbers as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage

from .cutting import Answer
from .runtime import Place, RankStage, runtime
from .stage import evaluating

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    from .planning import StagePlan

# What is done with the values that a model's answer to a micro-batch is made of, and with its number.
Take = Callable[[tuple[torch.Tensor, ...], int], None]


class Evaluation:
    """This rank's stages in evaluation mode. `answer` is what the model returns then, and `passed` what enters each stage, and
    leaves the last one. PyTorch's part is made when it is first needed: these messages are others than those of training."""

    def __init__(self, plan: StagePlan, place: Place, answer: Answer, passed: list[tuple[torch.Tensor, ...]]) -> None:
        self.answer = answer
        self._plan, self._place, self._passed = plan, place, passed
        self._made: tuple[_PipelineScheduleRuntime, list[PipelineStage]] | None = None
        self._take: Take | None = None

    def run(self, arguments: tuple[torch.Tensor, ...], take: Take) -> None:
        """The forward passes of all micro-batches; `take` is called on the rank of the last stage."""
        if self._made is None:
            self._made = runtime(self._plan, self._place, self._passed, self._taken, _ForwardStage)
        schedule, stages = self._made
        self._take = take
        device = self._place.device
        others = {"devices": [device], "device_type": device.type} if device.type != "cpu" else {"devices": []}
        modules = self._place.stages.values()
        gradients = [(parameter, parameter.grad) for module in modules for parameter in module.parameters()]
        try:
            with evaluating(modules), torch.random.fork_rng(**others):
                last = stages[-1].is_last
                numbers = {"target": torch.arange(self._plan.microbatches)} if last else {}
                schedule.eval(*arguments, return_outputs=False, **numbers)
        finally:
            self._take = None
            for stage in stages:
                stage.clear_runtime_states()
            # When it begins, PyTorch drops those of parameters that are sharded.
            for parameter, gradient in gradients:
                parameter.grad = gradient

    def _taken(self, values: tuple[torch.Tensor, ...], number: torch.Tensor) -> torch.Tensor:
        assert self._take is not None and self._made is not None
        self._take(values, int(number))
        # PyTorch keeps what every micro-batch answers until the end.
        self._made[1][-1].clear_runtime_states()
        return torch.zeros(())


class _ForwardStage(RankStage):
    """Without gradients: PyTorch leaves out backward passes in `eval`, but hands their results to a stage of the same rank."""

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        pass
