"""Calls that overwrite an input: where PyTorch can, where the plan may, and without visible effects outside.

Invariant: whatever is overwritten, losses, gradients and all that a loop holds are eager's, bit for bit.

Tier: quick with a part of the cases, 8 s; full with all of them.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn import functional

import tightfit
from tier import cases
from tightfit import _native
from tightfit.devices import kind_of
from tightfit.training.inplace import overwriting, tried

aten = torch.ops.aten
ROWS, COLUMNS = torch.randn(64, 32), torch.randn(64, 32)
TRUTH = torch.rand(64, 32) > 0.5


def positions(overload: torch._ops.OpOverload, *args: object, most: int = 0) -> list[int]:
    def made() -> tuple[list[object], dict[str, object]]:
        return [item.clone() if isinstance(item, torch.Tensor) else item for item in args], {}

    return tried(overload, made, kind_of(torch.device("cpu")).peak_of, most)


@pytest.mark.parametrize(("overload", "args", "found"), [
    (aten.add.Tensor, (ROWS, COLUMNS), [0, 1]),
    (aten.mul.Tensor, (ROWS, COLUMNS[0]), [0]),  # broadcast: only the input of the result's shape
    (aten.mul.Tensor, (ROWS[:1], COLUMNS), [1]),
    (aten.relu.default, (ROWS,), [0]),
    (aten.gelu_backward.default, (ROWS, COLUMNS), [0, 1]),
    (aten.where.self, (TRUTH, ROWS, COLUMNS), [1, 2]),
    (aten._log_softmax.default, (ROWS, 1, False), [0]),
    (aten._log_softmax_backward_data.default, (ROWS, COLUMNS, 1, torch.float32), [0, 1]),
    (aten.hardswish.default, (ROWS,), [0]),  # not tagged as computing element by element
    (aten.hardtanh_backward.default, (ROWS, COLUMNS, -1.0, 1.0), [0, 1]),
    (aten.mse_loss_backward.default, (torch.tensor(1.0), ROWS, COLUMNS, 1), [1, 2]),
    (aten.mm.default, (ROWS, COLUMNS.T), []),  # reads what it has written
    (aten.clone.default, (ROWS,), []),  # its purpose is a copy
    (aten.add.Tensor, (ROWS, COLUMNS.double()), []),  # another type comes out
    (aten.lt.Tensor, (ROWS, COLUMNS), []),
    (aten.native_dropout.default, (ROWS, 0.5, True), []),
])
def test_what_a_call_can_be_written_over(overload, args, found) -> None:
    assert positions(overload, *args) == found


def test_a_tensor_that_is_read_twice_is_not_written() -> None:
    shared = ROWS.clone()
    found = tried(aten.mul.Tensor, lambda: ([shared, shared], {}), kind_of(torch.device("cpu")).peak_of, 0)
    assert found == []


def test_a_way_that_takes_more_memory_is_none() -> None:
    assert overwriting(aten.mul.Scalar, 0) is not None
    assert positions(aten.mul.Scalar, ROWS, 2.0, most=0) == []  # makes a tensor of the number
    assert positions(aten.mul.Scalar, ROWS, 2.0, most=16) == [0]


def test_one_number_does_not_show_that_all_round_alike() -> None:
    """In 16 bits, PyTorch rounds the factor before it multiplies in place."""
    number = torch.tensor(1.0, dtype=torch.bfloat16)
    assert torch.equal(aten.mul.Scalar(number, 0.9), aten.mul_.Scalar(number.clone(), 0.9))
    assert positions(aten.mul.Scalar, number, 0.9, most=16) == []


class Gated(nn.Module):
    """Gates, residuals and dropout: many calls of its backward pass can overwrite an input."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 16)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(3):
            hidden = functional.silu(self.gate(inputs)) * self.up(inputs)
            inputs = inputs + functional.dropout(self.down(hidden), 0.1)
        scores = self.head(functional.relu(inputs))
        return functional.cross_entropy(scores, targets), scores


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(256, 32, generator=generator), torch.randint(0, 16, (256,), generator=generator)


def steps(model: nn.Module, *, retain: bool = False, count: int = 3) -> list[torch.Tensor]:
    """Losses, outputs that are held, and gradients."""
    seen = []
    torch.manual_seed(5)
    for seed in range(count):
        inputs, targets = batch(seed)
        loss, scores = model(inputs, targets)
        if retain:
            loss.backward(retain_graph=True)
        loss.backward()
        seen += [loss.detach(), scores.detach(), inputs, targets]
        seen += [parameter.grad.clone() for parameter in model.parameters()]
        if seed == 1:
            model.zero_grad()
    return seen


def smallest() -> int:
    """The smallest known budget for `steps`, which in addition to a call hold its scores, which the first plan may assume
    to be freed, and those of two others."""
    model = tightfit.compile(Gated(), budget="min")
    seen = steps(model)
    return max(plan.peak for plan in tightfit.plans(model)) + 3 * seen[1].nbytes


@pytest.mark.parametrize(("retain", "room"), cases((False, 0), (True, 60_000), full=[
    (True, 0), (False, 60_000), (False, None), (True, None),
]))
def test_losses_outputs_and_gradients_are_eagers(retain: bool, room: int | None) -> None:
    torch.manual_seed(0)
    eager = Gated()
    least = smallest()
    # A graph that is kept takes more than a plan that overwrites.
    budget = "1GiB" if room is None else least + room + (2_000_000 if retain else 0)
    model = tightfit.compile(copy.deepcopy(eager), budget=budget)
    for ours, theirs in zip(steps(model, retain=retain), steps(eager, retain=retain), strict=True):
        assert torch.equal(ours, theirs)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def test_gradients_of_many_tangents_at_once_are_not_written_over_anything() -> None:
    torch.manual_seed(0)
    eager, inputs = Small(), torch.randn(5, 8)
    tangents = torch.randn(3, 5, 4)
    found = []
    for model in (eager, tightfit.compile(copy.deepcopy(eager), "8MiB")):
        found.append(torch.autograd.grad(model(inputs), model.first.weight, tangents, is_grads_batched=True))
    assert torch.equal(found[0][0], found[1][0])


def test_plans_overwrite_only_what_the_step_has_to_itself() -> None:
    graph = tightfit.capture_step(Gated(), batch(0))
    assert any(node.get("overwrites") for node in graph["nodes"])
    # Measured times decide between plans, and differ from run to run.
    graph["nodes"] = [node | ({"seconds": 1e-5} if "seconds" in node else {}) for node in graph["nodes"]]
    held = _native.hold(json.dumps(graph).encode(), None)
    apart = {"nodes": [{key: item for key, item in node.items() if key != "overwrites"} for node in graph["nodes"]]}
    assert held.peak < _native.hold(json.dumps(graph | apart).encode(), None).peak
    plan = json.loads(held.document)
    storage = {value["id"]: value["storage"] for node in plan["nodes"] for value in node["outputs"] if value}
    overwritten = [(node, *node["overwrites"]) for node in plan["nodes"] if node.get("overwrites")]
    assert overwritten
    [barrier] = [node for node in plan["nodes"] if node["op"] == "tightfit.barrier"]
    given = [value["id"] for node in plan["nodes"] if node["op"] == "placeholder" for value in node["outputs"]]
    owed = [*given, *barrier["inputs"], *(value["id"] for value in barrier["outputs"]), *plan["outputs"]]
    order = {node["name"]: index for index, node in enumerate(plan["nodes"])}
    for node, value in overwritten:
        assert storage[value] not in {storage[other] for other in owed}
        later = [other for other in plan["nodes"][order[node["name"]] + 1:]]
        assert all(storage[read] != storage[value] for other in later for read in other.get("inputs", ()))
