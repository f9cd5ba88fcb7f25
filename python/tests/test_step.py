"""`tightfit.step`: the plain loop's own bits within a hard bound, and what it refuses.

Invariant: the oracle is PyTorch's eager loop with the same optimizer: losses, random numbers, parameters, buffers and
the optimizer's state have to be equal bit for bit. Bytes are counted in fresh processes, the first step included, also
at the smallest budget, which leaves no slack.

Tier: quick with a part of the cases, 75 s; full with all of them.
"""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import allocator
import pytest
import stepped
import torch
import zoo
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from tier import cases

tightfit = zoo.use_tightfit()
from tightfit import cache  # noqa: E402

if not hasattr(tightfit, "step"):
    pytest.skip("this tightfit has no `step`", allow_module_level=True)
REASON = allocator.unavailable()
counted = pytest.mark.skipif(REASON is not None, reason=str(REASON))

MODELS = cases(("gpt2", "adamw"), full=[("unet", "sgd"), ("mobilenet_v3", "momentum"), ("bert", "nadam"), ("llama", "rmsprop")])

Make = Callable[[Any], torch.optim.Optimizer]

SIX: dict[str, Make] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
}
OTHERS: dict[str, Make] = {
    "plain sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1,
                                               maximize=True),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True, weight_decay=0.1),
    "foreach": lambda groups: torch.optim.AdamW(groups, lr=0.01, foreach=True),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "rate as a tensor": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.01)),
    "centered": lambda groups: torch.optim.RMSprop(groups, lr=0.01, centered=True, momentum=0.9),
    "radam": torch.optim.RAdam, "adamax": torch.optim.Adamax, "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD, "rprop": torch.optim.Rprop,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 32),
                         nn.GELU(), nn.Linear(32, 5))


def batch(index: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(index)
    return torch.randn(size, 12, generator=source), torch.randint(0, 5, (size,), generator=source)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two nests of tensors and numbers are equal, tensors bit for bit."""
    if isinstance(ours, torch.Tensor):
        return isinstance(theirs, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(item, theirs[key]) for key, item in ours.items())
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs


class Pair:
    """A model and its optimizer twice: once in the eager loop, once with `tightfit.step`."""

    def __init__(self, model: nn.Module, make: Make, loss_fn: Any = functional.cross_entropy, budget: Any = "min",
                 groups: Callable[[nn.Module], Any] = lambda model: list(model.parameters()), **options: Any) -> None:
        self.eager, self.ours = model, copy.deepcopy(model)
        self.optimizer, self.own = make(groups(self.eager)), make(groups(self.ours))
        self.loss_fn = loss_fn
        self.step = tightfit.step(self.ours, loss_fn, self.own, budget=budget, **options)

    def go(self, index: int, *given: Any) -> None:
        """Makes one step of both, which have to be equal."""
        torch.manual_seed(index)
        self.optimizer.zero_grad()
        output = self.eager(*given[:-1]) if self.loss_fn else self.eager(**given[0])
        loss = self.loss_fn(output, given[-1]) if self.loss_fn else output["loss"]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        state = torch.get_rng_state()
        torch.manual_seed(index)
        found = self.step(*given)
        assert not found.requires_grad
        assert same(found, loss.detach())
        assert same(torch.get_rng_state(), state)
        assert same(self.ours.state_dict(), self.eager.state_dict())
        assert same(self.own.state_dict(), self.optimizer.state_dict())
        assert all(parameter.grad is None for parameter in self.ours.parameters())


# Bits.


@pytest.mark.parametrize("name", [*SIX, *OTHERS])
def test_updates_are_the_optimizers_own(name: str):
    pair = Pair(network(), (SIX | OTHERS)[name])
    for index in range(5):
        pair.go(index, *batch(index))
    assert len(pair.step.plans) == 1


@pytest.mark.parametrize("name", SIX)
def test_groups_and_schedules_hold(name: str):
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        rest = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
        return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 0.05}]

    pair = Pair(network(), SIX[name], groups=groups)
    schedules = [StepLR(optimizer, 2, 0.5) for optimizer in (pair.optimizer, pair.own)]
    for index in range(5):
        pair.go(index, *batch(index))
        for schedule in schedules:
            schedule.step()
    assert pair.own.param_groups[0]["lr"] < pair.own.param_groups[0]["initial_lr"]


def test_a_schedule_of_the_momentum_makes_no_new_plan(recwarn: pytest.WarningsRecorder):
    pair = Pair(network(), SIX["adamw"])
    schedules = [OneCycleLR(optimizer, 0.1, total_steps=8) for optimizer in (pair.optimizer, pair.own)]
    for index in range(5):
        pair.go(index, *batch(index))
        for schedule in schedules:
            schedule.step()
    assert len(pair.step.plans) == 1
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_options_that_change_what_an_update_takes_make_a_new_plan():
    pair = Pair(network(), OTHERS["plain sgd"])
    pair.go(0, *batch(0))
    for optimizer in (pair.optimizer, pair.own):
        for group in optimizer.param_groups:
            group["momentum"] = 0.9
    pair.go(1, *batch(1))
    pair.go(2, *batch(2))
    first, second = pair.step.plans
    matrices = sum(parameter.nbytes for parameter in pair.ours.parameters())
    assert second.peak >= first.peak + matrices


class Twice(nn.Module):
    """One weight that is read in three places, the last of them after a function that is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(12))
        self.head = nn.Linear(12, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.first(inputs) * self.scale)
        hidden = functional.gelu(self.second(hidden) * self.scale)
        hidden = functional.gelu(functional.linear(hidden, self.first.weight.t()) + self.first.weight.sum())
        return self.head(hidden)


@pytest.mark.parametrize("size", [4, 256])
def test_a_parameter_that_is_read_often_is_updated_once_behind_its_last_reader(size: int):
    pair = Pair(Twice(), SIX["adam"])
    for index in range(4):
        pair.go(index, *batch(index, size))
    [plan] = pair.step.plans
    assert size == 4 or plan.recomputed > 0, "nothing is computed again: the test says too little"


def test_frozen_parameters_stay_and_may_thaw():
    model = network()
    model[0].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    pair = Pair(model, SIX["adamw"])
    pair.go(0, *batch(0))
    for one in (pair.eager, pair.ours):
        one[4].bias.requires_grad_(True)
    pair.go(1, *batch(1))
    assert len(pair.step.plans) == 2


def test_other_shapes_modes_and_types_have_plans_of_their_own():
    pair = Pair(network(), SIX["sgd"])
    pair.go(0, *batch(0))
    pair.go(1, *batch(1, size=7))
    for model in (pair.eager, pair.ours):
        model.eval()
    pair.go(2, *batch(2))
    for model in (pair.eager, pair.ours):
        model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs, targets = batch(3)
        loss = pair.step(inputs, targets)
        assert pair.step.plans[-1].batch == pair.step.plans[0].batch and len(pair.step.plans) == 4
    assert loss.dtype == torch.float32  # cross entropy in 32 bits


def test_autocast_has_eagers_bits():
    model = network()
    model[3].p = 0.0
    pair = Pair(model, SIX["adamw"])
    for index in range(3):
        inputs, targets = batch(index)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = functional.cross_entropy(pair.eager(inputs), targets)
            found = pair.step(inputs, targets)
        expected.backward()
        pair.optimizer.step()
        pair.optimizer.zero_grad()
        assert same(found, expected.detach())
        assert same(pair.ours.state_dict(), pair.eager.state_dict())


def test_a_model_of_transformers_returns_its_loss():
    work = zoo.build("gpt2", tiny=True)
    pair = Pair(work.model, SIX["adamw"], loss_fn=None)
    for index in range(3):
        pair.go(index, work.batch(index))
    loss = pair.step(**work.batch(3))
    assert loss.shape == ()


def test_outputs_are_there_where_they_are_asked_for():
    model = network().eval()
    twin, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = batch(0)
    step = tightfit.step(model, functional.cross_entropy, optimizer, budget="min", outputs=True)
    loss, output = step(inputs, targets)
    assert same(output, twin(inputs).detach()) and not output.requires_grad
    assert same(loss, functional.cross_entropy(twin(inputs), targets).detach())


def test_hooks_behind_the_step_are_called_once():
    model, calls = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *given: calls.append(given))
    tightfit.step(model, functional.cross_entropy, optimizer, budget="min")(*batch(0))
    assert calls == [(optimizer, (optimizer,), {})]


# Resuming in the other mode.


@pytest.mark.parametrize("name", ["sgd", "adamw", "adagrad"])
def test_either_mode_goes_on_where_the_other_stopped(name: str):
    pair = Pair(network(), SIX[name])
    for index in range(2):
        pair.go(index, *batch(index))
    ours, theirs = copy.deepcopy(pair.own.state_dict()), copy.deepcopy(pair.optimizer.state_dict())
    pair.own.load_state_dict(theirs)
    pair.optimizer.load_state_dict(ours)
    for index in range(2, 4):
        pair.go(index, *batch(index))


# Bytes.


@counted
@pytest.mark.parametrize("optimizer", cases("momentum", "adamw", "fused", full=["adam", "foreach", "rmsprop", "adagrad", "nadam"]))
def test_gradients_die_and_the_smallest_budget_holds(optimizer: str):
    least = stepped.run("wide", "step", optimizer=optimizer)
    assert "error" not in least, least
    assert least["peak"] <= max(least["plans"])
    # Parameters and state are held all the time; of the gradients, which are as large as the parameters, only a few
    # are.
    assert least["state"] + least["parameters"] < least["peak"] < least["state"] + 1.5 * least["parameters"]


@counted
@pytest.mark.parametrize(("name", "optimizer"), MODELS)
def test_every_step_fits_every_budget(name: str, optimizer: str):
    eager = stepped.run(name, "eager", optimizer=optimizer)
    least = stepped.run(name, "step", optimizer=optimizer)
    assert "error" not in least, least
    smallest = max(least["plans"])
    assert smallest < eager["peak"], "the smallest budget saves nothing: choose other sizes"
    budgets = [smallest + int(share * (eager["peak"] - smallest)) for share in (0.25, 0.75)]
    runs = [least, *(stepped.run(name, "step", optimizer=optimizer, budget=budget) for budget in budgets)]
    for budget, run in zip([smallest, *budgets], runs, strict=True):
        assert "error" not in run, run
        peaks = [step["peak"] for step in run["steps"]]
        assert all(peak <= budget for peak in peaks), f"{peaks} over {budget}"
        assert stepped.differing(run, eager) == []


@counted
def test_a_step_needs_less_than_separate_calls():
    apart = stepped.run("wide", "compile", optimizer="sgd")
    whole = stepped.run("wide", "step", optimizer="sgd")
    assert "error" not in apart and "error" not in whole
    assert whole["peak"] < apart["peak"] - whole["parameters"] // 2


@counted
def test_a_start_without_anything_kept_and_with_state_fits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint = tmp_path / "checkpoint.pt"
    first = stepped.run("wide", "step", optimizer="adamw", steps=2, save=checkpoint)
    smallest = max(first["plans"])
    library = allocator.build()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    shutil.copytree(library.parent, tmp_path / "empty" / "tightfit" / "allocator")
    resumed = stepped.run("wide", "step", optimizer="adamw", steps=2, first=2, load=checkpoint, budget=smallest)
    assert "error" not in resumed, resumed
    assert resumed["peak"] <= smallest
    eager = stepped.run("wide", "eager", optimizer="adamw", steps=2, first=2, load=checkpoint)
    assert stepped.differing(resumed, eager) == []


@counted
@pytest.mark.parametrize("mode", ["step", "compile"])
def test_what_is_not_trained_is_not_copied_to_be_measured(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    library = allocator.build()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shutil.copytree(library.parent, tmp_path / "tightfit" / "allocator")
    run = stepped.run("frozen", mode, optimizer="sgd")
    assert "error" not in run, run
    assert run["steps"][0]["peak"] <= max(run["plans"]) < 1.5 * run["parameters"]


@counted
def test_a_budget_that_is_too_small_says_what_would_do():
    refused = stepped.run("wide", "step", optimizer="adamw", budget=1 << 20)
    assert refused["error"] == "InfeasibleBudget", refused
    assert refused["budget"] == 1 << 20 < refused["needed"] <= refused["smallest"]
    assert "of optimizer state" in refused["message"]
    met = stepped.run("wide", "step", optimizer="adamw", budget=refused["smallest"])
    assert "error" not in met and met["peak"] <= refused["smallest"], met


def test_a_second_start_finds_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plans = []
    for _ in range(2):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        tightfit.step(model, functional.cross_entropy, optimizer, budget="min")(*batch(0))
        plans.append(sorted(path.name for path in (tmp_path / "tightfit" / "plans").iterdir()))
        torch._dynamo.reset()
    assert plans[0] == plans[1] and len(plans[0]) == 1


def test_a_damaged_file_of_costs_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for content in (None, "[1]", '{"x": {"workspace": 3}}'):
        if content is not None:
            [kept] = (tmp_path / "tightfit" / "costs").glob("updates-*.json")
            kept.write_text(content)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        tightfit.step(model, functional.cross_entropy, optimizer, budget="min")(*batch(0))
        torch._dynamo.reset()
        [kept] = (tmp_path / "tightfit" / "costs").glob("updates-*.json")
        assert len(json.loads(cache.read(f"costs/{kept.name}"))) == 1


# Refusals.


def _made(model: nn.Module | None = None, optimizer: Any = None, **options: Any) -> Any:
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    return tightfit.step(model, options.pop("loss_fn", functional.cross_entropy), optimizer, budget="min", **options)


class Coupled(torch.optim.SGD):
    """An optimizer with a step of its own."""

    def step(self, closure: Any = None) -> None:
        total = sum(parameter.grad.norm() for group in self.param_groups for parameter in group["params"])
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad / total)


@pytest.mark.parametrize(("make", "said"), [
    (lambda parameters: torch.optim.LBFGS(parameters), "LBFGS"),
    (lambda parameters: Coupled(parameters, lr=0.1), "Coupled is not known"),
    (lambda parameters: torch.optim.Adafactor(parameters), "Adafactor is not known"),
    (lambda parameters: torch.optim.Adam(parameters, differentiable=True), "differentiable"),
    (lambda parameters: torch.optim.SGD, "no torch.optim.Optimizer"),
])
def test_an_optimizer_that_needs_all_gradients_is_refused(make: Any, said: str):
    model = network()
    with pytest.raises(tightfit.OptionError, match=said):
        _made(model, make(model.parameters()))


@pytest.mark.parametrize("option", ["clip_grad_norm", "max_grad_norm", "scaler", "accumulation_steps", "closure"])
def test_what_needs_all_gradients_is_referred_to_compile(option: str):
    with pytest.raises(tightfit.OptionError, match="tightfit.compile"):
        _made(**{option: 1.0})


def test_an_option_that_nobody_knows_is_a_type_error():
    with pytest.raises(TypeError, match="sideways"):
        _made(sideways=True)


def test_an_optimizer_without_a_parameter_is_refused():
    model = network()
    some = [parameter for index in (0, 1, 4) for parameter in model[index].parameters()]
    step = _made(model, torch.optim.SGD(some, lr=0.1))
    with pytest.raises(tightfit.OptionError, match=r"'6\.weight' and 1 more"):
        step(*batch(0))


def test_parameters_without_gradients_may_be_in_the_optimizer():
    model, extra = network(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([*model.parameters(), extra])
    _made(model, optimizer)(*batch(0))
    assert extra not in optimizer.state and same(extra.data, torch.ones(3))


def test_accumulation_is_refused_and_nothing_happens():
    model = network()
    step = _made(model)
    step(*batch(0))
    before = copy.deepcopy(model.state_dict())
    functional.cross_entropy(model(batch(1)[0]), batch(1)[1]).backward()
    model.load_state_dict(before)  # BatchNorm's buffers
    with pytest.raises(tightfit.OptionError, match="accumulate"):
        step(*batch(1))
    assert same(model.state_dict(), before)


def test_hooks_that_look_at_gradients_are_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = _made(model, optimizer)
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(tightfit.OptionError, match="before the optimizer's step"):
        step(*batch(0))
    handle.remove()
    handle = model[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(tightfit.OptionError, match=r"'0\.weight' has a hook"):
        step(*batch(0))
    handle.remove()
    step(*batch(0))


def test_a_replaced_step_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step = lambda closure=None: None
    with pytest.raises(tightfit.OptionError, match="replaced"):
        _made(model, optimizer)


def test_a_scaled_loss_is_refused():
    scaler = torch.amp.GradScaler("cpu")
    step = _made(loss_fn=lambda output, targets: scaler.scale(functional.cross_entropy(output, targets)))
    with pytest.raises(tightfit.CompileError):
        step(*batch(0))


def test_a_loss_of_many_numbers_is_refused():
    step = _made(loss_fn=lambda output, targets: functional.cross_entropy(output, targets, reduction="none"))
    with pytest.raises(tightfit.CompileError, match="not one number"):
        step(*batch(0))


def test_a_batch_that_asks_for_a_gradient_is_refused():
    inputs, targets = batch(0)
    with pytest.raises(tightfit.CompileError, match="asks for a gradient"):
        _made()(inputs.requires_grad_(), targets)


def test_a_model_that_is_not_trained_is_refused():
    model = network().requires_grad_(False)
    with pytest.raises(tightfit.CompileError, match="no parameter gets a gradient"):
        _made(model)(*batch(0))


def test_parameters_that_share_memory_are_refused():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(12, 5)
            self.one, self.other = nn.Parameter(whole[:6]), nn.Parameter(whole[6:])

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs @ torch.cat([self.one, self.other])

    with pytest.raises(tightfit.OptionError, match="share memory"):
        _made(Shared())(*batch(0))


def test_a_model_that_is_compiled_is_refused():
    model = network()
    tightfit.compile(model, "1GiB")
    with pytest.raises(tightfit.CompileError, match="compiled already"):
        _made(model)


def test_control_flow_on_data_is_refused():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 5)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            output = self.layer(inputs)
            return output if output.sum() > 0 else -output

    with pytest.raises(tightfit.CompileError, match="one graph"):
        _made(Branching())(*batch(0))


def test_under_no_grad_a_step_is_a_step():
    with_grad, without = Pair(network(), SIX["sgd"]), Pair(network(), SIX["sgd"])
    torch.manual_seed(0)
    expected = with_grad.step(*batch(0))
    torch.manual_seed(0)
    with torch.no_grad():
        found = without.step(*batch(0))
    assert same(found, expected) and same(without.ours.state_dict(), with_grad.ours.state_dict())


def test_forgotten_targets_are_asked_for() -> None:
    model = nn.Linear(4, 2)
    step = tightfit.step(model, functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1), budget="1MiB")
    for batch in ((), (torch.ones(3, 4),)):
        with pytest.raises(tightfit.OptionError, match="the targets as its last"):
            step(*batch)
    step(torch.ones(3, 4), torch.ones(3, 2))
