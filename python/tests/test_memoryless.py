"""Models without memory: on the meta device, or in a FakeTensorMode.

Invariant: nothing is allocated for them, and their graphs are those of the same model with memory, byte for byte.

Tier: quick with a part of the cases, 10 s; full with all of them.
"""

import gzip

import models
import pytest
import torch
from test_export import options
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional

import tightfit
from tier import full


class Tied(nn.Module):
    """An embedding that is the head as well, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(17, 8), nn.LayerNorm(8), nn.Linear(8, 17, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(8))

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)) * self.scale)


def graph_of(folder, model, batch, **changes):
    out = folder / "graph.json.gz"
    tightfit.export(model, models.token_loss, batch, **({"out": out, "name": "graph", "execute": False} | changes))
    return gzip.decompress(out.read_bytes())


def meta(build):
    with torch.device("meta"):
        return build()


def fake(build):
    with FakeTensorMode():
        return build()


def tokens_on(device):
    return tuple(part.to(device) for part in models.tokens())


@pytest.mark.parametrize("batch", [
    pytest.param(tokens_on("cpu"), id="batch on cpu", marks=full), pytest.param(tokens_on("meta"), id="batch on meta"),
])
@pytest.mark.parametrize(("place", "dtype"), [
    (meta, torch.float32), (meta, torch.bfloat16), (fake, torch.float32), (lambda build: build(), torch.float32),
], ids=["meta", "meta in 16 bits", "fake", "cpu"])
def test_the_graph_is_that_of_the_same_model_with_memory(tmp_path, place, dtype, batch):
    expected = graph_of(tmp_path, models.Transformer().to(dtype), models.tokens())
    model = place(models.Transformer)
    model = model if dtype == torch.float32 else model.to(dtype)
    before = {name: (id(tensor), tensor.device) for name, tensor in model.state_dict(keep_vars=True).items()}
    assert graph_of(tmp_path, model, batch) == expected
    assert before == {name: (id(tensor), tensor.device) for name, tensor in model.state_dict(keep_vars=True).items()}


def test_tied_weights_stay_tied(tmp_path):
    found = graph_of(tmp_path, meta(Tied), tokens_on("meta"))
    assert found.count(b'"phase": "parameter"') == 3 and b'"shape": [17, 8]' in found
    assert b"head.weight" not in found


def test_a_model_larger_than_any_memory_is_planned(tmp_path):
    """Half a trillion parameters in two layers."""
    model = meta(lambda: nn.Sequential(nn.Linear(1 << 19, 1 << 19), nn.ReLU(), nn.Linear(1 << 19, 1 << 19)))
    batch = meta(lambda: (torch.empty(4, 1 << 19), torch.empty(4, 1 << 19)))
    tightfit.export(model, functional.mse_loss, batch, optimizer="sgd", out=tmp_path / "graph.json", name="large",
                    execute=False)
    read = tightfit.read_graph(tmp_path / "graph.json")
    assert read.static_bytes > 4 * 2 * (1 << 38)
    assert tightfit.fit(tmp_path / "graph.json", "min", machine="h100-80gb").peak >= read.static_bytes


class Attribute(nn.Module):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.embed, self.shift = nn.Embedding(17, 17), torch.ones(17)

    def forward(self, tokens):
        return self.embed(tokens) + self.shift


def test_a_tensor_of_nobody_is_explained(tmp_path):
    with pytest.raises(tightfit.ExportError, match="register_buffer"):
        graph_of(tmp_path, meta(Attribute), tokens_on("meta"))


@pytest.mark.parametrize("place", [meta, fake], ids=["meta", "fake"])
def test_a_step_to_execute_needs_values(tmp_path, place):
    batch = torch.zeros(9, 6), torch.zeros(9, dtype=torch.int64)
    with pytest.raises(tightfit.ExportError, match=r"'0.weight' has no memory of its own.*to_empty.*execute=False"):
        tightfit.export(place(lambda: nn.Sequential(nn.Linear(6, 3))), functional.cross_entropy, batch, **options(tmp_path))
    assert not (tmp_path / "step").exists()


@pytest.mark.parametrize("place", [meta, fake], ids=["meta", "fake"])
def test_recipes_are_values(tmp_path, place):
    """A model whose parameters all have recipes can be exported for the engine without memory."""
    batch = torch.zeros(9, 6), torch.zeros(9, dtype=torch.int64)
    call = options(tmp_path) | {"initialisation": lambda name, tensor: {"uniform": {"low": -0.1, "high": 0.1}}}
    call["evaluation_batch"] = meta(lambda: (torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64)))
    call["data"] = call["data"] | {"evaluation_batch": 5}
    built = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    tightfit.export(built, functional.cross_entropy, batch, **call)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "step").iterdir()}
    model = place(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert all(parameter.is_meta or isinstance(parameter, FakeTensor) for parameter in model.parameters())
    tightfit.export(model, functional.cross_entropy, batch, **call)
    assert {path.name: path.read_bytes() for path in (tmp_path / "step").iterdir()} == expected
