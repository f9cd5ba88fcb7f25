"""Losses that the loop computes itself, and losses that are captured with the model.

Invariant: from the second step on, PyTorch's allocator hands out no more than the budget, whatever the loss holds;
captured losses have eager's bits; and a count ends with its step.

Tier: quick, since it takes 30 s; most of it are loops in fresh processes.
"""

import copy
import gc
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tightfit

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)

from tightfit.training.survey import survey

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

BENCH = Path(__file__).resolve().parents[1] / "bench" / "losses.py"
ROWS, CLASSES = 512, 64


class Net(nn.Module):
    """Wide layers before narrow ones."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))
                                      for _ in range(4)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.blocks(inputs)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, 64), torch.randint(0, CLASSES, (ROWS,))


def test_what_losses_hold_is_within_the_budget(tmp_path):
    # Their results have large storages, they hold squares of the batch, and more than the outputs.
    names = ["mse", "smooth_l1", "nt_xent", "gaussian_nll"]
    chosen = [word for name in names for word in ("--only", name)]
    subprocess.run([sys.executable, str(BENCH), *chosen, "--budget", "2", "--json", str(tmp_path / "rows.json")], check=True)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["loop"] for row in rows] == names
    for row in rows:
        assert "failed" not in row and "error" not in row["ours"], row
        assert row["bits"] == "yes"
        assert all(step <= row["budget"] for step in row["ours"]["steps"][1:]), row
        assert row["ours"]["steps"][0] <= row["budget"] or row["ours"]["warnings"], row


LOSSES = {
    "cross entropy": (functional.cross_entropy, 4 * ROWS * CLASSES),
    "mean of squares": (lambda outputs, _: outputs.square().mean(), 0),
    "exponential": (lambda outputs, _: outputs.exp().mean(), 4 * ROWS * CLASSES),
    "distance": (lambda outputs, _: functional.mse_loss(outputs, torch.zeros(ROWS, CLASSES)), 2 * 4 * ROWS * CLASSES),
    "half a distance": (lambda outputs, _: functional.mse_loss(outputs, torch.zeros(ROWS, CLASSES)) / 2, 2 * 4 * ROWS * CLASSES),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_survey_finds_what_a_loss_holds(name):
    """A target or a computed tensor, and the result of a distance, whose storage is as large as its inputs."""
    loss_fn, held = LOSSES[name]
    outputs = torch.randn(ROWS, CLASSES, requires_grad=True) * 1
    loss = loss_fn(outputs, torch.randint(0, CLASSES, (ROWS,)))
    found = survey([loss]).on(outputs.device, frozenset({outputs.untyped_storage()._cdata}))
    # Besides these, scalars, and class indices.
    assert held <= found.held <= held + 8 * ROWS + 64


def test_a_survey_goes_through_functions_whatever_their_contexts_hold():
    class Named(torch.autograd.Function):
        @staticmethod
        def forward(ctx, outputs):
            ctx.variable = outputs.exp()
            return outputs * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    leaf = torch.randn(ROWS, CLASSES, requires_grad=True)
    found = survey([Named.apply(leaf).sum()])
    assert [one is leaf for one in found.leaves] == [True]
    assert found.on(leaf.device, frozenset()).held >= leaf.nbytes


def test_counting_gives_way_to_other_profilers():
    inputs, targets = batch()
    model = tightfit.compile(Net(), "1GiB")
    loss = functional.cross_entropy(model(inputs), targets)
    with torch.autograd.profiler.profile() as profile:
        loss.backward()
    assert profile.key_averages()
    for _ in range(4):
        functional.cross_entropy(model(inputs), targets).backward()
    outputs = model(inputs)
    with torch.profiler.profile():
        functional.cross_entropy(outputs, targets).backward()
    assert not torch._C._autograd._profiler_enabled()


def test_counting_ends_though_a_backward_pass_runs_another():
    inputs, targets = batch()
    model = tightfit.compile(Net(), "1GiB")
    for _ in range(2):
        loss = checkpoint(lambda inputs: functional.cross_entropy(model(inputs), targets), inputs.requires_grad_(), use_reentrant=True)
        loss.backward()
        assert not torch._C._autograd._profiler_enabled()
    assert inputs.grad is not None


def test_a_checkpoint_around_the_model_is_no_pass_without_a_plan(recwarn: pytest.WarningsRecorder):
    inputs, targets = torch.randn(256, 256), torch.randn(256, 256)
    eager = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    model = tightfit.compile(copy.deepcopy(eager), "8MiB")
    for one in (eager, model):
        functional.mse_loss(checkpoint(one, inputs, use_reentrant=False), targets).backward()
    assert all(map(torch.equal, *([parameter.grad for parameter in one.parameters()] for one in (eager, model))))
    assert tightfit.plans(model) and not [warning for warning in recwarn if "no plan ran" in str(warning.message)]


def test_gradients_that_are_freed_between_the_passes_do_not_count_until_the_end(recwarn: pytest.WarningsRecorder):
    model = tightfit.compile(nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)), "8MiB", deadline=0.1)
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    small = 2 * 4 * 256
    for step in range(1, 5):
        loss = model(torch.randn(64, 256)).square().mean()
        [found] = model._compiled_call_impl.backend.steps
        [pending] = [one for one in found.ledger.pending if one.saved is not None]
        tally = pending.tally
        # The first two steps make plans, and the fourth is counted again; the third one's gradients are not reported.
        assert (tally is None) == (step == 3)
        model.zero_grad()
        loss.backward()
        if tally is not None:
            assert tally.freed in ((gradients, gradients - small) if step == 4 else (0,))
    assert not [warning for warning in recwarn if "more than the budget" in str(warning.message)]


def test_a_survey_runs_no_hooks_and_goes_through_freed_graphs():
    def fail(_):
        raise AssertionError("unpacked")

    outputs = torch.randn(ROWS, CLASSES, requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fail):
        loss = outputs.exp().sin().sum()
    assert survey([loss]).on(outputs.device, frozenset()).held >= 4 * ROWS * CLASSES
    loss = outputs.exp().sin().sum()
    loss.backward()
    survey([loss])


@pytest.mark.parametrize("loss_fn", [functional.cross_entropy, lambda outputs, targets: (functional.cross_entropy(outputs, targets), outputs)])
def test_a_captured_loss_is_eagers(loss_fn):
    eager = Net()
    model = copy.deepcopy(eager)
    least = tightfit.compile(copy.deepcopy(eager), "min", loss=loss_fn)
    inputs, targets = batch()
    least(inputs, targets=targets)
    tightfit.compile(model, tightfit.plans(least)[0].peak, loss=loss_fn)
    for step in range(2):
        losses = []
        for run in (lambda: loss_fn(eager(inputs), targets), lambda: model(inputs, targets=targets)):
            torch.manual_seed(step)
            found = run()
            losses.append(found[0] if isinstance(found, tuple) else found)
            losses[-1].backward()
            if isinstance(found, tuple):
                assert found[1].shape == (ROWS, CLASSES)
            del found
        assert torch.equal(*losses)
        assert all(torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), eager.parameters(), strict=True))
        model.zero_grad()
        eager.zero_grad()
    assert list(model.state_dict()) == list(eager.state_dict())
    assert tightfit.plans(model)[0].recomputed > 0
    model.eval()
    eager.eval()
    with torch.no_grad():
        assert torch.equal(model(inputs), eager(inputs))


def test_what_does_not_go_together_with_a_loss_is_refused():
    class Own(Net):
        def forward(self, inputs, targets=None):
            return super().forward(inputs)

    for options, advice in [({"loss_memory": 1}, "loss_memory"), ({"differentiable_outputs": True}, "differentiable_outputs"),
                            ({"loss": "cross_entropy"}, "no function")]:
        with pytest.raises(tightfit.OptionError, match=advice):
            tightfit.compile(Net(), "1GiB", **({"loss": functional.cross_entropy} | options))
    with pytest.raises(tightfit.OptionError, match="takes targets itself"):
        tightfit.compile(Own(), "1GiB", loss=functional.cross_entropy)


def test_a_backward_pass_that_goes_around_the_plan_is_warned_of_once():
    inputs, targets = batch()
    ways = [lambda model: model.forward(inputs), lambda model: model.blocks(inputs), lambda model: torch.compile(model.forward, backend="aot_eager")(inputs)]
    for way in ways:
        model = tightfit.compile(Net(), "1GiB")
        with pytest.warns(RuntimeWarning, match="go around the plan"):
            way(model).square().mean().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            way(model).square().mean().backward()


def test_a_penalty_on_parameters_is_no_way_around():
    inputs, targets = batch()
    model = tightfit.compile(Net(), "1GiB")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sum(parameter.square().sum() for parameter in model.parameters()).backward()
        penalty = sum(parameter.norm() for parameter in model.parameters())
        (functional.cross_entropy(model(inputs), targets) + penalty).backward()


def test_counting_ends_with_the_step_and_without_it():
    inputs, targets = batch()

    def is_counting() -> bool:
        return torch._C._autograd._profiler_enabled()

    model = tightfit.compile(Net(), "1GiB")
    loss = functional.cross_entropy(model(inputs), targets)
    assert is_counting(), "the first step is not counted"
    loss.backward()
    assert not is_counting()
    # There is no backward pass.
    loss = functional.cross_entropy(model(inputs), targets)
    assert is_counting(), "the second step is not counted"
    del loss
    gc.collect()
    assert not is_counting()
    # A backward pass is refused, and one fails before it reaches the model.
    def fail(_):
        raise ValueError("of a hook")

    outputs = model(inputs)
    loss = functional.cross_entropy(outputs, targets)
    with pytest.raises(tightfit.CompileError):
        loss.backward(create_graph=True)
    outputs.register_hook(fail)
    with pytest.raises(ValueError, match="of a hook"):
        loss.backward()
    del loss, outputs
    gc.collect()
    assert not is_counting()


def test_the_loss_of_one_shape_is_a_guide_for_others():
    inputs, targets = batch()
    model = tightfit.compile(Net(), "1GiB")
    for rows in (ROWS, ROWS // 2):
        functional.cross_entropy(model(inputs[:rows]), targets[:rows]).backward()
    first, second = model._compiled_call_impl.backend.steps
    assert second.loss.memory.between * 2 == pytest.approx(first.loss.memory.between, rel=0.1)
    # Of three tensors, one is the gradient, and one takes the place of the outputs, which the loop freed.
    assert first.loss.memory.between == pytest.approx(4 * ROWS * CLASSES, rel=0.1)


def test_what_a_declared_loss_takes_beyond_that_is_named():
    inputs, targets = torch.randn(ROWS, 64), torch.randn(ROWS, 256)
    network = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256))
    least = tightfit.plan(network, (inputs,), "min", loss_memory=1024)
    model = tightfit.compile(network, least.peak, loss_memory=1024)
    outputs = model(inputs)
    with pytest.warns(RuntimeWarning, match="not the 1,024 of loss_memory") as caught:
        functional.mse_loss(outputs, targets).backward()
    assert "planned for from now on" in str(caught[0].message)


def test_arguments_that_the_graph_does_not_read_count():
    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, inputs: torch.Tensor, extra: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
            return self.net(inputs)

    inputs, extra = torch.randn(ROWS, 64), {"mask": torch.ones(1 << 20)}
    model = tightfit.compile(Extra(), "8MiB")
    model(inputs).sum().backward()
    [without] = tightfit.plans(model)
    with pytest.raises(tightfit.InfeasibleBudget, match="4,194,304 bytes of arguments that the graph does not read"):
        tightfit.compile(Extra(), extra["mask"].nbytes + without.peak // 2)(inputs, extra)
    model = tightfit.compile(Extra(), without.peak + extra["mask"].nbytes)
    model(inputs, extra).sum().backward()
    assert tightfit.plans(model)[0].peak > without.peak


def test_losses_that_a_loop_keeps_count():
    inputs, targets = torch.randn(ROWS, 64), torch.randn(ROWS, 64)
    model, kept = tightfit.compile(Net(), "1GiB"), []
    for _ in range(4):
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        kept.append(loss.detach())
    ledger = model._compiled_call_impl.backend.ledger
    size = kept[0].untyped_storage().nbytes()
    assert size == targets.nbytes
    assert ledger.others()["losses of earlier steps"] == 4 * size
    del loss, kept[1:]
    assert ledger.others()["losses of earlier steps"] == size
    kept.clear()
    assert "losses of earlier steps" not in ledger.others()


def test_a_loss_that_was_scaled_counts_until_the_next_one():
    inputs, targets = torch.randn(ROWS, 64), torch.randn(ROWS, 64)
    model = tightfit.compile(Net(), "1GiB")
    for scale in (4.0, 0.25):
        loss = functional.mse_loss(model(inputs), targets)
        (scale * loss).backward()
    ledger = model._compiled_call_impl.backend.ledger
    assert ledger.others()["losses of earlier steps"] == loss.untyped_storage().nbytes() == targets.nbytes
    loss = functional.mse_loss(model(inputs), targets)
    loss.backward()
    assert ledger.others()["losses of earlier steps"] == targets.nbytes
    del loss
    assert "losses of earlier steps" not in ledger.others()


def test_a_refusal_proves_what_is_needed_even_if_nothing_is_left_for_the_graph():
    inputs, targets = batch()
    least = tightfit.compile(Net(), "min")
    functional.cross_entropy(least(inputs), targets).backward()
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        tightfit.compile(Net(), 1024)(inputs)
    error = refused.value
    assert 1024 < error.needed <= tightfit.plans(least)[0].peak
    assert error.needed <= error.smallest
    assert "with loss=" in str(error)
