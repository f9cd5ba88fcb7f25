"""Planned addresses, on the processor through the functions by which CUDA would call them (`placed.py`).

Invariant: tests judge what C++ counted outside of the package (bytes handed out, blocks that overlap) and eager's bits;
every run is in a process of its own, since PyTorch's allocator is global to a process.

Tier: quick with a part of the cases, 41 s; full with all of them.
"""

import json
from typing import Any

import allocator
import fresh
import pytest
import torch
import zoo
from tier import cases

tightfit = zoo.use_tightfit()
REASON = allocator.unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def printed(code: str) -> str:
    """The output of a program that starts under the package's allocator."""
    opening = "import placed, torch\nfrom torch import nn\nfrom placed import tightfit, _native\nCOUNTED = placed.install()\n"
    done = fresh.run("-c", opening + code)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def placed(name: str, *words: str) -> dict[str, Any]:
    done = fresh.run("placed.py", name, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", cases("gpt2", full=["resnet50"]))
def test_replayed_steps_lie_at_their_addresses_with_eagers_bits(name: str):
    found = placed(name)
    eager, ours = found["eager"], found["tightfit"]
    budget, steps = ours["budget"], ours["steps"]
    assert [step["bits"] for step in steps] == [step["bits"] for step in eager]
    assert all(step["overlaps"] == step["strays"] == 0 for step in [*eager, *steps])
    assert all(step["peak"] <= budget for step in steps), [step["peak"] - budget for step in steps]
    # All bytes handed out lie in the slab, or in blocks outside it.
    assert all(step["live"] == step["held"] + step["reserved"] - step["slab"] for step in steps)
    plan = ours["plans"][-1]
    replayed = [step for step in steps if step["placed"]]
    assert len(replayed) >= 2 and steps[-1] in replayed
    for step in replayed:
        assert step["placed"] == plan["placed"]
        assert step["slab"] == plan["slab"]
        assert step["peak"] == step["static"] + plan["slab"] + plan["beside"]


STEPS = """
addresses = _native.Addresses(-1)

def step(sizes, again=None):
    again() if again else addresses.record()
    addresses.open(0)
    tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    places = [tensor.data_ptr() for tensor in tensors]
    del tensors
    addresses.close()
    return places, addresses.leave()

first, second = step([4096, 8192])[1], step([4096, 8192])[1]
placement = _native.lay_out(first, second)
addresses.reserve(placement.slab)

def replay():
    addresses.replay(placement)

places, _ = step([4096, 8192], replay)
assert [place - min(places) for place in places] in ([0, 4096], [8192, 0]), places
for sizes in ([4096, 8191], [4096, 8192, 1], [1 << 62]):
    try:
        step(sizes, replay)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
        print(addresses.stop())
replay()
addresses.open(0)
kept = torch.full([4096], 7, dtype=torch.uint8)
gone = torch.empty(8192, dtype=torch.uint8)
addresses.close()
try:
    replay()
except tightfit.AllocationError as error:
    print(error)
print(kept.sum().item())
del kept, gone
step([4096, 8192], replay)
print(addresses.counters()["held"], addresses.counters()["strays"], COUNTED.tightfit_overlaps())
"""


def test_a_step_that_asks_for_something_else_is_stopped_with_an_exception_of_pythons():
    said = printed(STEPS).splitlines()
    asks = "allocation 1 of this step asks for 8191 bytes, and when the step was recorded it asked for 8192"
    assert said[:2] == [f"tightfit: {asks}", asks]
    assert "after the last of the 2 allocations" in said[2]
    assert "asks for 4611686018427387904 bytes" in said[4]
    assert said[6] == "12288 bytes of tensors of an earlier step still lie in the slab"
    assert said[7] == str(7 * 4096)
    assert said[8] == "0 0 0"


HELPERS = """
import contextlib, json
from tightfit.training import addresses
counters = _native.Addresses(-1).counters

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = nn.functional.gelu(layer(inputs))
        return inputs

def network():
    torch.manual_seed(0)
    return Network()

def compiled(budget):
    return tightfit.compile(network(), budget=budget, addresses=True, deadline=0.1)

def step(model, rows, zero=True):
    before = counters()["placed"]
    if zero:
        model.zero_grad()
    model(torch.ones(rows, 64)).sum().backward()
    return counters()["placed"] > before

def refusal(call):
    try:
        call()
    except (RuntimeError, tightfit.TightfitError) as error:
        return f"{type(error).__name__}: {error}"

found = {}
"""

LOOPS = HELPERS + """
# What the ledger of the model does not know of takes room from its slab.
model = compiled("600KiB")
found["alone"] = [step(model, 256) for _ in range(4)]
_native.Addresses(-1).reset_peak()
step(model, 256)
# So much that the slab of this plan does not fit any more.
extra = torch.empty((600 << 10) - counters()["peak"] + 20_000, dtype=torch.uint8)
model.zero_grad()
found["beside"] = [step(model, 256) for _ in range(8)]
_native.Addresses(-1).reset_peak()
found["beside"].append(step(model, 256))
found["peak"] = counters()["peak"]
extra = torch.empty(1 << 20, dtype=torch.uint8)
model.zero_grad()
found["too large"] = refusal(lambda: step(model, 256))
model.zero_grad()
del model, extra
placed._forget()

# The first step of a shape finds out whether its outputs are held.
model = compiled("600KiB")
found["first"] = [step(model, 256) for _ in range(5)]
found["over"] = refusal(lambda: model(torch.ones(256, 64)))
found["after"] = [step(model, 256) for _ in range(4)]
model.zero_grad()
waiting = model(torch.ones(256, 64)).sum()
found["waiting"] = refusal(lambda: model(torch.ones(256, 64)))
waiting.backward()
model.zero_grad()
found["twice"] = refusal(lambda: model(torch.ones(256, 64)).sum().backward(retain_graph=True))
for _ in range(4):
    step(model, 256)

@contextlib.contextmanager
def disturbed(self, step, window=addresses.Slab.window, **which):
    with window(self, step, **which):
        torch.empty(77)
        yield

kept = addresses.Slab.window
addresses.Slab.window = disturbed
found["disturbed"] = refusal(lambda: step(model, 256))
addresses.Slab.window = kept
found["anew"] = [step(model, 256) for _ in range(4)]
model.zero_grad()
del model, waiting
placed._forget()

model = compiled("8MiB")
step(model, 256), step(model, 128)
found["shapes"] = [step(model, rows) for rows in (256, 256, 256, 128, 256, 128, 128, 256, 128)]
model.zero_grad()
with torch.no_grad():
    found["evaluation"] = [counters()["placed"] for _ in range(5) if model(torch.ones(256, 64)) is not None]

model, eager = compiled("8MiB"), network()
for batch in range(6):
    found["accumulated"] = [step(model, 64, zero=index == 0) for index in range(3)]
    eager.zero_grad()
    for _ in range(3):
        eager(torch.ones(64, 64)).sum().backward()
    found.setdefault("same", []).append(all(
        torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), eager.parameters())
    ))
model.zero_grad()
del model
placed._forget()
found["slab of none"] = counters()["slab"]
found["overlaps"], found["strays"] = COUNTED.tightfit_overlaps(), counters()["strays"]
print(json.dumps(found))
"""

BETWEEN = HELPERS + """
def in_turn(rows, between, count):
    # Steps with something between forward and backward pass: allocations that are placed, the peak, and what was said.
    came = []
    for _ in range(count):
        _native.Addresses(-1).reset_peak()
        before = counters()["placed"]
        model.zero_grad()
        loss = model(torch.ones(rows, 64)).sum()
        said = refusal(between)
        loss.backward()
        came.append((counters()["placed"] - before, counters()["peak"], said))
    return came

def evaluation(rows):
    with torch.no_grad():
        model(torch.ones(rows, 64))

# Calls between the passes of a step: accepted next to its slab where there is room, refused where there is none.
model = compiled("600KiB")
for _ in range(3):
    evaluation(16)
found["plain"] = in_turn(256, lambda: None, 5)
found["between"] = in_turn(256, lambda: evaluation(16), 12)
found["refused"] = in_turn(256, lambda: evaluation(2048), 4)
model.zero_grad()
del model
placed._forget()

# Gradients that go between the passes now and then.
model, eager = compiled("2MiB"), network()
found["gone"] = []
for index in range(12):
    before = counters()["placed"]
    losses = [one(torch.ones(64, 64)).sum() for one in (model, eager)]
    if index % 4 == 0:
        model.zero_grad(), eager.zero_grad()
    for loss in losses:
        loss.backward()
    found["gone"].append((counters()["placed"] > before, all(
        torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), eager.parameters())
    )))
model.zero_grad()
del model, loss, losses
placed._forget()

# A tensor that went between the passes while the step was recorded, and stays afterwards.
model = compiled("900KiB")
extra, kept = [], []
def keep():
    kept.extend(extra)
    extra.clear()
for _ in range(6):
    extra.append(torch.empty(100_000, dtype=torch.uint8))
    came = in_turn(256, extra.clear, 1)
found["let go"] = came
hold = torch.empty((900 << 10) - came[0][1], dtype=torch.uint8)
extra.append(torch.empty(100_000, dtype=torch.uint8))
found["stays"] = refusal(lambda: in_turn(256, keep, 1))
model.zero_grad()
del model, hold
placed._forget()
found["overlaps"], found["strays"] = COUNTED.tightfit_overlaps(), counters()["strays"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loops() -> dict[str, Any]:
    """The results of several loops in one process."""
    return json.loads(printed(LOOPS).splitlines()[-1])


@pytest.fixture(scope="module")
def between() -> dict[str, Any]:
    """The results of loops in which something happens between the passes of a step."""
    return json.loads(printed(BETWEEN).splitlines()[-1])


def test_nothing_overlaps_in_any_loop(loops: dict[str, Any], between: dict[str, Any]):
    assert loops["overlaps"] == loops["strays"] == between["overlaps"] == between["strays"] == 0


def test_a_plan_of_fewer_bytes_is_made_where_the_slab_is_too_large(loops: dict[str, Any]):
    assert loops["alone"] == [False, False, False, True]
    # Each plan is recorded twice before it is known whether its slab fits.
    assert loops["beside"][:2] == [False, False] and loops["beside"][-2:] == [True, True]
    assert loops["peak"] <= 600 << 10
    assert loops["too large"].startswith("BudgetExceeded: a step of Network would reserve ")


def test_a_step_over_what_another_one_left_is_refused(loops: dict[str, Any]):
    assert loops["first"] == [False, False, False, True, True]
    assert loops["over"].startswith("BudgetExceeded: ")
    assert "still lie where this one is to be placed" in loops["over"]
    # Refused by PyTorch if it has already freed what the backward pass needs, or else by the package.
    assert "retain_graph" in loops["twice"]
    # A refusal changes nothing.
    assert loops["after"] == [True] * 4
    assert loops["waiting"] is not None


def test_a_step_that_changes_is_stopped_and_recorded_anew(loops: dict[str, Any]):
    assert loops["disturbed"].startswith("AllocationError: allocation 0 of this step asks for 308 bytes")
    assert loops["anew"] == [False, False, True, True]


def test_each_shape_and_evaluation_are_steps_of_their_own(loops: dict[str, Any]):
    # Two steps of a shape are recorded.
    assert loops["shapes"] == [False, False, True, False, True, False, True, True, True]
    first, second, *replayed = loops["evaluation"]
    assert first == second < replayed[0] < replayed[1] < replayed[2]


def test_accumulation_goes_on_beside_what_lasts(loops: dict[str, Any]):
    assert all(loops["same"]) and all(loops["accumulated"])


def test_a_slab_goes_with_the_last_model_that_has_its_addresses_there(loops: dict[str, Any]):
    assert loops["slab of none"] == 0


def test_calls_between_the_passes_of_a_step_leave_it_its_place_and_the_budget(between: dict[str, Any]):
    placed = between["plain"][-1][0]
    assert placed > 0 and [step[2] for step in between["between"]] == [None] * 12
    assert all("BudgetExceeded" in step[2] or "InfeasibleBudget" in step[2] for step in between["refused"])
    assert all(count >= placed for count, _, _ in (*between["between"], *between["refused"]))
    # The first time, a refused call was measured before, and its batch exists.
    assert max(peak for _, peak, _ in between["between"]) <= 600 << 10
    assert max(peak for _, peak, _ in between["refused"][1:]) - 4 * 64 * 2048 <= 600 << 10, between["refused"]


def test_gradients_that_go_between_the_passes_now_and_then_are_eagers(between: dict[str, Any]):
    assert all(same for _, same in between["gone"]) and any(placed for placed, _ in between["gone"])


def test_what_went_while_a_step_was_recorded_and_stays_is_refused(between: dict[str, Any]):
    assert between["let go"][0][0] > 0
    assert between["stays"].startswith("BudgetExceeded: with this backward pass ")


def test_addresses_are_asked_for_with_true_or_false():
    with pytest.raises(tightfit.OptionError, match="addresses='yes' is neither True nor False"):
        tightfit.compile(torch.nn.Linear(4, 1), budget="1MiB", addresses="yes")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_nobody_is_promised_addresses():
    class Doubled(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(inputs)

    model = tightfit.compile(Doubled(4, 1), budget="1MiB", addresses=True)
    with pytest.raises(tightfit.CompileError, match="addresses=True is for CUDA"):
        model(torch.ones(2, 4))


@pytest.mark.skipif(not hasattr(torch._C, "_cuda_customAllocator"), reason="this PyTorch was built without CUDA")
def test_pytorch_takes_the_functions_as_cudas_allocator():
    done = fresh.run("-c", "from placed import tightfit\nfrom tightfit.training import addresses\naddresses.replace_allocator()\n"
                     "import torch\nprint(torch.cuda.memory._get_current_allocator() is not None)\n"
                     "from tightfit import _native\n"
                     "try:\n    _native.Addresses(0).reserve(1 << 50)\n"
                     "except tightfit.AllocationError as error:\n    print(error)\n")
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert said[0] == "True" and "cudaMalloc fails with error" in said[1]
