"""What functions for models refuse, and what they advise.

Invariant: each refusal is one of the package's exceptions, and following its advice works.

Tier: quick, since it takes 4 s.
"""

import re

import pytest
import torch
from torch import nn

import tightfit

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


class Net(nn.Module):
    """Two linear layers and a norm; the loss is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).square().mean()


def by_name(**options) -> nn.Module:
    return torch.compile(Net(), backend="tightfit", options={"budget": "1MiB"}, fullgraph=True, **options)


def test_symbolic_sizes_are_refused_and_static_ones_run():
    compiled = by_name(dynamic=True)
    with pytest.raises(Exception, match="dynamic=False") as refused:
        compiled(torch.randn(8, 16))
    assert isinstance(getattr(refused.value, "inner_exception", refused.value), tightfit.CompileError)
    torch._dynamo.reset()
    compiled = by_name(dynamic=False)
    for rows in (8, 12, 20):
        compiled(torch.randn(rows, 16)).backward()


@pytest.mark.parametrize("function", [tightfit.plan, tightfit.explain])
def test_what_has_no_memory_needs_a_machine(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.device("meta"):
        model, inputs = Net(), torch.empty(8, 16)
    with pytest.raises(tightfit.OptionError, match="machine="):
        function(model, inputs)
    assert function(model, inputs, machine="h100-80gb")


def test_a_plan_that_cannot_be_says_which_could():
    inputs = torch.randn(256, 16)
    with pytest.raises(tightfit.InfeasibleBudget, match=r"a batch of \[256, 16\].* or a smaller batch") as refused:
        tightfit.plan(Net(), inputs, "64KiB")
    advised = int(re.search(r"budget=(\d+)", str(refused.value))[1])
    assert refused.value.budget < refused.value.needed <= refused.value.smallest == advised
    assert tightfit.plan(Net(), inputs, advised).peak <= advised
