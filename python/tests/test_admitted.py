"""Steps that the engine cannot execute are refused when they are exported, by name and place, and no others are.

Invariant: a refusal names the operator, the module that calls it and what to do, and leaves no file; the program trains
whatever was exported.

Tier: quick, since it takes 7 s.
"""

import interpreter
import models
import pytest
import torch
from test_engine import BIN, run
from test_export import options
from torch import nn
from torch.nn import functional

import tightfit


class Inner(nn.Module):
    def __init__(self, does):
        super().__init__()
        self.layer, self.does = nn.Linear(6, 6), does

    def forward(self, x):
        return self.does(self.layer(x))


class Outer(nn.Module):
    """Does something unusual in the module `blocks.1`."""

    def __init__(self, does):
        super().__init__()
        self.blocks = nn.ModuleList([Inner(torch.tanh), Inner(does)])
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def export(folder, model, loss_fn=functional.cross_entropy):
    tightfit.export(model, loss_fn, models.rows(), **options(folder))


def in_evaluation_alone(does):
    class Evaluated(Inner):
        def forward(self, x):
            return super().forward(x) if self.training else does(super().forward(x))

    model = Outer(torch.tanh)
    model.blocks[1] = Evaluated(torch.tanh)
    return model


REFUSED = {
    r"lacks aten\.cumsum\.default \(2 calls, first 'cumsum'; in module 'blocks\.1'\)": lambda: Outer(
        lambda x: x.cumsum(-1)),
    r"lacks aten\.cumsum\.default \(1 call, .* and aten\.flip\.default \(\d calls, .*'blocks\.1'": lambda: Outer(
        lambda x: x.detach().cumsum(-1) + x.flip(-1).flip(0)),
    r"cannot execute '_to_copy', a call of aten\._to_copy\.default in module 'blocks\.1': .*f64": lambda: Outer(
        lambda x: x.double().exp().float()),
    r"lacks aten\.flip\.default \(1 call, first 'flip'; in module 'blocks\.1'\)": lambda: in_evaluation_alone(
        lambda x: x.flip(0)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_engine_lacks_is_refused_where_it_is_called(tmp_path, message):
    with pytest.raises(tightfit.ExportError, match=message) as refused:
        export(tmp_path, REFUSED[message]())
    assert "execute=False, a graph to plan with" in str(refused.value)
    assert not (tmp_path / "step").exists()


def test_the_advice_of_a_refusal_works(tmp_path):
    tightfit.export(Outer(lambda x: x.cumsum(-1)), functional.cross_entropy, models.rows(), out=tmp_path / "graph.json",
                    name="graph", execute=False)
    assert tightfit.fit(tmp_path / "graph.json", "min").peak


def test_an_operator_of_the_loss_is_said_to_be_there(tmp_path):
    with pytest.raises(tightfit.ExportError, match=r"aten\.cumsum\.default .*in the loss"):
        export(tmp_path, Outer(torch.tanh), lambda output, target: functional.cross_entropy(output.cumsum(-1), target))


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer(6, 5, 2), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(x.view(3, 3, 6))[0].flatten(0, 1))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_executable_in_training_and_evaluation(tmp_path, layer):
    export(tmp_path, Recurrent(layer))
    for name in ("train", "eval"):
        graph = interpreter.read(tmp_path / "step" / f"{name}.json.gz")
        assert not [node["op"] for node in graph["nodes"] if "rnn" in node["op"]]


@pytest.mark.skipif(not BIN, reason="TIGHTFIT_BIN does not name the tightfit program")
@pytest.mark.parametrize("build", [
    lambda: Recurrent(nn.LSTM),
    lambda: Outer(lambda x: functional.pad(x, (1, -1)).unsqueeze(0).expand(2, 9, 6).mean(0)),
], ids=["lstm", "views"])
def test_what_is_exported_is_trained(tmp_path, build):
    rows = (f"{row},1,2,3,4,5,{row % 3}" for row in range(60))
    call = options(tmp_path)
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,d,e,f,label", *rows]) + "\n")
    tightfit.export(build(), functional.cross_entropy, models.rows(), **call)
    assert len(run(tmp_path / "step", "--budget", "min", "--steps", 2)) >= 2
