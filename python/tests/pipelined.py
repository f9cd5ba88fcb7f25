"""Pipelines of several processes over gloo, compared with the same model in one process: `seen` starts them, and
returns each rank's results of each run.

Invariant: all ranks make the same model and the same batch from seeds, so a rank can compute by itself what its
parameters' gradients should be.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

import tightfit.distributed as pipelines
from fresh import Fresh
from tightfit.errors import OptionError

WIDTH, WORDS, MICRO_BATCHES, ROWS = 16, 11, 4, 2


class Block(nn.Module):
    """Attention-less, with a mask that depends on the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))) * mask)


class Normed(nn.Module):
    """With statistics that a forward pass writes."""

    def __init__(self, dropped: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(dropped)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + self.drop(functional.relu(self.up(self.norm(x.flatten(0, 1)).view_as(x)), inplace=True)) * mask


class Words(nn.Module):
    """A model whose embedding is read again after all blocks. In the kind "tied" it is also the head. Its blocks may
    have statistics, or be one block that is called repeatedly. The kind "late" reads the words again at its end, and
    its batch is a structure. The kind "dropping" has statistics and dropout, and what crosses a cut, and its result,
    depend on the mode."""

    def __init__(self, blocks: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.late = nn.Embedding(WORDS, WIDTH)
        made = {"statistics": Normed, "dropping": lambda: Normed(0.5)}.get(kind, Block)
        self.blocks = nn.ModuleList(made() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if kind == "tied":
            self.head.weight = self.embed.weight
        if kind == "repeated":
            self.blocks = nn.ModuleList([self.blocks[0]] * blocks)

    def forward(self, words: Any) -> Any:
        if self.kind == "late":
            words, scale, _ = words
        mask = (words > 2).float()[..., None]
        embedded = x = self.embed(words)
        for block in self.blocks:
            x = block(x, mask)
        if self.kind == "dropping":
            # In training mode, the embedding is not read again this late.
            logits = self.head(x if self.training else x + embedded)
            return {"logits": logits, "size": logits.square().mean()}
        if self.kind != "late":
            return self.head(x + embedded)
        return {"logits": self.head(x + self.late(words) * scale), "words": words}


def loss_fn(output: Any, target: Any) -> torch.Tensor:
    if isinstance(output, dict) and "size" in output:
        return loss_fn(output["logits"], target) + 0.01 * output["size"]
    if isinstance(output, dict):
        output, target, weight = output["logits"], target["words"], target["weight"]
        return weight * functional.cross_entropy(output.flatten(0, 1), target.flatten())
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = MICRO_BATCHES * ROWS
    return tuple(torch.randint(0, WORDS, (rows, 5), generator=generator) for _ in range(2))


def structured(kind: str, inputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, Any]:
    """The batch as a model of that kind takes it."""
    if kind != "late":
        return inputs, target
    return ((inputs, torch.full((len(inputs), 1, 1), 0.5), None),), {"words": target, "weight": 2.0}


def model(kind: str) -> Words:
    torch.manual_seed(5)
    return Words(10, kind)


def expected(kind: str, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and the gradients of the mean over all micro-batches of all batches, in one process."""
    alone = model(kind)
    losses = []
    for inputs, targets in batches:
        for words, target in zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True):
            arguments, aim = structured(kind, words, target)
            losses.append(loss_fn(alone(*arguments) if isinstance(arguments, tuple) else alone(arguments), aim))
    mean = torch.stack(losses).mean()
    mean.backward()
    named = alone.named_parameters(remove_duplicate=False)
    return mean.item(), {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def through_blocks(plan: pipelines.StagePlan, within: str = "down") -> pipelines.StagePlan:
    """The same order of a plan with one layer a stage, cut within blocks: what a residual connection carries over a cut
    is also read before it."""
    document = copy.deepcopy(plan.document)
    count = len(document["stages"])
    for number, stage in enumerate(document["stages"]):
        begins = {"module": f"blocks.{10 * number // count}.{within}", "call": 0} if number else None
        stage["layers"] = [{"begins": begins, "recomputed": False}]
    return pipelines.StagePlan.read(document)


def recomputing(plan: pipelines.StagePlan) -> pipelines.StagePlan:
    """The same plan, in which every layer is recomputed."""
    document = copy.deepcopy(plan.document)
    for stage in document["stages"]:
        for layer in stage["layers"]:
            layer["recomputed"] = True
    return pipelines.StagePlan.read(document)


def run(devices: int, schedule: str | None, kind: str, change: str | None, mesh: Any) -> dict[str, Any]:
    """One step of this rank, compared with the expected one."""
    own = model(kind)
    inputs, target = structured(kind, *(tensor[:ROWS] for tensor in batch(0)))
    plan = pipelines.plan(own, (inputs, target), loss_fn, budget="1GB", microbatches=MICRO_BATCHES, devices=devices,
                          schedule=schedule, machine="a100-80gb")
    plan = {"recomputed": recomputing, "within blocks": through_blocks}.get(change or "", lambda plan: plan)(plan)
    pipeline = plan.apply(own, inputs, loss_fn, mesh=mesh)
    parts = 1 if mesh is None else mesh["dp"].size()
    part = 0 if mesh is None else mesh["dp"].get_local_rank()
    # Once gradients are reset, those of one step do not affect the next one.
    pipeline.step(*structured(kind, *batch(part + 7)))
    for parameter in pipeline.parameters():
        parameter.grad = None
    is_refused = refuses(pipeline, structured(kind, *(tensor[:MICRO_BATCHES] for tensor in batch(part))))
    loss = pipeline.step(*structured(kind, *batch(part)))
    mean, gradients = expected(kind, [batch(number) for number in range(parts)])
    apart = [furthest(pipeline, gradients, 1)]
    # Without a reset, gradients add up.
    pipeline.step(*structured(kind, *batch(part)))
    apart.append(furthest(pipeline, gradients, 2))
    names = [name for name, _ in pipeline.named_parameters()]
    largest = max(float(gradients[name].abs().max()) for name in names if name in gradients)
    alone, _ = expected(kind, [batch(part)])
    return {
        "schedule": plan.schedule, "kind": kind, "change": change, "apart": max(apart), "largest": largest, "names": names,
        "refused": is_refused, "loss": None if loss is None else abs(loss.item() - alone), "mean": mean,
        "statistics": statistics(own, pipeline, kind, part),
    }


def refuses(pipeline: pipelines.Pipeline, wrong: tuple[Any, Any]) -> bool:
    """Whether this rank refuses a batch; only the first one sees that its number of rows is wrong."""
    try:
        pipeline.step(*wrong)
    except OptionError:
        return True
    return False


def evaluations(devices: int, schedule: str | None, change: str | None, mesh: Any) -> dict[str, Any]:
    """Compares evaluations of this rank before, between and after steps with those of one process, and says whether the
    steps have the same bits as without evaluations."""
    part = 0 if mesh is None else mesh["dp"].get_local_rank()
    words, targets = (tensor[:ROWS] for tensor in batch(0))
    plan = pipelines.plan(model("dropping"), (words, targets), loss_fn, budget="1GB", microbatches=MICRO_BATCHES,
                          devices=devices, schedule=schedule, machine="a100-80gb")
    if change is not None:
        plan = recomputing(plan) if change == "recomputed" else through_blocks(plan, "drop")
    apart: list[float] = []
    answered: list[bool] = []

    def trained(evaluates: bool) -> list[torch.Tensor]:
        own = model("dropping")
        pipeline = plan.apply(own, words, loss_fn, mesh=mesh)
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
        torch.manual_seed(3 + part)
        left: list[torch.Tensor] = []

        def evaluate() -> None:
            if evaluates:
                loss, answer = pipeline.evaluate(*batch(part + 9)), pipeline.predict(batch(part + 11)[0])
                answered.append(loss is not None)
                with torch.random.fork_rng():
                    apart.append(unlike(pipeline, own, loss, answer, part, mesh))

        if change != "recomputed":
            # In the other cases, gradients already exist when PyTorch begins to evaluate.
            evaluate()
        for number in range(2):
            loss = pipeline.step(*batch(part + number))
            left += [] if loss is None else [loss]
            evaluate()
            left += [local(parameter.grad).clone() for parameter in pipeline.parameters() if parameter.grad is not None]
            optimizer.step()
            optimizer.zero_grad()
        evaluate()
        left += [local(parameter).clone() for parameter in pipeline.parameters()]
        left += [buffer.clone() for _, buffer in sorted(own.named_buffers())]
        return left

    without, between = trained(False), trained(True)
    same = len(without) == len(between) and all(map(torch.equal, without, between))
    return {"schedule": plan.schedule, "change": change, "same": same, "apart": max(apart), "answered": answered}


def unlike(pipeline: pipelines.Pipeline, own: Words, loss: torch.Tensor | None, answer: Any, part: int, mesh: Any) -> float:
    """The difference between an evaluation and that of one process with the parameters and statistics of all ranks."""
    written = {name for stage in pipeline.stages.values() for name in stage.statistics()[0]}
    named: dict[str, torch.Tensor] = {name: buffer for name, buffer in own.named_buffers() if name in written}
    for name, parameter in pipeline.named_parameters():
        named[name] = (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach()
    group = None if mesh is None else mesh["pp"].get_group()
    everywhere: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everywhere, named, group=group)
    alone = model("dropping").eval()
    missing, _ = alone.load_state_dict({name: value for one in everywhere for name, value in one.items()}, strict=False)
    assert missing == ["late.weight"], missing
    if loss is None:
        assert answer is None
        return 0.0
    with torch.no_grad():
        micro_batches = list(zip(*(tensor.chunk(MICRO_BATCHES) for tensor in batch(part + 9)), strict=True))
        mean = torch.stack([loss_fn(alone(words), targets) for words, targets in micro_batches]).mean()
        words = batch(part + 11)[0]
        logits = alone(words)["logits"]
        sizes = torch.stack([alone(words)["size"] for words in words.chunk(MICRO_BATCHES)])
    assert not loss.requires_grad and list(answer) == ["logits", "size"]
    pairs = [(loss, mean), (answer["logits"], logits), (answer["size"], sizes)]
    assert all(found.shape == right.shape for found, right in pairs)
    return max(float((found - right).abs().max()) for found, right in pairs)


def local(tensor: Any) -> torch.Tensor:
    """This rank's part of a tensor."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()


def statistics(own: Words, pipeline: pipelines.Pipeline, kind: str, part: int) -> float:
    """The largest difference between a buffer of this rank's stages and the result of three steps in one process."""
    alone = model(kind)
    for seed in (part + 7, part, part):
        for words in batch(seed)[0].chunk(MICRO_BATCHES):
            arguments, _ = structured(kind, words, words)
            alone(*arguments) if isinstance(arguments, tuple) else alone(arguments)
    written = {name for stage in pipeline.stages.values() for name in stage.statistics()[0]}
    found = dict(own.named_buffers())
    return max((float((found[name] - buffer).abs().max()) for name, buffer in alone.named_buffers() if name in written),
               default=0.0)


def furthest(pipeline: pipelines.Pipeline, gradients: dict[str, torch.Tensor], steps: int) -> float:
    """The largest difference between a gradient and the result of this many steps in one process."""
    apart = 0.0
    for name, parameter in pipeline.named_parameters():
        gradient = parameter.grad
        assert (gradient is None) == (name not in gradients), name
        if gradient is None:
            continue
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        apart = max(apart, float((gradient - steps * gradients[name]).abs().max()))
    return apart


def main(rank: int, ranks: int, folder: str, runs: list[list[Any]]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    found = []
    for devices, schedule, kind, change in runs:
        mesh = None
        if devices < ranks:
            shape = (ranks // devices, devices)
            mesh = distributed.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp"))
        is_trained = kind != "dropping"
        found.append(run(devices, schedule, kind, change, mesh) if is_trained else evaluations(devices, schedule, change, mesh))
    distributed.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def seen(ranks: int, runs: list[list[Any]]) -> list[list[dict[str, Any]]]:
    """Each rank's results of each run, `[devices, schedule, kind of model, what is changed in the plan]`."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        script = str(Path(__file__).resolve())
        processes = [Fresh(script, str(rank), str(ranks), folder, json.dumps(runs), environment=environment)
                     for rank in range(ranks)]
        codes = [process.wait() for process in processes]
        said = [process.said() for process in processes]
        for process in processes:
            process.close()
        # All of them: if one fails, the others report that they cannot reach it.
        failed = [f"rank {rank}:\n{said[rank]}" for rank, code in enumerate(codes) if code != 0]
        assert not failed, "\n".join(failed)
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
