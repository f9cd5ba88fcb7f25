"""Budgets that several models share, and how they are divided among passes that wait at the same time.

Invariant: `test_loops.py` counts every byte of loops with a shared budget; here is what such a budget counts, changes and
forgets, with results that have eager's bits.

Tier: quick, since it takes 15 s.
"""

import copy
import gc
import pickle
import random
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

import tightfit

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)

from tightfit import devices  # noqa: E402
from tightfit.training import budget as budgets  # noqa: E402
from tightfit.training.nest import Demand, joined, reserve  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def net(width: int = 64, layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())))


def trained(model: nn.Module, rows: int = 512) -> torch.Tensor:
    """Makes a step without an optimizer, and returns its loss."""
    model.zero_grad()
    inputs = torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    loss = model(inputs).square().mean()
    loss.backward()
    return loss.detach()


def backend(model: nn.Module):
    return model._compiled_call_impl.backend


# Division.


def test_the_reserve_is_the_largest_common_share():
    for seed in range(200):
        drawn = random.Random(seed)
        own, inner, room = _demand(drawn), [_demand(drawn) for _ in range(drawn.randrange(1, 4))], drawn.randrange(4000)
        left = reserve(room, own, inner)
        shares = [step / 1000 for step in range(1001)]
        fitting = [share for share in shares if all(own.at(share) + one.at(share) <= room for one in inner)]
        share = max(fitting, default=0.0)
        # The exact share is between this one and the next.
        assert max(one.at(share) for one in inner) - 1 <= left <= max(one.at(min(share + 0.001, 1.0)) for one in inner) + 1
        if fitting:
            assert own.least + left <= room


def _demand(drawn: random.Random) -> Demand:
    least = drawn.randrange(1000)
    return Demand(least, least + drawn.choice([0, drawn.randrange(2000)]))


def test_demands_that_others_cover_are_not_kept():
    found = ()
    for demand in (Demand(3, 5), Demand(2, 4), Demand(1, 9), Demand(3, 6)):
        found = joined(found, demand)
    assert set(found) == {Demand(1, 9), Demand(3, 6)}
    for least in range(20):
        found = joined(found, Demand(100 + least, 200 - least))
    assert len(found) <= 8
    assert all(any(kept.covers(Demand(100 + least, 200 - least)) for kept in found) for least in range(20))


# What counts.


def test_what_other_models_hold_counts_until_they_are_released_or_gone():
    budget = tightfit.Budget("64MiB")
    first = tightfit.compile(net(), budget=budget, deadline=0.1)
    alone = trained(first)
    second = tightfit.compile(net(256, 4), budget=budget, optimizer="adamw")
    size = sum(parameter.nbytes for parameter in second.parameters())
    # The parameters and the state that is to come; two single numbers per parameter are small.
    assert backend(first).ledger.others()["what other models of the budget hold"] - 3 * size in range(8 * 8 + 1)
    assert torch.equal(trained(first), alone)
    second(torch.randn(4, 256)).sum().backward()
    assert backend(first).ledger.others()["what other models of the budget hold"] >= 4 * size
    assert tightfit.release(second) is second
    assert "what other models of the budget hold" not in backend(first).ledger.others()
    third = tightfit.compile(second, budget=budget)
    assert "what other models of the budget hold" in backend(first).ledger.others()
    del second, third
    gc.collect()
    assert "what other models of the budget hold" not in backend(first).ledger.others()


def test_tensors_that_models_share_count_once():
    budget = tightfit.Budget("64MiB")
    base = nn.Linear(512, 512)
    models = [nn.Sequential(base, nn.Linear(512, 8)), nn.Sequential(base, nn.Linear(512, 16))]
    for model in models:
        tightfit.compile(model, budget=budget, deadline=0.1)
    beside = backend(models[0]).ledger.others()["what other models of the budget hold"]
    assert beside == sum(parameter.nbytes for parameter in models[1][1].parameters())


def test_a_refusal_says_what_the_others_hold():
    budget = tightfit.Budget("3MiB")
    large = tightfit.compile(net(512, 2), budget=budget)
    small = tightfit.compile(net(), budget=budget)
    with pytest.raises(tightfit.InfeasibleBudget, match="bytes of what other models of the budget hold"):
        trained(small, rows=4096)
    assert large is not None


def test_outputs_of_one_model_that_another_is_given_count_once():
    budget = tightfit.Budget("64MiB")
    first, second = (tightfit.compile(net(), budget=budget, deadline=0.1) for _ in range(2))
    for _ in range(2):
        given = first(torch.randn(2048, 64))
        second(given).mean().backward()
        del given
    own = sum(tensor.nbytes for model in (first, second) for parameter in model.parameters() for tensor in (parameter, parameter.grad))
    rows = 2048 * 64 * 4
    # Nothing is recomputed: three saved inputs and three results of GELU in each, the gradients, and what they share once.
    assert max(plan.peak for plan in tightfit.plans(second)) <= own + 17 * rows


# Changes.


def test_a_budget_that_is_raised_is_used_and_one_that_is_lowered_is_kept():
    eager = net()
    budget = tightfit.Budget("64MiB")
    model = tightfit.compile(copy.deepcopy(eager), budget=budget, deadline=0.1)
    assert budget.bytes == 64 << 20
    wanted = trained(eager)

    def now() -> tightfit.PlanInfo:
        assert torch.equal(trained(model), wanted)
        assert torch.equal(trained(model), wanted)
        return tightfit.plans(model)[-1]

    free = now()
    assert free.recomputed == 0
    budget.set(int(0.8 * free.peak))
    tight = now()
    assert tight.recomputed > 0
    assert tight.peak <= tight.budget == budget.bytes
    budget.set("64MiB")
    assert now().recomputed == 0
    with pytest.raises(tightfit.OptionError, match="no number of bytes"):
        budget.set("plenty")
    assert budget.bytes == 64 << 20


def test_a_budget_that_is_lowered_between_two_passes_holds_from_the_next_forward_pass_on():
    budget = tightfit.Budget("64MiB")
    model = tightfit.compile(net(), budget=budget, deadline=0.1)
    loss = model(torch.randn(512, 64)).sum()
    budget.set("300KB")
    loss.backward()
    with pytest.raises(tightfit.InfeasibleBudget):
        model(torch.randn(512, 64))
    budget.set("64MiB")
    changes = budget.members.changes
    budget.set(64 << 20)
    assert budget.members.changes == changes
    trained(model)


def test_a_step_that_nests_later_is_refused_once():
    torch.manual_seed(0)
    first, second = net(layers=8), net(layers=6)

    def nested(one: nn.Module, other: nn.Module) -> None:
        for model in (one, other):
            model.zero_grad()
        other(one(torch.ones(512, 64))).square().mean().backward()

    roomy = tightfit.Budget("64MiB")
    models = [tightfit.compile(copy.deepcopy(model), budget=roomy, deadline=0.1) for model in (first, second)]
    for _ in range(2):
        nested(*models)
    most = max(plan.peak for model in models for plan in tightfit.plans(model))
    budget = tightfit.Budget(int(0.65 * most))
    models = [tightfit.compile(copy.deepcopy(model), budget=budget, deadline=0.1) for model in (first, second)]
    for _ in range(3):
        trained(models[0], rows=512)
    refusals = 0
    for _ in range(4):
        try:
            nested(*models)
        except tightfit.BudgetExceeded:
            refusals += 1
    assert refusals <= 1
    nested(first, second)
    assert all(torch.equal(mine.grad, theirs.grad) for model, eager in zip(models, (first, second), strict=True)
               for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True))


def test_a_released_model_is_what_it_was():
    eager = net()
    model = tightfit.compile(copy.deepcopy(eager), budget=tightfit.Budget("64MiB"), deadline=0.1)
    loss = model(torch.ones(8, 64)).sum()
    tightfit.release(model)
    # The plan's backward pass runs even so.
    loss.backward()
    eager(torch.ones(8, 64)).sum().backward()
    assert all(torch.equal(mine.grad, theirs.grad) for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True))
    assert torch.equal(trained(model), trained(eager))
    with pytest.raises(tightfit.CompileError, match="nothing to release"):
        tightfit.release(model)
    with pytest.raises(tightfit.CompileError, match="not compiled"):
        tightfit.plans(model)
    tightfit.compile(model, "64MiB", deadline=0.1)
    assert torch.equal(trained(model), trained(eager))


def test_addresses_share_no_budget(monkeypatch):
    budget = tightfit.Budget("64MiB")
    first = tightfit.compile(net(), budget=budget)
    monkeypatch.setattr("tightfit.training.compiling.install", lambda: None)
    with pytest.raises(tightfit.OptionError, match="cannot be shared"):
        tightfit.compile(net(), budget=budget, addresses=True)
    assert first is not None


def test_graphs_alone_share_no_budget():
    model = torch.compile(net(), backend="tightfit", options={"budget": tightfit.Budget("64MiB")}, fullgraph=True)
    with pytest.raises(Exception, match="models that are known as a whole"):
        trained(model)


def test_copies_of_a_budget():
    budget = tightfit.Budget("64MiB")
    tightfit.compile(net(), budget=budget)
    assert copy.deepcopy({"budget": budget})["budget"] is budget
    loaded = pickle.loads(pickle.dumps(budget))
    assert loaded.bytes == budget.bytes
    assert not loaded.members.ledgers
    assert pickle.loads(pickle.dumps(tightfit.Budget("min"))).bytes is None


def test_steps_and_evaluations_between_two_passes():
    eager, teacher = net(layers=6), net(layers=4).requires_grad_(False)
    whole = net(layers=2)
    budget = tightfit.Budget("4MiB")
    model = tightfit.compile(copy.deepcopy(eager), budget=budget, deadline=0.1)
    taught = tightfit.compile(copy.deepcopy(teacher), budget=budget, deadline=0.1, evaluation="planned")
    step = tightfit.step(whole, functional.mse_loss, torch.optim.SGD(whole.parameters(), lr=0.1), budget=budget, deadline=0.1)
    inputs = torch.randn(512, 64)
    for _ in range(3):
        for student, wise in ((eager, teacher), (model, taught)):
            student.zero_grad()
            made = student(inputs)
            if student is model:
                step(inputs, inputs)
            with torch.no_grad():
                wanted = wise(inputs)
            # A frozen model whose gradients go to its inputs.
            (functional.mse_loss(made, wanted) + wise(made).mean()).backward()
        assert all(torch.equal(mine.grad, theirs.grad)
                   for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True))
    plans = [*tightfit.plans(model), *tightfit.plans(taught), *step.plans]
    assert all(plan.peak <= budget.bytes for plan in plans)


def test_a_model_that_grows_counts_as_it_is():
    budget = tightfit.Budget("64MiB")
    first, second = (tightfit.compile(net(), budget=budget, deadline=0.1) for _ in range(2))
    trained(first)
    before = backend(first).ledger.others()["what other models of the budget hold"]
    second.append(nn.Linear(64, 512))
    trained(first)
    after = backend(first).ledger.others()["what other models of the budget hold"]
    assert after - before == sum(parameter.nbytes for parameter in second[-1].parameters())


def test_two_forward_passes_before_a_backward_pass_share_a_budget():
    eager = net(layers=6)
    inputs = [torch.randn(512, 64) for _ in range(2)]

    def stepped(model: nn.Module) -> None:
        model.zero_grad()
        one, other = map(model, inputs)
        functional.mse_loss(one, other).backward()

    free = tightfit.compile(copy.deepcopy(eager), budget=tightfit.Budget("64MiB"), deadline=0.1)
    for _ in range(2):
        stepped(free)
    most = max(plan.peak for plan in tightfit.plans(free))
    budget = tightfit.Budget(int(0.7 * most))
    model = tightfit.compile(copy.deepcopy(eager), budget=budget, deadline=0.1)
    stepped(eager)
    for _ in range(3):
        stepped(model)
        assert all(torch.equal(mine.grad, theirs.grad)
                   for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True))
    assert all(plan.peak <= budget.bytes for plan in tightfit.plans(model))


# What is given.


@pytest.mark.parametrize(("given", "size"), [("80% of device", 8000), ("device - 1KB", 9000), ("free", 5000), ("free - 2KB", 3000),
                                             ("50% of free", 2500), ("12.5% of device", 1250)])
def test_a_part_of_a_gpu(monkeypatch, given, size):
    memory = devices.Memory(total=10000, free=4000, reserved=1000)
    monkeypatch.setattr(devices, "current", lambda: types.SimpleNamespace(memory=lambda: memory))
    assert tightfit.Budget(given).bytes == size


@pytest.mark.parametrize(("given", "says"), [
    ("80% of device", "finds no GPU"), ("80%", "is a share"), ("80% of it", "no number of bytes"), (0, "no room"), ("", "no number of bytes"),
    ("free - much", "finds no GPU"), (None, "no number of bytes"), (-1, "no number of bytes"), (True, "no number of bytes"),
])
def test_what_is_no_budget_is_refused(monkeypatch, given, says):
    monkeypatch.setattr(devices, "current", lambda: None)
    with pytest.raises(tightfit.OptionError, match=says):
        tightfit.Budget(given)


@pytest.mark.parametrize("given", ["200% of device", "free - 1GB", "0% of device", "free - much"])
def test_what_no_gpu_has_is_refused(monkeypatch, given):
    memory = devices.Memory(total=10000, free=4000, reserved=1000)
    monkeypatch.setattr(devices, "current", lambda: types.SimpleNamespace(memory=lambda: memory))
    with pytest.raises(tightfit.OptionError):
        tightfit.Budget(given)


def test_a_budget_says_what_it_is():
    assert repr(tightfit.Budget("2KB")) == "tightfit.Budget(2_000)"
    assert repr(tightfit.Budget("min")) == 'tightfit.Budget("min")'
    assert tightfit.Budget("min").bytes is None
    assert budgets.budget_of("2KB").bytes == 2000
