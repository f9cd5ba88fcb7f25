"""Plans that are searched for while steps run.

Tier: quick, 10 s.
"""

import copy
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zoo
from torch import nn

tightfit = zoo.use_tightfit()
from tightfit.errors import InfeasibleBudget  # noqa: E402
from tightfit.training import execution, planned, searching, studying  # noqa: E402


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(256, 1))


BUDGET = int(tightfit.plan(net(), torch.randn(2048, 256), "min").peak * 1.2)


class Slow:
    """The planner, which takes its time and finds the smallest plan first."""

    def __init__(self, monkeypatch, *, goes_on: bool = True) -> None:
        self.may_end = threading.Event()
        self.asked: list[float | None] = []
        if goes_on:
            self.may_end.set()
        real = execution.held

        def held(graph, room, deadline, *args, **options):
            if room is None:
                return real(graph, room, deadline, *args, **options)
            self.asked.append(deadline)
            if deadline == searching.FIRST:
                time.sleep(deadline)
                return real(graph, None, deadline, *args, **options)
            assert self.may_end.wait(60)
            return real(graph, room, deadline, *args, **options)

        monkeypatch.setattr(execution, "held", held)


def steps(model: nn.Module, eager: nn.Module, times: int) -> None:
    for seed in range(times):
        batch = torch.randn(2048, 256, generator=torch.Generator().manual_seed(seed))
        losses = []
        for each in (model, eager):
            each.zero_grad()
            losses.append(each(batch).sum())
            losses[-1].backward()
        assert torch.equal(*losses)
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)


@pytest.fixture
def nothing_known(tmp_path, monkeypatch):
    """No measurements and plans are kept from before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_steps_run_by_the_first_plan_until_a_faster_one_is_found(nothing_known, monkeypatch):
    slow = Slow(monkeypatch, goes_on=False)
    eager = net()
    model = tightfit.compile(copy.deepcopy(eager), BUDGET, loss_memory=0)
    steps(model, eager, 2)
    [step] = model._compiled_call_impl.backend.steps
    first = [plan for plan in step.made if plan.search is not None]
    assert first and {None, searching.FIRST} == set(slow.asked)
    slow.may_end.set()
    plans = tightfit.plans(model)
    assert len(plans) == len(step.made) and not any(plan.search for plan in step.made)
    assert min(plan.seconds for plan in plans) < min(plan.held.seconds for plan in first)
    assert all(plan.peak <= BUDGET for plan in plans)
    steps(model, eager, 2)


def test_a_step_takes_what_was_found_by_itself(nothing_known, monkeypatch):
    slow = Slow(monkeypatch)
    eager = net()
    model = tightfit.compile(copy.deepcopy(eager), BUDGET, loss_memory=0, split="off")
    steps(model, eager, 2)
    [step] = model._compiled_call_impl.backend.steps
    for plan in step.made:
        if plan.search is not None:
            plan.search.wait()
    first = step.made[-1]
    steps(model, eager, 1)
    assert first.search is not None and step.made[-1].search is None
    assert step.made[-1].held.seconds < first.held.seconds and step.made[-1].held.peak + step.made[-1].beside <= BUDGET
    assert slow.asked.count(None) == len(step.made)


def test_what_the_first_search_does_not_find_is_searched_for_until_the_deadline(nothing_known, monkeypatch):
    real = execution.held

    def held(graph, room, deadline, *args, **options):
        if room is not None and deadline == searching.FIRST:
            raise InfeasibleBudget("not found yet", budget=room, needed=room + 1, smallest=room + 1, binding=None, live=[])
        return real(graph, room, deadline, *args, **options)

    monkeypatch.setattr(execution, "held", held)
    eager = net()
    model = tightfit.compile(copy.deepcopy(eager), BUDGET, loss_memory=0)
    steps(model, eager, 1)
    assert tightfit.plans(model)[0].peak <= BUDGET


@pytest.mark.parametrize("options", [{"deadline": 0.2}, {"planner": "sac"}])
def test_nothing_is_left_to_search_if_the_first_answer_is_the_last(options, monkeypatch):
    slow = Slow(monkeypatch)
    eager = net()
    model = tightfit.compile(copy.deepcopy(eager), "64MiB", loss_memory=0, **options)
    steps(model, eager, 1)
    assert searching.FIRST not in slow.asked


def test_a_search_that_fails_leaves_the_plan_that_was_found_before():
    def fails():
        raise InfeasibleBudget("no", budget=1, needed=2, smallest=2, binding=None, live=[])

    search = searching.Search(fails, fails)
    search.wait()
    assert search.has_ended and search.found is None


ENDS = """
import sys, threading
sys.path.insert(0, {tests!r})
import pytest, torch
import test_searching as here
here.Slow(pytest.MonkeyPatch())
model = here.tightfit.compile(here.net(), here.BUDGET, loss_memory=0, deadline=100_000)
model(torch.randn(2048, 256)).sum().backward()
print(threading.active_count(), flush=True)
"""


def test_a_program_ends_while_a_search_goes_on(nothing_known):
    code = ENDS.format(tests=str(Path(__file__).parent))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 1, "no search went on: choose another model"
    assert "Traceback" not in ran.stderr


def test_a_process_that_is_forked_has_its_own_turn(monkeypatch):
    monkeypatch.setattr(searching, "_turn", threading.Lock())
    with searching._turn:
        searching._renew()
        search = searching.Search(lambda: None, test_a_process_that_is_forked_has_its_own_turn)
        search.wait()
    assert json.dumps(search.found) == "null"


def test_a_larger_budget_is_never_slower_and_what_fitted_is_not_refused(nothing_known, monkeypatch):
    graph = studying.captured(net(), torch.randn(2048, 256), "a100-80gb")
    least = planned.held(graph, None, 0.5)
    peaks = [int(least.peak + share * (least.unplanned_peak - least.peak)) for share in (0.1, 0.4, 0.7, 1.0)]
    good = [planned.held(graph, peak, 0.5) for peak in peaks]
    assert [plan.seconds for plan in good] == sorted((plan.seconds for plan in good), reverse=True)
    assert good[0].seconds > good[-1].seconds and good[0].bound_seconds > good[-1].bound_seconds

    def nothing(*args):
        raise InfeasibleBudget("not found", budget=1, needed=1, smallest=2, binding=None, live=[])

    # Searches that find the smallest plan, or none.
    for searched in (lambda *args: replace(least, bound_seconds=1e-9), nothing):
        monkeypatch.setattr(planned, "_searched", searched)
        for peak, known in zip(peaks, good, strict=True):
            for more in (1, 2):
                found = planned.held(graph, peak + more, 0.5 + (searched is nothing))
                assert (found.seconds, found.peak, found.document) == (known.seconds, known.peak, known.document)
                assert found.bound_seconds == (None if searched is nothing else 1e-9)
    with pytest.raises(InfeasibleBudget):
        planned.held(graph, least.peak - 1, 0.5)
    assert planned.held(graph, None, 9).peak == least.peak
    with pytest.raises(InfeasibleBudget):
        planned.held(graph, peaks[0], 0.5, planner="dtr")
