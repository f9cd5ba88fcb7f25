"""A tier below the device: budgets that no recomputation meets, with eager's own bits.

Invariant: the oracle is PyTorch's eager loop; bytes are those of PyTorch's allocator in a fresh process. A test about
moves first checks that something moves.

Tier: quick with a part of the cases, 49 s; full with all of them.
"""

from __future__ import annotations

import copy
import gc
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import allocator
import measured
import pytest
import stepped
import torch
import zoo
from torch import nn
from torch.nn import functional
from tier import cases

tightfit = zoo.use_tightfit()
from tightfit.devices import cuda  # noqa: E402
from tightfit.training import away, residents, tier  # noqa: E402

REASON = allocator.unavailable()
counted = pytest.mark.skipif(REASON is not None, reason=str(REASON))
TIER = "1GiB"


class Wide(nn.Module):
    """Activations that are many times the parameters, with dropout; it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.1))))
        self.head = nn.Linear(24, 4)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.layers(inputs)), targets)


def batch(rows: int = 512, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 24, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


def pair() -> tuple[nn.Module, nn.Module]:
    """The same model twice, the second one compiled with a tier."""
    torch.manual_seed(0)
    eager = Wide()
    return eager, tightfit.compile(copy.deepcopy(eager), budget="min", offload=TIER)


def tier_of(model: nn.Module) -> tier.Tier:
    return model._compiled_call_impl.backend.ledger.tier


def used(model: nn.Module) -> int:
    """Bytes of the tier that are in use."""
    gc.collect()
    tier_of(model).room(0, "")
    return tier_of(model).used


def gradients(model: nn.Module, loop: Callable[[nn.Module], Any]) -> list[torch.Tensor | None]:
    torch.manual_seed(7)
    loop(model)
    return [parameter.grad for parameter in model.parameters()]


def same(eager: nn.Module, model: nn.Module, loop: Callable[[nn.Module], Any]) -> None:
    """Asserts that a loop leaves the same gradients in both, and the tier as it was."""
    before = used(model) if tightfit.plans(model) else 0
    for one, other in zip(gradients(eager, loop), gradients(model, loop), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    assert any(plan.offloaded for plan in tightfit.plans(model)), "nothing moves: choose other sizes"
    assert used(model) == before


@counted
@pytest.mark.parametrize("name", cases("gpt_long", full=["resnet50"]))
def test_budgets_below_what_recomputation_reaches(name: str) -> None:
    eager = measured.measure(name, "eager", tiny=True)
    least = measured.measure(name, "tightfit", budget="min", tiny=True)
    below = measured.measure(name, "tightfit", budget="min", tiny=True, more=f'{{"offload": "{TIER}"}}')
    assert "error" not in below, below
    reached, smallest = max(plan["peak"] for plan in below["plans"]), min(plan["peak"] for plan in least["plans"])
    assert reached < smallest
    budget = (reached + smallest) // 2
    assert measured.measure(name, "tightfit", budget=budget, tiny=True, steps=1)["error"] == "InfeasibleBudget"
    run = measured.measure(name, "tightfit", budget=budget, tiny=True, more=f'{{"offload": "{TIER}"}}')
    assert "error" not in run, run
    for found in (below, run):
        assert measured.differing(found, eager) == []
    assert all(step["peak"] <= budget for step in run["steps"]), run["steps"]
    assert all(step["peak"] <= reached for step in below["steps"]), below["steps"]


@counted
@pytest.mark.parametrize(("name", "optimizer"), cases(("wide", "adamw"), ("frozen", "adamw"), full=[("gpt2", "momentum")]))
def test_whole_steps_in_less_than_parameters_and_state(name: str, optimizer: str) -> None:
    eager = stepped.run(name, "eager", optimizer=optimizer)
    # The memory of measuring is not part of the guarantee.
    stepped.run(name, "step", optimizer=optimizer, budget="min", offload=TIER, steps=1)
    lowest = stepped.run(name, "step", optimizer=optimizer, budget="min", offload=TIER)
    assert "error" not in lowest, lowest
    [reached] = lowest["plans"]
    budget = reached + (eager["peak"] - reached) // 8
    run = stepped.run(name, "step", optimizer=optimizer, budget=budget, offload=TIER)
    assert "error" not in run, run
    if name == "wide":
        assert budget < eager["parameters"] + eager["state"]
    for found, most in ((lowest, reached), (run, budget)):
        assert found["peak"] <= most
        assert stepped.differing(found, eager) == []


def test_gradients_that_accumulate() -> None:
    def loop(model: nn.Module) -> None:
        for seed in range(3):
            model(*batch(seed=seed)).backward()

    same(*pair(), loop)


def test_a_graph_that_is_retained() -> None:
    eager, model = pair()

    def loop(model: nn.Module) -> None:
        loss = model(*batch())
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()

    same(eager, model, loop)
    # What was retained but never used again is freed in the end.
    model.zero_grad()
    loss = model(*batch())
    loss.backward(retain_graph=True)
    assert used(model) > 0
    del loss
    assert used(model) == 0


def test_several_forward_passes_before_their_backward_passes() -> None:
    def loop(model: nn.Module) -> None:
        first, second, third = (model(*batch(seed=seed)) for seed in range(3))
        second.backward()
        first.backward()
        third.backward()

    same(*pair(), loop)


def test_a_forward_pass_whose_backward_pass_never_comes() -> None:
    _, model = pair()
    loss = model(*batch())
    assert used(model) > 0
    del loss
    assert used(model) == 0


def test_other_shapes_and_evaluation_in_between() -> None:
    def loop(model: nn.Module) -> None:
        for rows in (512, 256, 512):
            loss = model(*batch(rows))
            with torch.no_grad():
                model.eval()(*batch(128))
            model.train()
            loss.backward()

    same(*pair(), loop)


@pytest.mark.parametrize("method", ["release", "fetch", "arrive"])
def test_a_step_that_fails_in_the_middle(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, model = pair()
    model(*batch()).backward()
    model.zero_grad()
    works, calls = getattr(away.Away, method), []

    def fails(self: away.Away, tensor: torch.Tensor) -> None:
        calls.append(tensor)
        if len(calls) == 3:
            raise RuntimeError("stop here")
        works(self, tensor)

    monkeypatch.setattr(away.Away, method, fails)
    with pytest.raises(RuntimeError, match="stop here"):
        model(*batch()).backward()
    monkeypatch.setattr(away.Away, method, works)
    calls.clear()
    assert used(model) == 0
    model.zero_grad()
    same(eager, model, lambda model: model(*batch()).backward())


# Whole steps.


def step_of(model: nn.Module, **options: Any) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return optimizer, tightfit.step(model, None, optimizer, budget="min", offload=TIER, **options)


def eager_steps(model: nn.Module, batches: list[Any], optimizer: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if optimizer is None else optimizer
    for one in batches:
        model(*one).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def alike(one: Any, other: Any) -> bool:
    """Whether two states agree, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


def agree(eager: nn.Module, model: nn.Module, theirs: torch.optim.Optimizer, ours: torch.optim.Optimizer) -> bool:
    return alike(eager.state_dict(), model.state_dict()) and alike(theirs.state_dict()["state"], ours.state_dict()["state"])


def test_between_steps_all_can_be_read_saved_loaded_and_written() -> None:
    torch.manual_seed(0)
    eager = Wide()
    model = copy.deepcopy(eager)
    optimizer, step = step_of(model)
    torch.manual_seed(7)
    theirs = eager_steps(eager, [batch(seed=0), batch(seed=1)])
    torch.manual_seed(7)
    step(*batch(seed=0))
    step(*batch(seed=1))
    [plan] = step.plans
    assert plan.offloaded > 0
    for swapped in plan.swapped:
        moving = (swapped.out_seconds or 0) + swapped.back_seconds
        assert swapped.free_seconds == pytest.approx(swapped.idle_seconds - moving)
        assert swapped.bytes <= plan.offloaded and swapped.stall_seconds >= 0
    frees = [swapped.free_seconds for swapped in plan.swapped]
    assert frees and frees == sorted(frees, reverse=True)
    assert agree(eager, model, theirs, optimizer)

    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    torch.manual_seed(8)
    eager_steps(eager, [batch(seed=2)], theirs)
    torch.manual_seed(8)
    step(*batch(seed=2))
    assert agree(eager, model, theirs, optimizer)

    for one, other, ours in ((eager, theirs, False), (model, optimizer, True)):
        one.load_state_dict(saved[0])
        other.load_state_dict(copy.deepcopy(saved[1]))
        with torch.no_grad():
            one.head.weight.mul_(0.5)
            one.head.bias.data = torch.full((4,), 0.25)
        torch.manual_seed(9)
        if ours:
            step(*batch(256, seed=3))
            step(*batch(seed=4))
        else:
            eager_steps(one, [batch(256, seed=3), batch(seed=4)], other)
    assert agree(eager, model, theirs, optimizer)


def test_memory_that_others_share_stays_theirs() -> None:
    torch.manual_seed(0)
    model = Wide()
    before = model.state_dict()
    kept = copy.deepcopy(before)
    _, step = step_of(model)
    step(*batch())
    assert alike(before, kept), "a state that was taken before the first step is what it was"


def test_a_whole_step_that_fails_leaves_all_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Wide()
    _, step = step_of(model)
    before = copy.deepcopy(model.state_dict())
    works, calls = residents.Resident.release, []

    def fails(self: residents.Resident) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise RuntimeError("stop here")
        works(self)

    monkeypatch.setattr(residents.Resident, "release", fails)
    with pytest.raises(RuntimeError, match="stop here"):
        step(*batch())
    monkeypatch.setattr(residents.Resident, "release", works)
    after = model.state_dict()
    assert all(after[name].shape == tensor.shape and after[name].isfinite().all() for name, tensor in before.items())
    step(*batch())


def test_the_memory_of_a_tier_goes_with_its_model() -> None:
    _, model = pair()
    model(*batch()).backward()
    assert used(model) == 0
    slots = [weakref.ref(memory) for memories in tier_of(model)._free.values() for memory in memories]
    assert slots and all(slot() is not None for slot in slots)
    del model
    gc.collect()
    assert all(slot() is None for slot in slots)


# The tier.


@pytest.fixture
def small() -> Iterator[tier.Tier]:
    yield tier.Tier(1 << 20, torch.device("cpu"))


def test_a_slot_is_one_tensors_until_it_is_let_go(small: tier.Tier) -> None:
    first = small.take(1 << 19)
    second = small.take(1 << 19)
    assert first.bytes.data_ptr() != second.bytes.data_ptr()
    with pytest.raises(tightfit.OffloadError, match="offload="):
        small.take(1)
    del first
    small.take(1 << 18)
    assert small.held <= small.size


def test_what_comes_back_is_what_left(small: tier.Tier) -> None:
    tensor = torch.randn(300, 300)
    view, expected = tensor.t(), tensor.clone()
    one = away.Away(small, tensor)
    one.release(view)
    assert tensor.untyped_storage().nbytes() == 0
    one.fetch(tensor)
    one.arrive(view)
    assert torch.equal(tensor, expected) and torch.equal(view, expected.t())


def test_a_folder_that_takes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    model = tightfit.compile(Wide(), budget="min", offload=TIER)
    with pytest.raises(tightfit.OffloadError, match="TMPDIR"):
        model(*batch())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where the system says what is mapped")
def test_a_tier_takes_no_open_files_and_goes_with_its_model() -> None:
    def of_tiers() -> int:
        return sum(tempfile.gettempdir() in line and "(deleted)" in line for line in Path("/proc/self/maps").read_text().splitlines())

    gc.collect()
    mapped, opened = of_tiers(), len(list(Path("/proc/self/fd").iterdir()))
    _, model = pair()
    model(*batch()).backward()
    assert of_tiers() > mapped
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened
    del model
    gc.collect()
    assert of_tiers() == mapped


def test_a_step_goes_with_all_that_it_planned_while_its_model_lives() -> None:
    model = Wide()
    optimizer = torch.optim.AdamW(model.parameters())
    step = tightfit.step(model, None, optimizer, budget="min", offload=TIER)
    step(*batch())
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    gone = [weakref.ref(found) for found in (step._backend, step._backend.steps[0], step._residents)]
    del step
    gc.collect()
    assert [found() for found in gone] == [None, None, None]
    assert all(map(torch.equal, model.parameters(), expected))
    gone = [weakref.ref(parameter) for parameter in model.parameters()]
    del model, optimizer
    gc.collect()
    assert not any(found() is not None for found in gone)


def test_a_tier_that_is_too_small_for_two_forward_passes() -> None:
    _, model = pair()
    kept = model(*batch())
    tier_of(model).size = used(model)
    with pytest.raises(tightfit.OffloadError, match="whose backward pass has not come"):
        model(*batch())
    kept.backward()


def test_a_budget_that_no_tier_meets_is_refused_with_its_figures() -> None:
    model = tightfit.compile(Wide(), budget=20_000, offload=TIER)
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        model(*batch())
    assert refused.value.smallest > 20_000
    model = tightfit.compile(Wide(), budget=refused.value.smallest, offload=TIER)
    model(*batch()).backward()


@pytest.mark.parametrize("options", [{"offload": "much"}, {"offload": True}, {"offload": -1}, {"offload": TIER, "fused": True},
                                     {"offload": TIER, "addresses": True}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(tightfit.OptionError, match="offload="):
        tightfit.compile(Wide(), budget="min", **options)


class Log:
    """Stands for a stream or event: logs its method calls."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *given: self.log.append(" ".join([self.name, method, *(other.name for other in given)]))

    def __enter__(self) -> None:
        """What follows is submitted to it."""

    def __exit__(self, *error: object) -> None:
        pass


def test_streams_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    names = iter(("out", "back"))
    now = [Log("compute", log)]
    monkeypatch.setattr(torch, "Stream", lambda device: Log(next(names), log))
    monkeypatch.setattr(torch, "Event", lambda device: Log("event", log))
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device=None: now[0])
    pinned: list[int] = []
    library = types.SimpleNamespace(cudaHostRegister=lambda address, size, flags: pinned.append(address) or 0,
                                    cudaHostUnregister=pinned.remove)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: library)
    below = tier.Tier(1 << 20, torch.device("cpu"))
    below.lanes = cuda.PinningLanes(torch.device("cpu"))
    tensor = torch.randn(100)
    expected = tensor.clone()
    one = away.Away(below, tensor)
    begun = ["{0} wait_stream compute", "event record {0}"]
    assert log == [line.format("out") for line in begun]
    one.release(tensor)
    assert log[2:] == ["compute wait_event event"] and tensor.untyped_storage().nbytes() == 0
    one.fetch(tensor)
    assert log[3:] == [line.format("back") for line in begun]
    one.arrive(tensor)
    assert log[5:] == ["compute wait_event event"] and torch.equal(tensor, expected)
    one.arrive(tensor)
    given_up = away.Away(below, tensor)
    del log[:], one
    assert log == []
    del given_up
    assert log == ["compute wait_event event"], "what was not waited for is waited for before its memory goes"
    assert len(pinned) == 2
    del below
    gc.collect()
    assert pinned == []


def test_what_is_not_on_the_device_stays_where_it_is() -> None:
    # Like dropout states on the CPU for a tier below a GPU.
    tensor = torch.arange(4.0)
    below = tier.Tier(1 << 20, torch.device("cpu"))
    below.device = torch.device("meta")
    one = away.Away(below, tensor)
    one.release(tensor)
    one.fetch(tensor)
    one.arrive(tensor)
    assert torch.equal(tensor, torch.arange(4.0)) and below.used == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_same_on_a_gpu() -> None:
    torch.manual_seed(0)
    eager = Wide().cuda()
    model = tightfit.compile(copy.deepcopy(eager), budget="min", offload=TIER)
    same(eager, model, lambda model: model(*(tensor.cuda() for tensor in batch(4096))).backward())
    optimizer, step = step_of(copy.deepcopy(eager))
    step(*(tensor.cuda() for tensor in batch(4096)))
    assert step.plans[0].offloaded > 0
