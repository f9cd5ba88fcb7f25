"""The promise of `tightfit.compile` on real models: within the budget on every step, with eager's own bits.

Invariant: bytes are those of PyTorch's allocator in a fresh process, the first step included, in which the model is
captured and measured; budgets lie between the smallest one and eager's measured peak, so none is vacuous. The quick
tier, after every change, runs one small model, and the full tier all twelve; `TIGHTFIT_MODELS=all` runs them at their
full size, and a list of names runs those.

Tier: quick with a part of the cases, 27 s; full with all of them.
"""

import os

import allocator
import measured
import pytest
import zoo
from tier import FULL, cases, full

tightfit = zoo.use_tightfit()
if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)
REASON = allocator.unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

ASKED = os.environ.get("TIGHTFIT_MODELS", "")
SMALL = cases("gpt2", full=[name for name in zoo.TWELVE if name != "gpt2"])
NAMES = list(zoo.TWELVE) if ASKED == "all" else list(filter(None, ASKED.split(","))) or SMALL
TINY = not ASKED
SHARES = (0.75, 0.5, 0.25) if FULL or ASKED else (0.5,)
STEPS = 3 if TINY else 5


@pytest.mark.parametrize("name", NAMES)
def test_steps_fit_and_gradients_are_eagers(name: str):
    eager = measured.measure(name, "eager", tiny=TINY, steps=STEPS)
    least = measured.measure(name, "tightfit", budget="min", tiny=TINY, steps=2)
    assert "error" not in least, least
    smallest = min(plan["peak"] for plan in least["plans"])
    assert smallest < eager["peak"], "the smallest budget saves nothing: choose other sizes"
    for share in SHARES:
        budget = smallest + int(share * (eager["peak"] - smallest))
        run = measured.measure(name, "tightfit", budget=budget, tiny=TINY, steps=STEPS)
        assert "error" not in run, run
        peaks = [step["peak"] for step in run["steps"]]
        assert all(peak <= budget for peak in peaks), f"at {share}: {peaks} over {budget}"
        assert measured.differing(run, eager) == []
        assert all(plan["peak"] <= budget for plan in run["plans"])


def test_what_is_decided_about_modules_fits_and_gradients_are_eagers():
    eager = measured.measure("gpt2", "eager", tiny=True, steps=STEPS)
    by_modules = {"tiny": True, "more": '{"planner": "sac"}'}
    least = measured.measure("gpt2", "tightfit", budget="min", steps=2, **by_modules)
    assert "error" not in least, least
    smallest = min(plan["peak"] for plan in least["plans"])
    assert smallest < eager["peak"], "modules save nothing: choose other sizes"
    budget = (smallest + eager["peak"]) // 2
    run = measured.measure("gpt2", "tightfit", budget=budget, steps=STEPS, **by_modules)
    assert "error" not in run, run
    assert all(step["peak"] <= budget for step in run["steps"])
    assert measured.differing(run, eager) == []


@pytest.mark.parametrize("optimizer", cases("adamw", full=[name for name in measured.OPTIMIZERS if name != "adamw"]))
def test_the_optimizers_state_is_within_the_budget(optimizer: str):
    eager = measured.measure("gpt2", "eager", tiny=True, steps=4, optimizer=optimizer)
    least = measured.measure("gpt2", "tightfit", budget="min", tiny=True, steps=2, optimizer=optimizer)
    assert "error" not in least, least
    smallest = min(plan["peak"] for plan in least["plans"])
    budget = (smallest + eager["peak"]) // 2
    run = measured.measure("gpt2", "tightfit", budget=budget, tiny=True, steps=4, optimizer=optimizer)
    assert "error" not in run, run
    assert max(step["peak"] for step in run["steps"]) <= budget
    assert measured.differing(run, eager) == []


@full
def test_a_budget_that_is_too_small_says_what_would_do():
    refused = measured.measure("gpt2", "tightfit", budget=1 << 20, tiny=True, steps=1)
    assert refused["error"] == "InfeasibleBudget", refused
    assert refused["budget"] == 1 << 20 < refused["needed"] <= refused["smallest"]
    met = measured.measure("gpt2", "tightfit", budget=refused["smallest"], tiny=True, steps=2)
    assert "error" not in met and met["peak"] <= refused["smallest"], met


def test_an_lstm_is_refused_by_name():
    refused = measured.measure("lstm", "tightfit", budget=1 << 30, tiny=True, steps=1)
    assert refused.get("error"), "an LSTM was compiled"
    assert "LSTM" in refused["message"]
