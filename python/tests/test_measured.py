"""The measuring itself: bytes are counted exactly, and a run is the same in every process.

Invariant: expected bytes are sums of sizes written here, never earlier output of the allocator.

Tier: quick with a part of the cases, 2 s; full with all of them.
"""

import os

import allocator
import fresh
import measured
import pytest
import zoo
from tier import cases

REASON = allocator.unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

COUNTS = """
import threading
import torch, allocator
allocator.install()
base = allocator.current()

def seen():
    return allocator.current() - base, allocator.peak() - base

allocator.reset_peak()
x = torch.empty(1000)
assert seen() == (4000, 4000), seen()
assert x.data_ptr() % 64 == 0
y = x.double()
assert seen() == (12000, 12000), seen()
del x
assert seen() == (8000, 12000), seen()
view = y[10:]
del y
assert seen() == (8000, 12000), seen()
allocator.reset_peak()
assert seen() == (8000, 8000), seen()
view.untyped_storage().resize_(24000)  # the old block lives until its bytes are copied
assert seen() == (24000, 32000), seen()
del view
assert torch.empty(0).numel() == 0 and seen()[0] == 0, seen()

# Four threads hold 1 MB each at once, many times over.
allocator.reset_peak()
gate = threading.Barrier(4)
def work():
    for _ in range(200):
        block = torch.empty(1_000_000, dtype=torch.uint8)
        gate.wait()
        del block
        gate.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert seen() == (0, 4_000_000), seen()

served = allocator.served()
try:
    torch.empty(2**62, dtype=torch.uint8)
except RuntimeError:
    pass
else:
    raise AssertionError("2^62 bytes were handed out")
assert seen()[0] == 0 and allocator.served() == served
"""


def test_bytes_are_exact():
    done = fresh.run("-c", COUNTS)
    assert done.returncode == 0, done.stderr


def test_figures_are_asked_for_after_the_allocator_stands():
    code = "import allocator\ntry: allocator.peak()\nexcept allocator.Unavailable as error: print(error)"
    done = fresh.run("-c", code)
    assert "install()" in done.stdout


def test_without_a_compiler_the_reason_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler" in allocator.unavailable()
    with pytest.raises(allocator.Unavailable, match="no C\\+\\+ compiler"):
        allocator.build()


def test_processes_have_what_was_to_be_imported_for_them():
    done = fresh.run("-c", "import os, sys; print(*sys.modules); print(os.environ.get('PYTHONPATH', ''))")
    modules, path = done.stdout.splitlines()
    assert {"torch", "tightfit", "vector_math", "frozen"} <= set(modules.split())
    assert path == os.environ.get("PYTHONPATH", "")


def test_a_run_is_the_same_in_every_process_and_under_checkpointing():
    eager, again = (measured.measure("bert", "eager", tiny=True, optimizer="adamw") for _ in range(2))
    assert measured.differing(again, eager) == []
    assert [step["peak"] for step in again["steps"]] == [step["peak"] for step in eager["steps"]]
    assert len({step["loss"] for step in eager["steps"]}) == 3, "each step has its own batch"

    checkpointed = measured.measure("bert", "checkpoint", tiny=True, optimizer="adamw")
    assert measured.differing(checkpointed, eager) == []
    assert checkpointed["peak"] < eager["peak"]

    # Weights, gradients and AdamW's moments exist at the end of the second backward pass, whatever was recomputed.
    for run in (eager, checkpointed):
        assert run["steps"][1]["before"] > 3 * run["parameters"]
        assert run["steps"][1]["peak"] > 4 * run["parameters"]


def test_runs_of_other_seeds_differ():
    eager, other = (measured.measure("unet", "eager", tiny=True, steps=1, seed=seed) for seed in (0, 1))
    names = measured.differing(other, eager)
    assert "step 1: model.head.weight.grad" in names and "step 1: loss" in names


def test_an_exception_is_reported():
    run = measured.measure("unet", "tightfit", tiny=True, budget="a lot")
    assert run["error"] and run["message"]


@pytest.mark.parametrize("name", cases("gpt2", "unet", full=[name for name in zoo.MODELS if name not in ("gpt2", "unet")]))
def test_every_parameter_of_the_zoo_is_trained(name):
    work = zoo.build(name, tiny=True)
    work.loss(work.model(**work.batch(0))).backward()
    parameters = work.model.named_parameters()
    assert [fqn for fqn, parameter in parameters if parameter.grad is None or not parameter.grad.any()] == []
