"""What functions for models refuse, and what they advise.

Invariant: each refusal is one of the package's exceptions, and following its advice works.

Tier: quick, since it takes 4 s.
"""

import random
import re

import pytest
import torch
from torch import nn

import tightfit

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


class Net(nn.Module):
    """Two linear layers and a norm; the loss is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).square().mean()


def by_name(**options) -> nn.Module:
    return torch.compile(Net(), backend="tightfit", options={"budget": "1MiB"}, fullgraph=True, **options)


def test_symbolic_sizes_are_refused_and_static_ones_run():
    compiled = by_name(dynamic=True)
    with pytest.raises(Exception, match="dynamic=False") as refused:
        compiled(torch.randn(8, 16))
    assert isinstance(getattr(refused.value, "inner_exception", refused.value), tightfit.CompileError)
    torch._dynamo.reset()
    compiled = by_name(dynamic=False)
    for rows in (8, 12, 20):
        compiled(torch.randn(rows, 16)).backward()


@pytest.mark.parametrize("function", [tightfit.plan, tightfit.explain])
def test_what_has_no_memory_needs_a_machine(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.device("meta"):
        model, inputs = Net(), torch.empty(8, 16)
    with pytest.raises(tightfit.OptionError, match="machine="):
        function(model, inputs)
    assert function(model, inputs, machine="h100-80gb")


def test_a_plan_that_cannot_be_says_which_could():
    inputs = torch.randn(256, 16)
    with pytest.raises(tightfit.InfeasibleBudget, match=r"a batch of \[256, 16\].* or a smaller batch") as refused:
        tightfit.plan(Net(), inputs, "64KiB")
    advised = int(re.search(r"budget=(\d+)", str(refused.value))[1])
    assert refused.value.budget < refused.value.needed <= refused.value.smallest == advised
    assert tightfit.plan(Net(), inputs, advised).peak <= advised


class Reading(nn.Module):
    """A linear layer, followed by what a graph cannot hold."""

    def __init__(self, then) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(16, 16), then

    def forward(self, inputs: torch.Tensor, *more: object) -> torch.Tensor:
        return self.then(self.first(inputs), *more).square().mean()


def fails(_):
    raise KeyError("no such kind of batch")


@pytest.mark.parametrize("then, says, instead", [
    (lambda y: y * y.mean().item(), "`item`", lambda y: y * y.mean()),
    (lambda y: y + y[y > 0].sum(), "what a tensor holds", lambda y: y + torch.where(y > 0, y, 0).sum()),
    (lambda y: y + (y > 0).nonzero().shape[0], "`nonzero`", lambda y: y + (y > 0).sum()),
    (lambda y: torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y * 3, (y,)), "torch.cond",
     lambda y: torch.where(y.sum() > 0, y * 2, y * 3)),
    (lambda y: y * 2 if y.sum() > 0 else y, "contents of a tensor", lambda y: torch.where(y.sum() > 0, y * 2, y)),
    (lambda y: y * 2 if random.random() < 0.5 else y, "Python's random numbers", None),
    (fails, "KeyError('no such kind of batch')", None),
])
def test_what_a_graph_cannot_hold_is_named_with_its_line_and_a_way_out(then, says, instead):
    with pytest.raises(tightfit.CompileError) as refused:
        tightfit.compile(Reading(then), budget="1MiB")(torch.randn(8, 16))
    message = str(refused.value)
    assert says in message and re.search(rf"at {re.escape(__file__)}:\d+ in (<lambda>|fails)", message), message
    if instead is not None:
        torch._dynamo.reset()
        tightfit.compile(Reading(instead), budget="1MiB")(torch.randn(8, 16)).backward()


def test_hooks_on_modules_inside_are_refused_and_those_on_the_model_run():
    seen = []
    inside, whole = Net(), Net()
    inside.layers[0].register_full_backward_hook(lambda *_: seen.append(1))
    with pytest.raises(tightfit.CompileError, match="full backward hook"):
        tightfit.compile(inside, budget="1MiB")(torch.randn(8, 16))
    torch._dynamo.reset()
    whole.register_full_backward_hook(lambda *_: seen.append(2))
    tightfit.compile(whole, budget="1MiB")(torch.randn(8, 16)).backward()
    assert seen == [2]


def test_a_model_under_a_transform_of_functions_is_refused():
    model = tightfit.compile(Net(), budget="1MiB")
    with pytest.raises(tightfit.CompileError, match=r"torch\.func"):
        torch.func.grad(lambda parameters: torch.func.functional_call(model, parameters, (torch.randn(8, 16),)))(
            dict(model.named_parameters()))
