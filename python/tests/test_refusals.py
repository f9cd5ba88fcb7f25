"""What functions for models refuse, and what they advise.

Invariant: each refusal is one of the package's exceptions, and following its advice works.

Tier: quick, since it takes 4 s.
"""

import random
import re

import models
import numpy
import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch import nn

import tightfit
import tightfit.distributed

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Net(nn.Module):
    """Two linear layers and a norm; the loss is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).square().mean()


def by_name(**options) -> nn.Module:
    return torch.compile(Net(), backend="tightfit", options={"budget": "1MiB"}, fullgraph=True, **options)


@pytest.mark.parametrize("dynamic", [True, False, None])
def test_symbolic_sizes_run_like_static_ones(dynamic):
    compiled = by_name(dynamic=dynamic)
    for rows in (8, 12, 20, 1):
        inputs = torch.randn(rows, 16, requires_grad=True)
        gradients = []
        for model in (compiled, compiled._orig_mod):
            inputs.grad = None
            model(inputs).backward()
            gradients.append(inputs.grad)
        assert torch.equal(*gradients)


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
    """A linear layer, followed by something that a graph cannot express."""

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
    (lambda y: y * numpy.random.rand(), "computes with NumPy", None),
    (lambda y: print(y) or y, "it prints", None),
])
def test_what_a_graph_cannot_hold_is_named_with_its_line_and_a_way_out(then, says, instead):
    with pytest.raises(tightfit.CompileError) as refused:
        tightfit.compile(Reading(then), budget="1MiB")(torch.randn(8, 16))
    message = str(refused.value)
    assert says in message and re.search(rf"at {re.escape(__file__)}:\d+ in (<lambda>|fails)", message), message
    if instead is not None:
        torch._dynamo.reset()
        tightfit.compile(Reading(instead), budget="1MiB")(torch.randn(8, 16)).backward()


def test_what_the_models_own_code_raises_is_the_cause():
    with pytest.raises(tightfit.CompileError) as refused:
        tightfit.compile(Reading(fails), budget="1MiB")(torch.randn(8, 16))
    assert isinstance(refused.value.__cause__, KeyError) and refused.value.__cause__.args == ("no such kind of batch",)
    torch._dynamo.reset()
    with pytest.raises(tightfit.CompileError, match=r"models\.py:\d+ in three_dimensional: `assert .* == 3` does not hold") as refused:
        tightfit.compile(Reading(models.three_dimensional), budget="1MiB")(torch.randn(8, 16))
    assert isinstance(refused.value.__cause__, AssertionError)


def test_hooks_on_modules_inside_are_refused_and_those_on_the_model_run():
    seen = []
    whole = Net()
    for register, said in (("register_full_backward_hook", "full backward hook"), ("register_backward_hook", "register_backward_hook")):
        inside = Net()
        getattr(inside.layers[0], register)(lambda *_: seen.append(1))
        with pytest.raises(tightfit.CompileError, match=said):
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


def test_torch_func_works_while_a_compiled_model_exists():
    model, other, inputs = tightfit.compile(Net(), budget="1MiB"), Net(), torch.randn(8, 16)
    parameters = dict(other.named_parameters())
    grad = torch.func.grad(lambda parameters: torch.func.functional_call(other, parameters, (inputs,)))
    wanted = torch.autograd.grad(other(inputs), list(parameters.values()))
    for _ in range(3):
        assert all(map(torch.equal, grad(parameters).values(), wanted))
        loss = model(inputs)
        # And while a call waits for its backward pass.
        assert all(map(torch.equal, grad(parameters).values(), wanted))
        loss.backward()


def test_hooks_that_give_back_other_tensors_are_refused():
    model, inputs = tightfit.compile(Net(), budget="1MiB"), torch.randn(8, 16)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        loss = model(inputs)
    with pytest.raises(tightfit.CompileError, match="saved_tensors_hooks.*outside of such hooks"):
        loss.backward()
    model(inputs).backward()


@pytest.fixture
def mesh():
    """This process alone, as a mesh of processors."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("call", [
    lambda model: tightfit.compile(model, budget="1MiB"),
    lambda model: tightfit.step(model, None, torch.optim.SGD(model.parameters()), budget="1MiB"),
    lambda model: tightfit.plan(model, torch.randn(8, 16)),
])
def test_sharded_parameters_are_refused_by_name(mesh, call):
    model = Net()
    fully_shard(model.layers[0], mesh=mesh)
    with pytest.raises(tightfit.CompileError, match=rf"FSDP2 \(fully_shard\).* at {re.escape(__file__)}:\d+ in .*without it"):
        call(model)


def test_parameters_that_are_sharded_later_are_refused(mesh):
    model = tightfit.compile(Net(), budget="1MiB")
    fully_shard(model, mesh=mesh)
    with pytest.raises(tightfit.CompileError, match="FSDP2"):
        model(torch.randn(8, 16))
    # FSDP around a compiled model is only detected at the first call.
    model = FullyShardedDataParallel(tightfit.compile(Net(), budget="1MiB"), device_id=torch.device("cpu"))
    with pytest.raises(tightfit.CompileError, match="FSDP shards"):
        model(torch.randn(8, 16))


NO_PATH = [None, 5, b"x", torch.ones(2), object()]
NO_FLAG = [None, "yes", 1, torch.ones(2)]


@pytest.mark.parametrize("function, options", [
    (lambda given: tightfit.load(given), NO_PATH),
    (lambda given: tightfit.load(".", given), NO_PATH[1:]),
    (lambda given: tightfit.fit({}, given), [None, float("nan"), torch.ones(2), object()]),
    (lambda given: tightfit.fit(given, "min"), [None, 5, torch.ones(2), object()]),
    (lambda given: tightfit.sac({}, "60%", units=given), ["layers", 5, object()]),
    (lambda given: tightfit.arguments(given, Net(), torch.ones(2)), [None, "x", Net()]),
    (lambda given: tightfit.capture_step(Net(), torch.ones(8, 16), measure=given), NO_FLAG),
    (lambda given: tightfit.plan(Net(), torch.ones(8, 16), machine=given), [5, object(), torch.ones(2)]),
    (lambda given: tightfit.plan(Net(), torch.ones(8, 16), deadline=given), ["x", True, -1, float("nan"), torch.ones(2)]),
    (lambda given: tightfit.step(Net(), None, torch.optim.SGD(Net().parameters()), budget="min", outputs=given), NO_FLAG),
    (lambda given: tightfit.export(Net(), None, (torch.ones(8, 16), None), out=given, name="net", execute=False), NO_PATH),
    (lambda given: tightfit.export(Net(), None, (torch.ones(8, 16), None), out="net.json", name=given, execute=False), NO_PATH),
    (lambda given: tightfit.module_info(Net(), (torch.ones(8, 16), None), machine=given), [None, 5]),
    (lambda given: tightfit.distributed.StagePlan.read(given), [None, 5]),
])
def test_what_is_of_another_type_is_an_option_that_makes_no_sense(function, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in options:
        with pytest.raises(tightfit.OptionError):
            function(given)


def test_numbers_of_numpy_are_budgets():
    [budget, other] = numpy.array([1 << 20, 1 << 21])
    assert tightfit.plan(Net(), torch.randn(8, 16), budget).peak <= budget
    assert tightfit.fit(tightfit.capture_step(Net(), torch.randn(8, 16), measure=False), other, iterations=1).peak <= other


def test_the_plans_of_a_step_are_its_own():
    model = Net()
    step = tightfit.step(model, None, torch.optim.SGD(model.parameters()), budget="1MiB")
    with pytest.raises(tightfit.CompileError, match=r"`\.plans`"):
        tightfit.plans(step)
