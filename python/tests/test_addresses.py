"""Planned addresses, on the processor through the functions by which CUDA would call them (`placed.py`).

Invariant: what is judged is what C++ saw outside of the package (bytes that are out, blocks that overlap) and eager's
bits; every run is in a process of its own, since PyTorch's allocator is one for all.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import allocator
import pytest
import torch
import zoo

tightfit = zoo.use_tightfit()
REASON = allocator.unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
HERE = Path(__file__).resolve().parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=HERE, check=False)


def printed(code: str) -> str:
    """What a program prints that starts under the package's allocator."""
    opening = "import placed, torch\nfrom torch import nn\nfrom placed import tightfit, _native\nCOUNTED = placed.install()\n"
    done = run("-c", opening + code)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def placed(name: str, *words: str) -> dict[str, Any]:
    done = run("placed.py", name, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_replayed_steps_lie_at_their_addresses_with_eagers_bits(name: str):
    found = placed(name, "--shares", ".75")
    eager, ours = found["eager"], found["0.75"]
    budget, steps = ours["budget"], ours["steps"]
    assert [step["bits"] for step in steps] == [step["bits"] for step in eager]
    assert all(step["overlaps"] == step["strays"] == 0 for step in [*eager, *steps])
    assert all(step["peak"] <= budget for step in steps), [step["peak"] - budget for step in steps]
    # All bytes that are out lie in the slab, or in blocks beside it.
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
"""


def test_an_allocation_that_was_not_recorded_is_an_exception_of_pythons():
    said = printed(STEPS + """
places, _ = step([4096, 8192], replay)
assert [place - min(places) for place in places] in ([0, 4096], [8192, 0]), places
for sizes in ([4096, 8191], [4096, 8192, 1], [1 << 62]):
    try:
        step(sizes, replay)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
        print(addresses.stop())
step([4096, 8192], replay)
print(addresses.counters()["held"], addresses.counters()["strays"], COUNTED.tightfit_overlaps())
""").splitlines()
    asks = "allocation 1 of this step asks for 8191 bytes, and when the step was recorded it asked for 8192"
    assert said[0] == f"tightfit: {asks}" and said[1] == asks
    assert "behind the last of the 2 allocations" in said[2]
    assert "asks for 4611686018427387904 bytes" in said[4]
    assert said[-1] == "0 0 0"


def test_a_step_does_not_begin_over_a_tensor_of_the_last_one():
    said = printed(STEPS + """
addresses.replay(placement)
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
replay()
""").splitlines()
    assert said == ["12288 bytes of tensors of an earlier step still lie in the slab", str(7 * 4096)]


LOOP = """
torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
tightfit.compile(model, budget="8MiB", addresses=True)
counters = _native.Addresses(-1).counters

def step(rows, zero=True):
    before = counters()["placed"]
    if zero:
        model.zero_grad()
    model(torch.ones(rows, 64)).sum().backward()
    return counters()["placed"] - before
"""


def test_each_shape_is_a_step_of_its_own():
    said = printed(LOOP + """
print([step(rows) > 0 for rows in (256, 256, 256, 128, 256, 128, 128, 256, 128)])
model.zero_grad()
with torch.no_grad():
    print([(model(torch.ones(256, 64)) is None, counters()["held"]) for _ in range(4)])
print(COUNTED.tightfit_overlaps(), counters()["strays"])
""").splitlines()
    # Two steps of a shape are recorded.
    assert said[0] == str([False, False, True, False, True, False, True, True, True])
    assert said[1] == str([(False, 0)] * 4)
    assert said[2] == "0 0"


def test_accumulation_goes_on_beside_what_lasts():
    said = printed(LOOP + """
eager = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
eager.load_state_dict(model.state_dict())
for batch in range(6):
    counts = [step(64, zero=index == 0) for index in range(3)]
    eager.zero_grad()
    for _ in range(3):
        eager(torch.ones(64, 64)).sum().backward()
    same = all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), eager.parameters()))
    print(same, all(counts), COUNTED.tightfit_overlaps())
""").splitlines()
    assert all(line.startswith("True") and line.endswith(" 0") for line in said), said
    assert said[-1] == "True True 0"


def test_a_forward_pass_over_another_ones_saved_tensors_is_refused():
    said = printed(LOOP.replace("8MiB", "600KiB") + """
for _ in range(4):
    step(256)
model.zero_grad()
waiting = model(torch.ones(256, 64)).sum()
try:
    model(torch.ones(256, 64))
except tightfit.BudgetExceeded as error:
    print(error)
except tightfit.InfeasibleBudget as error:
    print(error)
waiting.backward()
print(COUNTED.tightfit_overlaps())
""").splitlines()
    assert said[-1] == "0"
    assert len(said) == 2, said


def test_a_step_that_changes_is_stopped_and_recorded_anew():
    said = printed(LOOP + """
for _ in range(3):
    step(256)
from tightfit.training import addresses
window = addresses.Slab.window
import contextlib

@contextlib.contextmanager
def disturbed(self, step):
    with window(self, step):
        torch.empty(77)
        yield

addresses.Slab.window = disturbed
try:
    step(256)
except tightfit.AllocationError as error:
    print(error)
addresses.Slab.window = window
print([step(256) > 0 for _ in range(4)])
""").splitlines()
    assert said[0].startswith("allocation 0 of this step asks for 308 bytes")
    assert said[1] == str([False, False, True, True])


def test_without_cuda_nobody_is_promised_addresses():
    model = tightfit.compile(torch.nn.Linear(4, 1), budget="1MiB", addresses=True)
    if torch.cuda.is_available():
        pytest.skip("says what happens without CUDA")
    with pytest.raises(tightfit.CompileError, match="addresses=True is for CUDA"):
        model(torch.ones(2, 4))


@pytest.mark.skipif(not hasattr(torch._C, "_cuda_customAllocator"), reason="this PyTorch was built without CUDA")
def test_pytorch_takes_the_functions_as_cudas_allocator():
    done = run("-c", "from placed import tightfit\nfrom tightfit.training import addresses\naddresses.replace_allocator()\n"
                     "import torch\nprint(torch.cuda.memory._get_current_allocator() is not None)\n"
                     "from tightfit import _native\n"
                     "try:\n    _native.Addresses(0).reserve(1 << 50)\n"
                     "except tightfit.AllocationError as error:\n    print(error)\n")
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert said[0] == "True" and "cudaMalloc fails with error" in said[1]
