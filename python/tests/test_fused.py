"""Plans run by Inductor: gradients up to rounding, a measured peak, and a warning if it exceeds the budget.

Invariant: expected gradients and peaks are eager's and the counting allocator's, which know nothing of plans.

Tier: quick with a part of the cases, 14 s; full with all of them.
"""

import copy
import warnings

import allocator
import fresh
import pytest
import torch
from torch import nn

import tightfit
from tier import full

pytestmark = pytest.mark.skipif(allocator.unavailable() is not None, reason="Inductor needs a C++ compiler")


class Net(nn.Module):
    """Blocks with much to save and little to recompute, and buffers that a step changes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)))

    def forward(self, inputs):
        return self.layers(self.norm(inputs)).square().mean()


def test_gradients_buffers_and_accumulation_are_eagers_up_to_rounding():
    model, (first, second) = Net(), torch.randn(2, 512, 16)
    eager = copy.deepcopy(model)
    least = tightfit.plan(copy.deepcopy(model), first, "min")
    tightfit.compile(model, budget=(least.peak + least.unplanned_peak) // 2, fused=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for batch in (first, second):
            for one in (model, eager):
                (one(batch) / 2).backward()
    for (name, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-7, msg=name)
    for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    [plan] = tightfit.plans(model)
    assert plan.recomputed > 0 and plan.measured_peak > sum(item.nbytes for item in model.parameters())
    model.eval()
    eager.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(first), eager(first))


@full
def test_a_peak_above_the_budget_is_said_once_and_nothing_is_refused():
    model = tightfit.compile(Net(), budget=100_000, fused=True)
    with pytest.warns(RuntimeWarning, match="100,000") as seen:
        for _ in range(3):
            model(torch.randn(512, 16)).backward()
    [plan] = tightfit.plans(model)
    said = [str(warning.message) for warning in seen if "fused=True" in str(warning.message)]
    assert len(said) == 1 and plan.measured_peak > plan.budget == 100_000
    with pytest.raises(tightfit.OptionError, match="fused"):
        tightfit.compile(Net(), budget="1GiB", fused="yes")


COUNTS = """
import allocator
allocator.install()
import torch, tightfit
from test_fused import Net
model, peaks = tightfit.compile(Net(), budget=10**8, fused=True), []
batches = torch.randn(3, 512, 16).unbind()
for batch in batches:
    batch = batch.clone()
    model.zero_grad()
    allocator.reset_peak()
    model(batch).backward()
    peaks.append(allocator.peak())
    del batch
[plan] = tightfit.plans(model)
print(max(peaks[1:]) - torch.stack(batches).nbytes, plan.measured_peak)
"""


@full
def test_the_measured_peak_is_what_the_allocator_counted():
    ran = fresh.run("-c", COUNTS)
    assert ran.returncode == 0, ran.stderr
    counted, reported = map(int, ran.stdout.split())
    assert abs(counted - reported) <= 2048


class Normed(nn.Module):
    """Its backward pass may overwrite what it needs for the gradient of the norm's weight."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(16, 8)

    def forward(self, inputs):
        return self.last(nn.functional.gelu(self.norm(inputs))).square().sum()


def gradients(model, batch, *, times):
    """The gradients of each of several backward passes of one forward pass."""
    loss, found = model(batch), []
    for left in reversed(range(times)):
        model.zero_grad()
        loss.backward(retain_graph=left > 0)
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    return found


@full
def test_a_backward_pass_that_runs_again_is_not_one_kept_of_a_model_whose_runs_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    eager, batch = Normed(), torch.randn(64, 16)
    [expected] = gradients(copy.deepcopy(eager), batch, times=1)
    for times in (1, 2):
        # As in another process: only the cache folder is left.
        torch.compiler.reset()
        model = tightfit.compile(copy.deepcopy(eager), "1GiB", fused=True)
        for found in gradients(model, batch, times=times):
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
