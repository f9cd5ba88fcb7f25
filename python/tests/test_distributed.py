"""Pipelines that are planned here and run by PyTorch, in several processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import pipelined
import tightfit
import tightfit.distributed as pipelines
from tightfit.distributed.cutting import Entry, cut
from tightfit.distributed.running import _gradients_reach
from tightfit.distributed.stage import Stage


def right(found: list[list[dict]], owners: int) -> None:
    """Each rank's gradients are those of one process, and all parameters are somewhere."""
    for runs in zip(*found, strict=True):
        what = f"{runs[0]['schedule']}, tied {runs[0]['tied']}, recomputed {runs[0]['again']}"
        for seen in runs:
            assert seen["apart"] <= 1e-6 + 1e-5 * seen["largest"], what
        assert sum(seen["loss"] is not None for seen in runs) == owners, what
        assert all(seen["loss"] is None or seen["loss"] < 1e-6 for seen in runs), what
        names = {name for seen in runs for name in seen["names"]}
        assert names >= {name for name, _ in pipelined.model(runs[0]["tied"]).named_parameters()}, what


def test_two_processes_have_the_gradients_of_one():
    schedules = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "v-min", "greedy", "greedy-v"]
    runs = [[2, schedule, False, False] for schedule in schedules]
    runs += [[2, "1f1b", True, True], [2, "zb-v", True, True], [2, "zb-h1", False, True]]
    right(pipelined.seen(2, runs), 1)


def test_four_processes_have_the_gradients_of_one():
    right(pipelined.seen(4, [[4, "1f1b", True, False], [4, "zb-v", False, True]]), 1)


def test_pipeline_and_sharding_together():
    right(pipelined.seen(4, [[2, "1f1b", False, False], [2, "zb-v", False, True]]), 2)


def through(plan: pipelines.StagePlan, model: nn.Module, inputs: torch.Tensor):
    """What the stages make, one after the other, in this process."""
    whole = cut(model, (inputs,), plan.begins)
    values, first = (inputs,), 0
    for layers in plan.recomputed:
        values = Stage(whole, first, first + len(layers), layers)(*values)
        first += len(layers)
    return values


def test_a_model_with_statistics_and_branches_is_cut_too():
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model, other = torchvision.models.resnet18(), torchvision.models.resnet18()
    other.load_state_dict(model.state_dict())
    batch = torch.randn(4, 3, 64, 64), torch.randint(0, 1000, (4,))
    plan = pipelines.plan(model, batch, functional.cross_entropy, budget="4GB", microbatches=4, devices=3, machine="a100-80gb")
    assert torch.equal(through(plan, model, batch[0]), other(batch[0]))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.buffers(), other.buffers(), strict=True))


def test_a_transformer_answers_what_it_does_itself():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=99, use_cache=False)
    model = transformers.LlamaForCausalLM(config)
    words = torch.randint(0, 99, (2, 16))

    def loss_fn(output, target):
        return functional.cross_entropy(output.logits.flatten(0, 1).float(), target.flatten())

    plan = pipelines.plan(model, (words, words.clone()), loss_fn, budget="4GB", microbatches=4, devices=3, schedule="1f1b",
                          machine="a100-80gb")
    answer = through(plan, model, words)
    assert torch.equal(answer.logits, model(words).logits)
    assert "3 ranks" in str(plan) and "lm_head" in str(plan)


def test_a_plan_is_written_and_read(tmp_path):
    words, targets = pipelined.batch(0)
    model = pipelined.model(False)
    plan = pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=2,
                          machine="a100-80gb")
    parts = plan.document["module_fqns_per_model_part"]
    listed = [name for part in parts for name in part]
    assert listed[0] == "embed" and listed[-1] == "head" and len(set(listed)) == len(listed)
    with pytest.raises(tightfit.PlanError, match="tightfit-stages/1"):
        pipelines.StagePlan.read({"format": "tightfit-plan/1"})
    assert pipelines.StagePlan.read(plan.document) == plan
    # A few bytes hold no device's part.
    with pytest.raises(tightfit.TightfitError, match="no plan was found"):
        pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget=1000, microbatches=4, devices=2,
                       machine="a100-80gb")
    with pytest.raises(tightfit.OptionError, match="devices"):
        pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4)
    with pytest.raises(tightfit.OptionError, match="orders are gpipe"):
        pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=2,
                       schedule="best", machine="a100-80gb")


def test_one_process_is_a_pipeline_too(tmp_path):
    words, targets = pipelined.batch(0)
    model = pipelined.model(True)
    # What is frozen has no gradient, here or there.
    model.blocks[0].requires_grad_(False)
    plan = pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=1,
                          schedule="gpipe", machine="a100-80gb")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        pipeline = plan.apply(model, words[:2], pipelined.loss_fn)
        loss = pipeline.step(words, targets)
        seen = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
        model.zero_grad()
        expected = pipelined.loss_fn(model(words), targets)
        expected.backward()
        torch.testing.assert_close(loss, expected.detach())
        for name, parameter in model.named_parameters():
            assert (parameter.grad is None) == (name not in seen), name
            if parameter.grad is not None:
                torch.testing.assert_close(seen[name], parameter.grad, rtol=1e-4, atol=1e-6)
        with pytest.raises(tightfit.OptionError, match="7 rows"):
            pipeline.step(words[:7], targets[:7])
        with pytest.raises(tightfit.OptionError, match="positional"):
            plan.apply(model, {"words": words[:2]}, pipelined.loss_fn)
        with pytest.raises(tightfit.OptionError, match="the plan is for 3 ranks"):
            wide = pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=3,
                                  machine="a100-80gb")
            wide.apply(model, words[:2], pipelined.loss_fn)
    finally:
        torch.distributed.destroy_process_group()


def test_a_frozen_beginning_has_schedules_that_pytorch_can_run():
    words, targets = pipelined.batch(0)
    model = pipelined.model(False)
    model.embed.requires_grad_(False)
    for block in model.blocks[:7]:
        block.requires_grad_(False)
    asked = {"budget": "1GB", "microbatches": 4, "devices": 2, "machine": "a100-80gb"}
    batch = words[:2], targets[:2]
    assert pipelines.plan(model, batch, pipelined.loss_fn, **asked).schedule in ("1f1b", "gpipe")
    divided = pipelines.plan(model, batch, pipelined.loss_fn, schedule="zb-v", **asked)
    stages, first = [], 0
    whole = cut(model, (words[:2],), divided.begins)
    for layers in divided.recomputed:
        stages.append(Stage(whole, first, first + len(layers), layers))
        first += len(layers)
    with pytest.raises(tightfit.OptionError, match="zb-v computes gradients"):
        _gradients_reach(divided, stages)


def test_another_model_is_refused():
    model = pipelined.model(False)
    words, _ = pipelined.batch(0)
    with pytest.raises(tightfit.ExportError, match="'blocks.99'"):
        cut(model, (words,), [Entry("blocks.3", 0), Entry("blocks.99", 0)])
    with pytest.raises(tightfit.ExportError, match="'blocks.1'"):
        cut(model, (words,), [Entry("blocks.3", 0), Entry("blocks.1", 0)])


def test_a_module_that_is_called_twice_is_cut_at_either_call():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.again(self.first(x)))
            return self.again(torch.relu(self.first(x)))

    model, x = Twice(), torch.randn(3, 8)
    for begins in ([Entry("again", 0)], [Entry("again", 1)], [Entry("again", 0), Entry("first", 1)]):
        whole = cut(model, (x,), begins)
        values = (x,)
        for layer in range(len(begins) + 1):
            values = Stage(whole, layer, layer + 1, [False])(*values)
        assert torch.equal(values, model(x))
