"""Pipelines of several processes over gloo beside the same model in one process: `seen` starts them, and returns what
each rank saw of each run.

Invariant: all ranks make the same model and the same batch from seeds, so a rank can compute by itself what its parameters'
gradients are to be.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

import tightfit.distributed as pipelines

WIDTH, WORDS, MICRO_BATCHES, ROWS = 16, 11, 4, 2


class Block(nn.Module):
    """Attention-less, with a mask that depends on the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))) * mask)


class Words(nn.Module):
    """A model whose embedding is read again behind all blocks, and may be the head too."""

    def __init__(self, blocks: int, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = (words > 2).float()[..., None]
        embedded = x = self.embed(words)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x + embedded)


def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = MICRO_BATCHES * ROWS
    return tuple(torch.randint(0, WORDS, (rows, 5), generator=generator) for _ in range(2))


def model(tied: bool) -> Words:
    torch.manual_seed(5)
    return Words(10, tied)


def expected(tied: bool, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and the gradients of the mean over all micro-batches of all batches, in one process."""
    alone = model(tied)
    losses = [
        loss_fn(alone(words), target)
        for inputs, targets in batches
        for words, target in zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True)
    ]
    mean = torch.stack(losses).mean()
    mean.backward()
    named = alone.named_parameters(remove_duplicate=False)
    return mean.item(), {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def recomputing(plan: pipelines.StagePlan) -> pipelines.StagePlan:
    """The same plan, in which every layer is recomputed."""
    document = copy.deepcopy(plan.document)
    for stage in document["stages"]:
        for layer in stage["layers"]:
            layer["recomputed"] = True
    return pipelines.StagePlan.read(document)


def run(devices: int, schedule: str, tied: bool, again: bool, mesh: Any) -> dict[str, Any]:
    """One step of this rank beside what it is to be."""
    own = model(tied)
    inputs, _ = batch(0)
    micro_batch = (inputs[:ROWS], inputs[:ROWS])
    plan = pipelines.plan(own, micro_batch, loss_fn, budget="1GB", microbatches=MICRO_BATCHES, devices=devices,
                          schedule=schedule, machine="a100-80gb")
    if again:
        plan = recomputing(plan)
    pipeline = plan.apply(own, micro_batch[0], loss_fn, mesh=mesh)
    parts = 1 if mesh is None else mesh["dp"].size()
    part = 0 if mesh is None else mesh["dp"].get_local_rank()
    # Gradients of one step stay out of the next one.
    pipeline.step(*batch(part + 7))
    for parameter in pipeline.parameters():
        parameter.grad = None
    loss = pipeline.step(*batch(part))
    mean, gradients = expected(tied, [batch(number) for number in range(parts)])
    apart = [furthest(pipeline, gradients, 1)]
    # Without setting them to zero, gradients add up.
    pipeline.step(*batch(part))
    apart.append(furthest(pipeline, gradients, 2))
    names = [name for name, _ in pipeline.named_parameters()]
    largest = max(float(gradients[name].abs().max()) for name in names)
    losses = [loss_fn(model(tied)(words), target) for words, target in
              zip(*(part.chunk(MICRO_BATCHES) for part in batch(part)), strict=True)]
    return {
        "schedule": plan.schedule, "tied": tied, "again": again, "apart": max(apart), "largest": largest, "names": names,
        "loss": None if loss is None else abs(loss.item() - torch.stack(losses).mean().item()), "mean": mean,
    }


def furthest(pipeline: pipelines.Pipeline, gradients: dict[str, torch.Tensor], steps: int) -> float:
    """How far a gradient is at most from what so many steps of one process leave."""
    apart = 0.0
    for name, parameter in pipeline.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        apart = max(apart, float((gradient - steps * gradients[name]).abs().max()))
    return apart


def main(rank: int, ranks: int, folder: str, runs: list[list[Any]]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    found = []
    for devices, schedule, tied, again in runs:
        mesh = None
        if devices < ranks:
            shape = (ranks // devices, devices)
            mesh = distributed.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp"))
        found.append(run(devices, schedule, tied, again, mesh))
    distributed.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def seen(ranks: int, runs: list[list[Any]]) -> list[list[dict[str, Any]]]:
    """What each rank saw of each run, `[devices, schedule, tied, recomputed]`."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen([sys.executable, __file__, str(rank), str(ranks), folder, json.dumps(runs)],
                             env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(ranks)
        ]
        said = [process.communicate()[0] for process in processes]
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank}:\n{said[rank]}"
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
