"""Pipelines that are planned here and run by PyTorch, in several processes.

Tier: quick with a part of the cases, 60 s; full with all of them.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

import pipelined
import tightfit
import tightfit.distributed as pipelines
from tightfit.distributed.cutting import Answer, Cut, Entry, add_evaluation, cut
from tightfit.distributed.messages import Messages
from tightfit.distributed.running import _one_owner, stages_of, undividable
from tightfit.distributed.stage import Stage, evaluating
from tier import FULL, full


def right(found: list[list[dict]], owners: int) -> None:
    """Each rank's gradients and statistics are those of one process, and each parameter is on some rank."""
    for runs in zip(*found, strict=True):
        what = f"{runs[0]['schedule']}, {runs[0]['kind']}, {runs[0]['change']}"
        for seen in runs:
            assert seen["apart"] <= 1e-6 + 1e-5 * seen["largest"], what
            assert seen["statistics"] <= 1e-6, what
            assert seen["refused"], what
        assert sum(seen["loss"] is not None for seen in runs) == owners, what
        assert all(seen["loss"] is None or seen["loss"] < 1e-6 for seen in runs), what
        names = {name for seen in runs for name in seen["names"]}
        trained = dict(pipelined.model(runs[0]["kind"]).named_parameters())
        if runs[0]["kind"] != "late":
            # No layer reads it.
            del trained["late.weight"]
        assert names >= trained.keys(), what


def evaluated(found: list[list[dict]], owners: int) -> None:
    """Evaluations are those of one process, on the ranks that return one, and do not change the steps."""
    for runs in zip(*found, strict=True):
        what = f"{runs[0]['schedule']}, {runs[0]['change']}"
        assert all(seen["apart"] <= 1e-6 and seen["same"] for seen in runs), f"{what}: {runs}"
        assert sum(all(seen["answered"]) for seen in runs) == owners, what
        assert sum(any(seen["answered"]) for seen in runs) == owners, what


@full
def test_two_processes_have_the_gradients_of_one():
    schedules = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "v-min", "greedy", "greedy-v", "asyncpipe"]
    runs = [[2, schedule, "plain", None] for schedule in schedules]
    runs += [[2, "1f1b", "tied", "recomputed"], [2, "zb-v", "tied", "recomputed"], [2, "zb-h1", "plain", "recomputed"]]
    right(pipelined.seen(2, runs), 1)


@full
def test_models_of_all_kinds_are_cut_anywhere():
    orders = ["zb-v", "1f1b"] if FULL else ["zb-v"]
    runs = [[2, schedule, "plain", "within blocks"] for schedule in [*orders, *(["greedy"] if FULL else [])]]
    runs += [[2, schedule, "statistics", change] for schedule in orders for change in [None, "recomputed"]]
    runs += [[2, schedule, "late", None] for schedule in orders]
    runs += [[2, None, "repeated", None]]
    found = pipelined.seen(2, runs)
    right(found, 1)
    assert found[0][-1]["schedule"] in ["gpipe", "1f1b", "interleaved"]


def test_four_processes_have_the_gradients_of_one():
    right(pipelined.seen(4, [[4, "1f1b", "tied", None], [4, "zb-v", "plain", "recomputed"]]), 1)


def test_pipeline_and_sharding_together():
    right(pipelined.seen(4, [[2, "1f1b", "plain", None], [2, "zb-v", "plain", "recomputed"]]), 2)


def test_messages_that_all_have_gradients_are_the_values():
    """Messages as PyTorch's first releases need them, whichever release this is."""
    values = [torch.randn(2, 3, requires_grad=True) * 2, torch.tensor([-1, 2**62]), torch.tensor([True, False]), torch.randn(3).half(),
              torch.tensor([7, -7], dtype=torch.int32), torch.tensor([200], dtype=torch.uint8)]
    messages = Messages(values)
    sent = messages.sent(values)
    assert all(message.requires_grad for message in sent)
    received = [message.detach().clone().requires_grad_(True) for message in sent]
    found = messages.read(received)
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(found, values, strict=True))
    [made, _] = messages.owing([found[0].sin(), found[1]], received)
    made.detach_()  # as PyTorch does with what it has sent
    [made, _] = messages.owing([found[0].sin(), found[1]], received)
    made.sum().backward()
    assert torch.equal(received[0].grad, received[0].cos())
    assert all(torch.equal(message.grad, torch.zeros_like(message)) for message in received[1:])
def test_evaluations_are_those_of_one_process():
    evaluated(pipelined.seen(2, [[2, "zb-v", "dropping", None]]), 1)


@full
def test_evaluations_of_more_orders():
    evaluated(pipelined.seen(2, [[2, "1f1b", "dropping", None], [2, "interleaved", "dropping", "recomputed"],
                                 [2, "zb-v", "dropping", "within blocks"]]), 1)
    evaluated(pipelined.seen(4, [[2, "1f1b", "dropping", None], [2, "zb-v", "dropping", "recomputed"]]), 2)


def through(plan: pipelines.StagePlan, model: nn.Module, inputs: torch.Tensor):
    """The results of the stages, one after the other, in this process."""
    whole = cut(model, (inputs,), plan.begins)
    values = (inputs,)
    for stage in stages_of(plan, whole):
        values = stage(*values)
    return whole.answer.of(values)


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
    model = pipelined.model("plain")
    plan = pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=2,
                          machine="a100-80gb")
    parts = plan.document["module_fqns_per_model_part"]
    listed = [name for part in parts for name in part]
    assert listed[0] == "embed" and listed[-1] == "head" and len(set(listed)) == len(listed)
    with pytest.raises(tightfit.PlanError, match="tightfit-stages/1"):
        pipelines.StagePlan.read({"format": "tightfit-plan/1"})
    assert pipelines.StagePlan.read(plan.document) == plan
    # A few bytes do not suffice for any device's part.
    with pytest.raises(tightfit.TightfitError, match="no plan was found"):
        pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget=1000, microbatches=4, devices=2,
                       machine="a100-80gb")
    with pytest.raises(tightfit.OptionError, match="devices"):
        pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4)
    with pytest.raises(tightfit.OptionError, match="orders are gpipe"):
        pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=2,
                       schedule="best", machine="a100-80gb")


@pytest.mark.parametrize(("given", "because"), [
    ({"mesh": "x"}, "mesh= is of type str"), ({"loss_fn": None}, "loss_fn=None"), ({"balance": []}, "at least one"),
    ({"batch": (3, torch.ones(2, 1))}, "inputs hold no tensor"), ({"batch": (torch.ones(2, 1), None)}, "target hold no tensor"),
    ({"bandwidth": "x"}, "bandwidth=x"), ({"latency": -1}, "latency=-1"),
])
def test_what_makes_no_sense_is_refused_by_name(given, because):
    asked = {"model": nn.Linear(1, 1), "batch": (torch.ones(2, 1), torch.ones(2, 1)), "loss_fn": functional.mse_loss,
             "budget": "1GB", "microbatches": 2, "devices": 1, "machine": "a100-80gb"}
    with pytest.raises(tightfit.OptionError, match=because):
        pipelines.plan(**{**asked, **given})


def test_one_process_is_a_pipeline_too(tmp_path):
    words, targets = pipelined.batch(0)
    model = pipelined.model("tied")
    # Frozen parameters have no gradient, in the pipeline or in one process.
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
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        torch.testing.assert_close(pipeline.evaluate(words, targets), expected.detach())
        torch.testing.assert_close(pipeline.predict(words), model(words).detach())
        found = (parameter.grad for parameter in model.parameters() if parameter.grad is not None)
        assert all(map(torch.equal, gradients, found))
        with pytest.raises(tightfit.OptionError, match="7 rows"):
            pipeline.evaluate(words, targets[:7])
        with pytest.raises(tightfit.OptionError, match=r"torch.int64 \[8, 5\] in all, and this one has torch.int64 \[7, 5\]"):
            pipeline.predict(words[:7])
        with pytest.raises(tightfit.OptionError, match=r"torch.int64 \[8, 5\] in all, and this one has torch.int64 \[7, 5\]"):
            pipeline.step(words[:7], targets[:7])
        with pytest.raises(tightfit.OptionError, match="7 rows"):
            pipeline.step(words, targets[:7])
        with pytest.raises(tightfit.OptionError, match="1 input tensors, and this batch has 2"):
            pipeline.step((words, words), targets)
        with pytest.raises(tightfit.OptionError, match="positional"):
            plan.apply(model, {"words": words[:2]}, pipelined.loss_fn)
        with pytest.raises(tightfit.OptionError, match="the plan is for 3 ranks"):
            wide = pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=3,
                                  machine="a100-80gb")
            wide.apply(model, words[:2], pipelined.loss_fn)
    finally:
        torch.distributed.destroy_process_group()


def test_a_plan_may_be_cut_by_hand():
    words, targets = pipelined.batch(0)
    model, other = pipelined.model("plain"), pipelined.model("plain")
    plan = pipelines.plan(model, (words[:2], targets[:2]), pipelined.loss_fn, budget="1GB", microbatches=4, devices=2,
                          schedule="asyncpipe", machine="a100-80gb")
    before = list(map(len, plan.recomputed))
    first, second = plan.document["stages"]
    second["layers"].insert(0, first["layers"].pop())
    by_hand = pipelines.StagePlan.read(plan.document)
    assert list(map(len, by_hand.recomputed)) == [before[0] - 1, before[1] + 1]
    assert torch.equal(through(by_hand, model, words[:2]), other(words[:2]))


def test_cuts_are_asked_for_by_children_or_by_name():
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())]
    model, x, t = nn.Sequential(*layers), torch.randn(4, 8), torch.randn(4, 8)

    def planned(balance, model=model, **more):
        return pipelines.plan(model, (x, t), functional.mse_loss, budget="1GB", microbatches=4, machine="a100-80gb",
                              balance=balance, devices=2, **more)

    def begins(plan):
        return [stage["layers"][0]["begins"]["module"] for stage in plan.document["stages"][1:]]

    assert begins(planned([2, 6])) == ["2"] and begins(planned(["5"])) == ["5"]
    assert begins(planned([2, 2, 3, 1], schedule="zb-v")) == ["2", "4", "7"]
    assert torch.equal(through(planned([2, 6]), model, x), model(x))
    for balance, because in [([2, 5], "counts 7 children, and the model has 8"), ([8, 0], "at least one"),
                             ("3", "a list of numbers or of names"), ([1, 2, 5], "name 1 or 3 modules"),
                             (["0"], "the model begins with `0`"), (["9"], "no operator")]:
        with pytest.raises(tightfit.OptionError, match=because):
            planned(balance)
    with pytest.raises(tightfit.OptionError, match="is no nn.Sequential"):
        planned([1, 1], pipelined.model("plain"))


@full
def test_a_frozen_beginning_has_schedules_that_pytorch_can_run():
    words, targets = pipelined.batch(0)
    model = pipelined.model("plain")
    model.embed.requires_grad_(False)
    for block in model.blocks[:7]:
        block.requires_grad_(False)
    asked = {"budget": "1GB", "microbatches": 4, "devices": 2, "machine": "a100-80gb"}
    batch = words[:2], targets[:2]
    assert pipelines.plan(model, batch, pipelined.loss_fn, **asked).schedule in ("1f1b", "interleaved", "gpipe")
    with pytest.raises(tightfit.OptionError, match="zb-v computes gradients"):
        pipelines.plan(model, batch, pipelined.loss_fn, schedule="zb-v", **asked)
    trained = pipelined.model("plain")
    divided = pipelines.plan(trained, batch, pipelined.loss_fn, schedule="zb-v", **asked)
    assert undividable(divided, stages_of(divided, cut(trained, (words[:2],), divided.begins))) is None
    stages = stages_of(divided, cut(model, (words[:2],), divided.begins))
    assert "is the first one with trained" in undividable(divided, stages)


def test_a_statistic_belongs_to_one_stage():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)
            self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.inner[1](self.norm(self.inner[0](x))))

    model, x = Shared(), torch.randn(4, 8)
    whole = cut(model, (x,), [Entry("inner.1", 0)])
    with pytest.raises(tightfit.OptionError, match="'norm.running_mean'"):
        _one_owner([Stage(whole, layer, layer + 1, [False]) for layer in range(2)])
    _one_owner([Stage(whole, 0, 2, [False, False])])


class Moody(nn.Module):
    """Constants, a parameter and the calls depend on the mode."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.norm, self.inner = nn.BatchNorm1d(8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.drop, self.scale = nn.Dropout(0.5), nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner[1](self.drop(self.norm(self.inner[0](x))))
        if not self.training:
            x = x * self.scale if self.kind != "cross" else self.inner[0](x)
        if self.kind == "untraceable" and not self.training and x.sum() > 0:
            x = -x
        return self.inner[2](x) + (torch.tensor(2.0) if self.training else torch.tensor(3.0))


def in_two_modes(model: nn.Module, x: torch.Tensor, begins: list[Entry]) -> Cut:
    whole = cut(model, (x,), begins)
    add_evaluation(whole, model, (x,), begins)
    return whole


def test_a_cut_model_has_two_modes():
    model, x = Moody(), torch.randn(4, 8)
    model(x)
    model.norm.momentum = 0.5
    model.inner[2].eval()
    whole = in_two_modes(model, x, [Entry("inner.1", 0), Entry("inner.2", 0)])
    assert [name for name, module in model.named_modules() if not module.training] == ["inner.2"]
    assert [layer.trained is layer.evaluated for layer in whole.layers] == [False, False, False]
    stages = [Stage(whole, 0, 1, [False]), Stage(whole, 1, 3, [False, False])]
    value = x
    for stage in stages:
        [value] = stage(value)
    # Training has written statistics, and evaluation reads them.
    statistics = [buffer.clone() for buffer in model.buffers()]
    value = x
    with evaluating(stages):
        for stage in stages:
            [value] = stage(value)
    assert all(map(torch.equal, statistics, model.buffers())) and not value.requires_grad
    assert torch.equal(value, model.eval()(x)) and all(stage.training for stage in stages)
    gone, kept = weakref.ref(model.inner[2].weight), weakref.ref(model.inner[0].weight)
    del model, whole, stages[1], stage
    gc.collect()
    assert gone() is None and kept() is not None
    once = Moody().eval()
    same = in_two_modes(once, x, [])
    assert same.evaluated is same.answer
    plain = in_two_modes(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), x, [])
    assert plain.layers[0].trained is plain.layers[0].evaluated and isinstance(plain.evaluated, Answer)


def test_a_model_without_evaluation_mode_is_trained_all_the_same(tmp_path):
    x = torch.randn(4, 8)
    for kind, begins, reason in [
        ("untraceable", [], "in evaluation mode, PyTorch could not trace Moody"),
        ("cross", [Entry("inner.1", 0)], "layer 1 reads 'inner.0.weight'"),
    ]:
        model = Moody(kind)
        whole = in_two_modes(model, x, begins)
        assert isinstance(whole.evaluated, str) and reason in whole.evaluated
        assert all(layer.trained is layer.evaluated for layer in whole.layers)
    model = Moody("untraceable")
    plan = pipelines.plan(model, (x, x), functional.mse_loss, budget="1GB", microbatches=2, devices=1, schedule="gpipe",
                          machine="a100-80gb")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        pipeline = plan.apply(model, x, functional.mse_loss)
        batch = torch.randn(8, 8)
        assert pipeline.step(batch, batch) > 0
        for refused in (lambda: pipeline.evaluate(batch, batch), lambda: pipeline.predict(batch)):
            with pytest.raises(tightfit.ExportError, match="cannot evaluate, only train: in evaluation mode, PyTorch could not"):
                refused()
    finally:
        torch.distributed.destroy_process_group()


def test_another_model_is_refused():
    model = pipelined.model("plain")
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
        assert torch.equal(whole.answer.of(values), model(x))
