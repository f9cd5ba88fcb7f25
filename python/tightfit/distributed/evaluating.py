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

# Receives the values of which a model's result for a micro-batch consists, and the micro-batch's number.
Take = Callable[[tuple[torch.Tensor, ...], int], None]


class Evaluation:
    """This rank's stages in evaluation mode. `answer` is what the model returns in that mode, and `passed` what enters
    each stage and leaves the last one. PyTorch's part is made when first needed: its messages are not those of
    training."""

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
            # PyTorch drops the gradients of sharded parameters when it begins.
            for parameter, gradient in gradients:
                parameter.grad = gradient

    def _taken(self, values: tuple[torch.Tensor, ...], number: torch.Tensor) -> torch.Tensor:
        assert self._take is not None and self._made is not None
        self._take(values, int(number))
        # Otherwise PyTorch keeps the results of every micro-batch until the end.
        self._made[1][-1].clear_runtime_states()
        return torch.zeros(())


class _ForwardStage(RankStage):
    """Without gradients: in `eval`, PyTorch skips backward passes, but still passes their results on within a rank."""

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        pass
