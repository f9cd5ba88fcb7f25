"""`tightfit.compile` and related functions as a user meets them: options, refusals, records, planning without running.

Invariant: a refusal is one exception of the package that says what to do; the plan made without running is the plan
made when running.

Tier: quick with a part of the cases, 45 s; full with all of them.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import re
import warnings
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

import tightfit
from tightfit import cache, calls, measure
from tightfit.devices import kind_of
from tightfit.training import binding, costs
from tightfit.training.joint import path
from tightfit.training.optimizer_state import state_bytes
from tier import full

BIG = "1GiB"


class Perceptron(nn.Module):
    """A model that returns its loss; `trouble` says what else it does."""

    def __init__(self, trouble: str = "") -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.trouble = trouble
        self.recurrent = nn.LSTM(16, 16) if trouble == "lstm" else None

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.first(inputs))
        if self.trouble == "print":
            print("a call that leaves PyTorch")
        if self.trouble == "branch" and hidden.sum() > 0:
            hidden = hidden * 2
        if self.trouble == "guard":
            hidden = functional.gaussian_nll_loss(hidden, hidden, hidden.exp())
        if self.recurrent is not None:
            hidden = self.recurrent(hidden)[0]
        return functional.cross_entropy(self.second(hidden), targets)


class Both(nn.Module):
    """Returns a loss and what it was computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.layer(inputs)
        return hidden.square().mean(), hidden


def batch(rows: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8), torch.randint(0, 4, (rows,))


def gpt(layers: int = 2) -> transformers.GPT2Config:
    return transformers.GPT2Config(n_layer=layers, n_embd=32, n_head=2, vocab_size=64, n_positions=32, use_cache=False,
                                   bos_token_id=None, eos_token_id=None)


@pytest.mark.parametrize(("budget", "size"), [("6 GiB", 6 << 30), ("2.5gb", 2_500_000_000), (12345678, 12345678),
                                             (np.int64(12345678), 12345678)])
def test_budgets_as_people_write_them(budget: int | str | np.int64, size: int) -> None:
    model = tightfit.compile(Perceptron(), budget=budget)
    model(*batch()).backward()
    assert [plan.budget for plan in tightfit.plans(model)] == [size]


@pytest.mark.parametrize("budget", [-1, 0, "0 GiB", "x", 1.5, None, True, "60%", 10**30, "1e3", "GiB", "", [1]])
def test_budgets_that_are_none(budget: object) -> None:
    with pytest.raises(tightfit.OptionError, match="budget="):
        tightfit.compile(Perceptron(), budget=budget)


@pytest.mark.parametrize("options", [{"deadline": 0}, {"deadline": "soon"}, {"deadline": float("nan")}, {"deadline": 10**400}, {"loss_memory": "much"},
                                     {"optimizer": "adamwx"}, {"differentiable_outputs": 1}, {"planner": "crystal ball"},
                                     {"planner": None}, {"planner": "sac", "offload": "1GiB"}])
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(tightfit.OptionError, match=next(iter(options))):
        tightfit.compile(Perceptron(), budget=BIG, **options)


def test_the_machine_of_a_model_on_the_processor_is_that() -> None:
    model, batch = nn.Linear(8, 4), torch.randn(16, 8)
    assert tightfit.plan(model, batch, machine="cpu").peak == tightfit.plan(model, batch).peak
    with pytest.raises(tightfit.OptionError, match="a model without memory"):
        tightfit.plan(model.to("meta"), batch.to("meta"), machine="cpu")


def test_a_model_that_is_compiled_already() -> None:
    inside = Perceptron()
    inside.compile()
    for model in (inside, torch.compile(Perceptron()), tightfit.compile(Perceptron(), budget=BIG)):
        with pytest.raises(tightfit.CompileError, match="compiled already"):
            tightfit.compile(model, budget=BIG)
    with pytest.raises(tightfit.OptionError, match="function"):
        tightfit.compile(lambda inputs: inputs, budget=BIG)


@pytest.mark.parametrize(("trouble", "said"), [
    ("print", "captured as one graph, at .*print"), ("branch", "captured as one graph, at .*torch.where"),
    ("guard", "captured as one graph, at .*torch.where"), ("lstm", "recurrent layer .*, at .* as a loop"),
])
def test_what_cannot_be_captured_is_refused_with_its_place(trouble: str, said: str) -> None:
    model = tightfit.compile(Perceptron(trouble), budget=BIG)
    with pytest.raises(tightfit.CompileError, match=said) as refused:
        model(*batch())
    assert f"{__file__}:" in str(refused.value)


def test_a_batch_that_does_not_fit_the_model(capfd: pytest.CaptureFixture[str]) -> None:
    model = tightfit.compile(Perceptron(), budget=BIG)
    with pytest.raises(tightfit.CompileError, match=r"forward fails .*test_compile\.py.*: [^:]*50, 3"):
        model(torch.randn(50, 3), batch()[1])
    assert capfd.readouterr().err == ""
    model(*batch()).backward()


def test_a_refused_budget_names_one_that_suffices() -> None:
    work = batch()
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        tightfit.compile(Perceptron(), budget=70_000)(*work)
    proof = refused.value
    assert proof.budget == 70_000 < proof.needed <= proof.smallest
    assert f"budget={proof.smallest}" in str(proof)
    model = tightfit.compile(Perceptron(), budget=proof.smallest)
    model(*work).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(tightfit.InfeasibleBudget):
        tightfit.compile(Perceptron(), budget=proof.needed - 1)(*work)


class Block(nn.Module):
    """Two layers, a norm before and an addition after them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.dropout(functional.gelu(self.up(self.norm(inputs))), 0.2)
        return inputs + self.down(hidden)


class Blocks(nn.Module):
    """Modules of modules, which can be checkpointed separately."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return functional.cross_entropy(self.head(inputs), targets)


def test_modules_are_checkpointed_as_sac_decides() -> None:
    work = torch.randn(400, 32), torch.randint(0, 4, (400,))
    eager = Blocks()
    roomy = tightfit.plan(eager, work, BIG, planner="sac")
    assert roomy.recomputed == 0 and roomy.peak == roomy.unplanned_peak
    least = tightfit.plan(eager, work, planner="sac")
    budget = (least.peak + roomy.peak) // 2
    planned = tightfit.plan(eager, work, budget, planner="sac")
    assert planned.peak <= budget < roomy.peak and planned.recomputed > 0
    model = Blocks()
    model.load_state_dict(eager.state_dict())
    tightfit.compile(model, budget=budget, planner="sac")
    for one in (eager, model):
        torch.manual_seed(1)
        one(*work).backward()
    assert [plan.peak <= budget and plan.recomputed > 0 for plan in tightfit.plans(model)] == [True]
    for one, other in zip(eager.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        tightfit.compile(Blocks(), budget=1, planner="sac")(*work)
    assert tightfit.compile(Blocks(), budget=refused.value.smallest, planner="sac")(*work).isfinite()


def test_a_model_without_modules_is_refused_by_sac() -> None:
    model = tightfit.compile(nn.Linear(8, 4), budget="1KiB", planner="sac")
    with pytest.raises(tightfit.OptionError, match="names no modules below the model itself"):
        model(torch.randn(100, 8))


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(4):
        model(*batch()).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def resetting_in_between(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(3):
        loss = model(*batch())
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss.backward()
        optimizer.step()


def failing_after_the_backward_pass(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(3):
        with contextlib.suppress(KeyError):
            model(*batch()).backward()
            if step == 0:
                raise KeyError
            optimizer.step()
            optimizer.zero_grad()


def minimizing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(*batch())
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


@pytest.mark.parametrize("loop", [accumulating, resetting_in_between, failing_after_the_backward_pass, minimizing])
@pytest.mark.parametrize("is_normed", [False, True])
def test_a_budget_that_is_named_suffices_for_the_steps_behind_it(loop, is_normed: bool) -> None:
    def run(budget: int) -> None:
        model = Perceptron()
        if is_normed:
            nn.utils.weight_norm(model.first)
        optimizer = torch.optim.AdamW(model.parameters())
        reserved = torch.optim.LBFGS(model.parameters(), history_size=3) if loop is minimizing else optimizer
        loop(tightfit.compile(model, budget=budget, optimizer=reserved, deadline=0.2), optimizer)

    with warnings.catch_warnings(), pytest.raises(tightfit.InfeasibleBudget) as refused:
        warnings.simplefilter("ignore", FutureWarning)
        run(70_000)
    assert re.search(rf"budget={refused.value.smallest} or more \(\d+ if every step begins without gradients", str(refused.value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        run(refused.value.smallest)


def test_a_budget_for_a_loop_that_lets_gradients_go_is_named_too() -> None:
    work = batch()
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        tightfit.compile(Perceptron(), budget=70_000, optimizer="sgd")(*work)
    model = tightfit.compile(Perceptron(), budget=int(re.search(r"\((\d+) if every", str(refused.value))[1]), optimizer="sgd")
    for _ in range(3):
        model.zero_grad()
        model(*work).backward()
    with pytest.raises(tightfit.InfeasibleBudget, match=r"Gradients of an earlier step count.*zero_grad\(\)"):
        model(*work)


def test_calls_that_wait_are_counted_at_what_they_hold_under_a_larger_budget() -> None:
    work, waiting = batch(), []
    small = tightfit.plan(Perceptron(), work, "min").peak
    model = tightfit.compile(Perceptron(), budget=small + 1000, optimizer="sgd")
    with pytest.raises(tightfit.InfeasibleBudget, match=r"Run each backward pass right after its forward pass.*up to [\d,]+ bytes") as refused:
        waiting += [model(*work), model(*work)]
    model = tightfit.compile(Perceptron(), budget=refused.value.smallest, optimizer="sgd")
    sum([model(*work), model(*work)]).backward()


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(tightfit.OptionError, match="trains none of the parameters of Perceptron"):
        tightfit.compile(Perceptron(), BIG, optimizer=torch.optim.AdamW(Perceptron().parameters()))


def test_state_of_an_optimizer_is_reserved() -> None:
    work = batch()
    sizes = {}
    for optimizer in (None, "sgd", "adamw", torch.optim.AdamW):
        with pytest.raises(tightfit.InfeasibleBudget) as refused:
            tightfit.compile(Perceptron(), budget=1, optimizer=optimizer)(*work)
        sizes[optimizer] = refused.value.smallest
    parameters = sum(parameter.nbytes for parameter in Perceptron().parameters())
    assert 2 * parameters <= sizes["adamw"] - sizes[None] <= 2 * parameters + 100
    assert sizes["adamw"] == sizes[torch.optim.AdamW] and sizes["sgd"] - sizes[None] <= 100


@pytest.mark.parametrize("make", [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters),
    lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    lambda parameters: torch.optim.RMSprop(parameters, momentum=0.9, centered=True),
    lambda parameters: torch.optim.Adagrad(parameters),
    lambda parameters: torch.optim.Adadelta(parameters),
    lambda parameters: torch.optim.NAdam(parameters),
    lambda parameters: torch.optim.Rprop(parameters),
])
def test_what_is_reserved_for_state_is_what_is_there_later(make) -> None:
    model = Perceptron()
    optimizer = make(model.parameters())
    reserved = state_bytes(optimizer, model.parameters())
    model(*batch()).backward()
    optimizer.step()
    there = state_bytes(optimizer, model.parameters())
    assert there <= reserved <= there + 16 * len(list(model.parameters()))


def test_outputs_beside_the_loss_have_no_gradient_unless_asked() -> None:
    inputs = torch.randn(4, 8)
    model = tightfit.compile(Both(), budget=BIG)
    loss, hidden = model(inputs)
    assert hidden.requires_grad
    loss.backward()
    with pytest.raises(tightfit.CompileError, match="differentiable_outputs=True"):
        hidden.mean().backward()
    eager = Both()
    model = tightfit.compile(Both(), budget=BIG, differentiable_outputs=True)
    model.load_state_dict(eager.state_dict())
    for one in (eager, model):
        loss, hidden = one(inputs)
        (loss + hidden.mean()).backward()
    assert torch.equal(eager.layer.weight.grad, model.layer.weight.grad)


def test_models_of_one_class_have_budgets_of_their_own() -> None:
    work = batch()
    roomy, tight = tightfit.compile(Perceptron(), budget=BIG), tightfit.compile(Perceptron(), budget=1)
    roomy(*work).backward()
    with pytest.raises(tightfit.InfeasibleBudget):
        tight(*work)
    roomy(*work).backward()


def test_batch_normalization_runs_again_with_the_same_statistics() -> None:
    torch.manual_seed(0)
    layers = (layer for _ in range(5) for layer in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()))
    eager = nn.Sequential(*layers)
    compiled = tightfit.compile(copy.deepcopy(eager), "min", deadline=0.2)
    for step in range(3):
        images = torch.randn(4, 8, 24, 24)
        for model in (eager, compiled):
            model.zero_grad()
            model(images).square().mean().backward()
        assert all(torch.equal(mine.grad, theirs.grad)
                   for mine, theirs in zip(compiled.parameters(), eager.parameters(), strict=True))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(compiled.buffers(), eager.buffers(), strict=True))
    least = min(tightfit.plans(compiled), key=lambda plan: plan.peak)
    # Of three saved tensors per layer, nothing but a few inputs stays.
    assert least.recomputed >= 10
    assert least.peak < 0.6 * least.unplanned_peak


def test_a_compiled_model_dies_when_its_user_lets_it_go() -> None:
    model = tightfit.compile(Perceptron(), budget=BIG)
    model(*batch()).backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_the_backend_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # If PyTorch cannot isolate models, the limit of eight belongs to their class, which other tests have compiled.
    torch._dynamo.reset()
    work = batch()
    eager, model = Perceptron(), Perceptron()
    model.load_state_dict(eager.state_dict())
    compiled = torch.compile(model, backend="tightfit", options={"budget": BIG}, dynamic=False)
    compiled(*work).backward()
    eager(*work).backward()
    assert all(torch.equal(one.grad, other.grad)
               for one, other in zip(eager.parameters(), model.parameters(), strict=True))
    monkeypatch.setenv("TIGHTFIT_BUDGET", "1KiB")
    with pytest.raises(tightfit.InfeasibleBudget):
        torch.compile(Perceptron(), backend="tightfit")(*work)
    monkeypatch.delenv("TIGHTFIT_BUDGET")
    for options, said in ((None, "budget is missing"), ({"budgit": 1}, "budgit"), ({"budget": "x"}, "no number of bytes")):
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=said):
            torch.compile(Perceptron(), backend="tightfit", options=options)(*work)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="several graphs"):
        torch.compile(Perceptron("print"), backend="tightfit", options={"budget": BIG})(*work)


@full
def test_planning_without_running_says_what_running_plans() -> None:
    tokens = torch.randint(0, 64, (2, 16))
    given = {"input_ids": tokens, "labels": tokens}
    model = transformers.GPT2LMHeadModel(gpt())
    least = tightfit.plan(model, given)
    whole = tightfit.plan(model, given, BIG)
    assert least.peak < whole.peak <= whole.unplanned_peak and whole.recomputed == 0
    budget = (least.peak + whole.peak) // 2
    planned = tightfit.plan(model, given, budget)
    assert planned.peak <= budget and planned.recomputed > 0
    tightfit.compile(model, budget=budget)
    out = model(**given)
    out.loss.backward()
    [made] = tightfit.plans(model)
    assert (made.peak, made.recomputed, made.unplanned_peak) == (planned.peak, planned.recomputed, planned.unplanned_peak)
    with pytest.raises(tightfit.CompileError, match="compiled already"):
        tightfit.plan(model, given)
    with pytest.raises(tightfit.InfeasibleBudget):
        tightfit.plan(transformers.GPT2LMHeadModel(gpt()), given, 1000)


@full
def test_models_without_memory_are_planned_for_a_machine() -> None:
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(gpt(4))
        tokens = torch.zeros(4, 32, dtype=torch.int64)
    given = {"input_ids": tokens, "labels": tokens}
    whole = tightfit.plan(model, given, "1TiB", machine="h100-80gb")
    least = tightfit.plan(model, given, machine="h100-80gb", optimizer="adamw")
    assert whole.trains and whole.recomputed == 0 and least.recomputed > 0
    assert whole.unplanned_seconds < 1e-3
    real = transformers.GPT2LMHeadModel(gpt(4))
    counted = {"input_ids": torch.zeros(4, 32, dtype=torch.int64), "labels": torch.zeros(4, 32, dtype=torch.int64)}
    there = tightfit.plan(real, counted, "1TiB", machine="h100-80gb")
    assert there.unplanned_peak == whole.unplanned_peak
    with pytest.raises(tightfit.TightfitError, match="machine"):
        tightfit.plan(model, given, machine="abacus")


def test_a_captured_step_is_a_graph_like_any_other(tmp_path) -> None:
    model, work = Perceptron(), batch()
    graph = tightfit.capture_step(model, work)
    assert tightfit.read_graph(graph).name == "Perceptron"
    assert tightfit.pareto(graph, points=3)
    page = tightfit.explain(model, work, tmp_path / "step.html", points=2)
    assert "<svg" in (tmp_path / "step.html").read_text() and page == str(tmp_path / "step.html")
    model(*work).backward()  # the model has not changed


def test_quick_calls_are_the_same_calls() -> None:
    matrix, bias = torch.empty(4, 4, device="meta"), torch.empty(4, device="meta")
    aten = torch.ops.aten
    for overload, args, kwargs in (
        (aten.mm.default, [matrix, matrix], {}), (aten.add.Tensor, [matrix, bias], {}), (aten.add.Tensor, [matrix, 1], {}),
        (aten.add.Scalar, [matrix, 1], {}), (aten.sum.dim_IntList, [matrix, [0], True], {}), (aten.t.default, [matrix], {}),
        (aten.gelu.default, [matrix], {"approximate": "tanh"}), (aten.native_layer_norm.default, [matrix, [4], bias, bias, 1e-5], {}),
        (aten.view.default, [matrix, [2, 8]], {}), (aten.view.default, [matrix, [16]], {}),
        (aten.permute.default, [matrix, [1, 0]], {}), (aten.sum.dim_IntList, [matrix, [0, 1]], {}), (aten.amax.default, [matrix, [1]], {}),
        (aten._unsafe_view.default, [matrix, [2, 8]], {}), (aten.squeeze.dims, [matrix, [0]], {}),
        (aten.split_with_sizes.default, [matrix, [1, 3]], {}), (aten.flip.default, [matrix, [0]], {}), (aten._to_copy.default, [matrix], {"dtype": torch.bfloat16}),
    ):
        way = binding.quickest(overload, args, kwargs)
        with pytest.raises(binding._Seen) as seen, torch.no_grad(), binding._Look():
            way.call(args, kwargs)
        assert seen.value.operator is overload
        given = seen.value.args_seen
        assert [list(one) if isinstance(one, (list, tuple)) else one for one in given[1:]] == args[1:len(given)]


def test_costs_are_those_of_the_allocator() -> None:
    inputs = torch.randn(1 << 10, 1 << 8)
    peak_of = kind_of(torch.device("cpu")).peak_of
    assert peak_of(lambda: inputs + inputs) == inputs.nbytes
    assert peak_of(lambda: (inputs + inputs).exp().view(-1)) == 2 * inputs.nbytes
    assert peak_of(lambda: inputs.view(-1)) == 0


def test_what_is_known_of_costs_is_kept(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = tightfit.capture_step(Perceptron(), batch(), measure=False)
    device = torch.device("cpu")
    first = costs.costed(graph, device)
    monkeypatch.setattr(costs, "_measured", lambda *_: pytest.fail("measured twice"))
    assert costs.costed(graph, device) == replace(first, most=0) and first.most > 0 and not first.refused
    [kept] = (tmp_path / "tightfit" / "costs").iterdir()
    for damage in ("", "[]", "{", json.dumps({"key": 1})):
        kept.write_text(damage)
        with pytest.raises(pytest.fail.Exception):
            costs.costed(graph, device)
    assert {node["op"] for node in first.document["nodes"] if measure.takes_time(node, measure.values_of(graph))
            and "seconds" not in node} <= {"tightfit.barrier"}
    assert calls.overload("aten.mm.default") is torch.ops.aten.mm.default


def test_measuring_more_than_the_budget_is_said_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan in which results overwrite what they were made from holds less than one operator that is measured alone."""
    class Chain(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                inputs = (inputs + 1).exp().log_softmax(1)
            return inputs.sum()

    inputs = torch.randn(256, 256, requires_grad=True)
    least = tightfit.plan(Chain(), (inputs,), "min").peak
    for folder, is_said in (("new", True), ("new", False)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
        model = tightfit.compile(Chain(), budget=least)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                model(inputs).backward()
        said = [str(one.message) for one in caught if "measuring the operators of a step of Chain held" in str(one.message)]
        assert len(said) == is_said, said


@pytest.mark.parametrize(("source", "found"), [
    ("L['self']._modules['h']._modules['0']._parameters['weight']", "h.0.weight"),
    ("L['self'].h.0.attn", "h.0.attn"), ("L['inputs']", ""), ("", ""),
])
def test_paths_of_what_dynamo_found(source: str, found: str) -> None:
    assert path(source) == found


def test_a_refusal_holds_whether_or_not_outputs_are_held() -> None:
    work = torch.randn(64, 8)
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        tightfit.compile(Both(), budget=1)(work)
    proof = refused.value
    for holds in (True, False):
        model = tightfit.compile(Both(), budget=proof.smallest)
        for _ in range(3):
            model.zero_grad()
            loss, hidden = model(work)
            if not holds:
                del hidden
            loss.backward()
            if holds:
                del hidden
    with pytest.raises(tightfit.InfeasibleBudget):
        tightfit.compile(Both(), budget=proof.needed - 1)(work)


class Exponential(nn.Module):
    """Returns a loss, and an output that its backward pass does not need."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 64)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.layer(inputs)
        return hidden.exp().mean(), hidden


def test_outputs_that_are_dropped_at_once_are_gone_though_nothing_collects_garbage() -> None:
    work = torch.randn(1024, 8)
    least = tightfit.compile(Exponential(), budget="min")
    for _ in range(2):
        least.zero_grad()
        least(work)[0].backward()
    held, dropped = (plan.peak for plan in tightfit.plans(least))
    assert dropped < held
    model = tightfit.compile(Exponential(), budget=(dropped + held) // 2)
    gc.disable()
    try:
        # The plan for a caller that holds the outputs does not fit; the other one is for a caller that does not.
        model(work)[0].backward()
    finally:
        gc.enable()
    [plan] = tightfit.plans(model)
    assert plan.peak <= (dropped + held) // 2


def test_a_plan_for_outputs_that_are_held_serves_where_none_is_found_for_others(monkeypatch) -> None:
    work = torch.randn(1024, 8)
    model = tightfit.compile(Exponential(), budget=BIG)
    loss, hidden = model(work)
    del hidden
    loss.backward()
    [step] = model._compiled_call_impl.backend.steps
    assert step.holds_outputs is False and [plan.holds_outputs for plan in step.made] == [True]

    def fail(*_):
        raise tightfit.InfeasibleBudget("", budget=1, needed=1, smallest=1)

    monkeypatch.setattr(step, "_planned", fail)
    model.zero_grad()
    model(work)[0].backward()
    assert len(step.made) == 1


def test_an_output_that_is_held_counts_in_later_plans_though_it_is_saved_as_well() -> None:
    class Sine(Exponential):
        def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.layer(inputs)
            return hidden.sin().mean(), hidden

    def trained(budget: int | str) -> nn.Module:
        model = tightfit.compile(Sine(), budget=budget)
        for _ in range(2):  # gradients exist the second time, which takes another plan
            loss, hidden = model(torch.randn(1024, 8))
            hidden = hidden.view(-1)
            loss.backward()
        return model

    least = max(plan.peak for plan in tightfit.plans(trained("min")))
    assert all(plan.peak <= least for plan in tightfit.plans(trained(least)))


class Squashed(nn.Module):
    """The backward pass of its sigmoid reads the sigmoid's result, which is both saved and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 1024), nn.GELU(), nn.Linear(1024, 16), nn.GELU(), nn.Linear(16, 512))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.inner(inputs))


@pytest.mark.parametrize("hold", [lambda output: output, lambda output: output.detach(), lambda output: output[0]])
def test_an_output_that_is_held_where_no_plan_has_room_for_it_is_refused_and_dropped_it_is_not(hold) -> None:
    work, plans = torch.randn(512, 16), []
    for drops in (False, True):
        least = tightfit.compile(Squashed(), budget="min", loss_memory=4096)
        for _ in range(2):
            least.zero_grad()
            output = least(work)
            loss = output.mean()
            output = None if drops else output
            loss.backward()
        plans.append(tightfit.plans(least)[-1].peak)
    held, dropped = plans
    model = tightfit.compile(Squashed(), budget=(held + dropped) // 2, loss_memory=4096)
    for holds in (False, True, False, True):
        model.zero_grad()
        output = loss = None
        output = model(work)
        loss, output = output.mean(), hold(output) if holds else None
        with pytest.raises(tightfit.BudgetExceeded, match="Let outputs go") if holds else contextlib.nullcontext():
            loss.backward()


def test_an_optimizer_that_has_stepped_before_is_counted() -> None:
    model = Perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    model(*batch()).backward()
    optimizer.step()
    other = tightfit.compile(Perceptron(), budget=BIG)
    other(*batch()).backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    optimizer.step()
    tightfit.compile(model, budget=BIG)
    model(*batch()).backward()
    optimizer.step()
    [plan] = tightfit.plans(model)
    assert model._compiled_call_impl.backend.ledger.states[optimizer] >= 2 * sum(
        parameter.nbytes for parameter in model.parameters())
    assert plan.trains


def test_a_budget_for_loops_that_drop_the_outputs_holds_in_the_first_step():
    """No plan can hold the outputs, and the exception of that refusal must not keep them alive either."""
    class Classes(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(16, 4096)

        def forward(self, inputs, targets):
            logits = self.head(inputs)
            return functional.cross_entropy(logits, targets), logits

    batch = torch.randn(256, 16), torch.randint(0, 4096, (256,))
    model = Classes()
    held = tightfit.plan(model, batch, "min").peak
    tightfit.compile(model, budget=held - 4096)
    gc.collect()
    gc.disable()
    try:
        loss = model(*batch)[0]
        loss.backward()
    finally:
        gc.enable()
    assert [plan.peak < held for plan in tightfit.plans(model)] == [True]


def test_memory_behind_a_result_counts() -> None:
    """The mean over squares keeps the memory that they were computed in."""
    class Regression(nn.Module):
        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return functional.mse_loss(inputs * self.scale, targets)

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64))

    given = torch.randn(128, 64), torch.randn(128, 64)
    graph = tightfit.capture_step(Regression(), given)
    [loss] = [node["outputs"][0] for node in graph["nodes"] if node["op"] == "aten.mse_loss.default"]
    kept = functional.mse_loss(*given).untyped_storage().nbytes()
    assert graph["storages"][loss["storage"]] == kept > 4


@pytest.mark.parametrize(("outputs", "trains"), [
    (lambda hidden, scale: (hidden.square().mean(), hidden), False),  # a loss, and what it was computed from
    (lambda hidden, scale: (hidden, hidden.square().mean()), False),
    (lambda hidden, scale: (hidden, scale.exp()), True),  # a number that is not a loss of the other output
    (lambda hidden, scale: (hidden, hidden.square().mean(1)), True),
])
@pytest.mark.parametrize("rows", [1, 5])
def test_outputs_that_a_loss_was_computed_from_are_detached(outputs, trains: bool, rows: int) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(()))

        def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return outputs(self.layer(inputs), self.scale)

    model = tightfit.compile(Several(), budget=BIG)
    hidden = next(item for item in model(torch.randn(rows, 4)) if item.dim() == 2)
    if trains:
        hidden.sum().backward()
        assert model.layer.weight.grad is not None
    else:
        with pytest.raises(tightfit.CompileError, match="differentiable_outputs=True"):
            hidden.sum().backward()


def test_a_file_of_the_cache_counts_only_as_it_was_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.keep("plans/one.json", "1")
    cache.keep("plans/two.json", "2")
    one, two = (tmp_path / "tightfit" / "plans" / f"{name}.json" for name in ("one", "two"))
    assert cache.read("plans/one.json") == "1"
    text = one.read_text()
    for changed in (text + " ", text.replace("1", "3"), "1", "", two.read_text()):
        one.write_text(changed)
        assert cache.read("plans/one.json") is None
    one.unlink()
    os.mkfifo(one)
    assert cache.read("plans/one.json") is None


def test_nothing_is_measured_under_a_profiler(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, given = tightfit.compile(Perceptron(), budget=BIG), batch()
    with torch.autograd.profiler.profile(), pytest.raises(tightfit.CompileError, match="a profiler is active"):
        model(*given)
    for _ in range(3):
        model.zero_grad()
        model(*given).backward()
    model.zero_grad()
    with torch.autograd.profiler.profile():
        model(*given).backward()


@pytest.mark.parametrize(("make", "given", "said"), [
    (lambda: nn.Embedding(8, 4, sparse=True), torch.arange(4), "is a sparse tensor"),
    (lambda: nn.Linear(4, 2, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex64), "torch.complex64"),
])
def test_tensors_that_plans_do_not_know_are_refused(make, given: torch.Tensor, said: str) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(inputs).abs().sum()

    with pytest.raises(tightfit.CompileError, match=said):
        tightfit.compile(Around(), budget=BIG)(given)


def test_a_number_that_changes_is_warned_about() -> None:
    class Warmed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.share = nn.Linear(2, 2), 0.0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (self.layer(inputs) * self.share).sum()

    model = tightfit.compile(Warmed(), budget=BIG, deadline=0.05)
    with pytest.warns(UserWarning, match="changes from call to call"):
        for step in range(10):
            model.share = step / 10
            model(torch.ones(1, 2)).backward()


def test_a_list_that_grows_is_named() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(2, 2), []

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found = self.layer(inputs)
            self.seen.append(found.detach().mean())
            return found.sum()

    model = tightfit.compile(nn.Sequential(Remembers()), budget=BIG, deadline=0.05)
    with pytest.warns(UserWarning, match="'0.seen' of the model grows in its forward"):
        for _ in range(10):
            model(torch.ones(1, 2)).backward()
    assert len(model[0].seen) == 10


def test_what_is_known_to_suffice_has_room_for_gradients_of_the_loops_own() -> None:
    class Features(nn.Module):
        """The loop applies the head."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 500)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(inputs)

    def step(budget: int) -> None:
        model = tightfit.compile(Features(), budget=budget, loss_memory="256KiB")
        model.head(model(torch.ones(4, 16))).square().mean().backward()

    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        step(1000)
    step(refused.value.smallest)


@torch.library.custom_op("tightfit_tests::doubled", mutates_args=())
def doubled(numbers: torch.Tensor) -> torch.Tensor:
    """Accepts only integers."""
    if (numbers != numbers.round()).any():
        raise ValueError("no whole number")
    return numbers * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda _, gradient: gradient * 2)


def test_what_cannot_be_measured_is_warned_of() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return doubled(self.layer(inputs).round()).sum()

    model = tightfit.compile(Whole(), budget=BIG)
    with pytest.warns(RuntimeWarning, match="could not be measured.*no whole number"):
        model(torch.randn(3, 4)).backward()
    [plan] = tightfit.plans(model)
    assert plan.unmeasured == ["doubled"]


def test_a_state_for_all_parameters_counts_once() -> None:
    model = Perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), history_size=3)
    before = state_bytes(optimizer, model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(*batch())
        loss.backward()
        return loss

    optimizer.step(closure)
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert state_bytes(optimizer, model.parameters()) == before < (2 * 3 + 6) * size


def test_assertions_that_fail_on_made_up_inputs_are_no_gap() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(functional.one_hot(inputs, 4).float()).sum()

    model = tightfit.compile(Chosen(), budget=BIG)
    model(torch.tensor([0, 3, 1])).backward()
    [plan, *_] = tightfit.plans(model)
    assert plan.unmeasured == []
