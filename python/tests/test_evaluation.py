"""Calls of a compiled model without gradients: eager where the budget has room, planned elsewhere.

Invariant: results have eager's bits; a kind of call that held too much once has a plan from then on.

Tier: quick, since it takes 10 s.
"""

import copy
import os
import warnings
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tightfit  # noqa: E402

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

WIDTH = 256


class Net(nn.Module):
    """Layers whose results have names until the end, so that eager holds all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = self.layers
        a = functional.gelu(first(inputs))
        b = functional.gelu(second(a))
        c = functional.gelu(third(b))
        return self.dropout(fourth(c))


def nets(budget: int | str, **options) -> tuple[nn.Module, nn.Module]:
    """A model and its compiled copy."""
    torch.manual_seed(0)
    model = Net()
    return model, tightfit.compile(copy.deepcopy(model), budget, deadline=0.1, **options)


def peak(run: Callable[[], Any]) -> tuple[int, Any]:
    """The most bytes that a function held in addition to what was there, as PyTorch's profiler reports them, and its
    result."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most, result


WEIGHTS = 4 * (WIDTH + 1) * WIDTH * 4
# Bytes of a tensor of a thousand rows, of which eager holds five and a plan three, besides the result of the call before.
TENSOR = 1000 * WIDTH * 4


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients_run_eagerly_with_the_same_bits_and_without_a_plan(guard):
    model, compiled = nets("64MiB")
    inputs = torch.randn(8, WIDTH)
    for training in (False, True):
        model.train(training), compiled.train(training)
        with guard():
            torch.manual_seed(1)
            expected = model(inputs)
            torch.manual_seed(1)
            assert torch.equal(compiled(inputs), expected)
    assert tightfit.plans(compiled) == []


def test_a_kind_of_call_that_held_too_much_is_planned_from_then_on_within_the_budget():
    budget = WEIGHTS + int(4.5 * TENSOR) + (256 << 10)
    model, compiled = nets(budget)
    model.eval(), compiled.eval()
    inputs = torch.randn(1000, WIDTH)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match=r"a call of Net without gradients held [\d,]+ bytes, [\d,]+ more than the budget"):
            compiled(inputs)
        assert tightfit.plans(compiled) == []
        compiled(inputs)
        [plan] = tightfit.plans(compiled)
        assert not plan.trains and plan.peak <= budget
        held, result = peak(lambda: compiled(inputs))
        assert held <= 3 * TENSOR + (64 << 10)
        assert torch.equal(result, model(inputs))
        del result
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Smaller ones still run eagerly.
            compiled(inputs[:100])
    assert len(tightfit.plans(compiled)) == 1


def test_a_larger_batch_of_the_same_kind_is_counted_before_it_is_trusted():
    budget = WEIGHTS + int(4.5 * TENSOR) + (256 << 10)
    _, compiled = nets(budget)
    compiled.eval()
    with torch.no_grad():
        compiled(torch.randn(513, WIDTH))
        # 513 and 1,000 are of one kind.
        with pytest.warns(RuntimeWarning, match="without gradients held"):
            compiled(torch.randn(1000, WIDTH))


def test_what_the_loop_holds_leaves_less_for_evaluation():
    budget = WEIGHTS + int(6.5 * TENSOR) + (256 << 10)
    _, compiled = nets(budget)
    compiled.eval()
    inputs = torch.randn(1000, WIDTH)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(inputs)
        kept = [compiled(inputs)]
        assert tightfit.plans(compiled) == []
        kept.append(compiled(inputs))
        compiled(inputs)
    assert [plan.trains for plan in tightfit.plans(compiled)] == [False]


def test_neighbours_of_a_kind_that_held_too_much_are_planned():
    budget = WEIGHTS + int(4.5 * TENSOR) + (256 << 10)
    _, compiled = nets(budget)
    compiled.eval()
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="without gradients held"):
            compiled(torch.randn(1030, WIDTH))
        # It has a binary digit less.
        compiled(torch.randn(1000, WIDTH))
    [plan] = tightfit.plans(compiled)
    assert plan.batch == [[1000, WIDTH]]


@pytest.mark.parametrize("flag", [True, 40])
def test_flags_and_numbers_make_kinds_of_their_own(flag):
    class Traced(Net):
        def forward(self, inputs, trace=0):
            return super().forward(inputs), [inputs * step for step in range(8 if trace is True else trace)]

    torch.manual_seed(0)
    compiled = tightfit.compile(Traced().eval(), WEIGHTS + int(6.5 * TENSOR) + (256 << 10), deadline=0.1)
    inputs = torch.randn(1000, WIDTH)
    with torch.no_grad():
        compiled(inputs)
        with pytest.warns(RuntimeWarning, match="without gradients held"):
            compiled(inputs, trace=flag)


def test_evaluation_may_run_eagerly_whatever_it_takes():
    model, compiled = nets(WEIGHTS + int(4.5 * TENSOR) + (256 << 10), evaluation="eager")
    model.eval(), compiled.eval()
    inputs = torch.randn(1000, WIDTH)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="ran eagerly"):
            compiled(inputs)
        for _ in range(3):
            assert torch.equal(compiled(inputs), model(inputs))
    assert tightfit.plans(compiled) == []


def test_a_loss_that_was_given_is_computed_eagerly_too():
    model, compiled = nets("64MiB", loss=functional.mse_loss)
    model.eval(), compiled.eval()
    inputs, targets = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    with torch.no_grad():
        assert torch.equal(compiled(inputs, targets=targets), functional.mse_loss(model(inputs), targets))
        assert torch.equal(compiled(inputs), model(inputs))
    assert tightfit.plans(compiled) == []


def test_generation_needs_no_plan():
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64))
    compiled = tightfit.compile(copy.deepcopy(model), "64MiB")
    prompt = torch.randint(0, 64, (2, 5))
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(compiled.generate(prompt, **options), model.generate(prompt, **options))
    assert tightfit.plans(compiled) == []


def test_evaluation_may_be_planned_from_the_first_call():
    model, compiled = nets("64MiB", evaluation="planned")
    model.eval(), compiled.eval()
    inputs = torch.randn(8, WIDTH)
    with torch.no_grad():
        assert torch.equal(compiled(inputs), model(inputs))
    [plan] = tightfit.plans(compiled)
    assert not plan.trains


def test_planned_evaluation_takes_batches_of_any_size():
    model, compiled = nets("64MiB", evaluation="planned")
    model.eval(), compiled.eval()
    with torch.no_grad():
        for rows in (8, 7, 5, 6, 1, 8):
            inputs = torch.randn(rows, WIDTH)
            assert torch.equal(compiled(inputs), model(inputs))
    assert len(tightfit.plans(compiled)) <= 4


def test_what_evaluation_cannot_be_is_refused():
    with pytest.raises(tightfit.OptionError, match="neither \"eager\""):
        tightfit.compile(Net(), "64MiB", evaluation="fast")
    with pytest.raises(tightfit.OptionError, match="fused=True"):
        tightfit.compile(Net(), "64MiB", evaluation="eager", fused=True)
