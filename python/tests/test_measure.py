"""`export(measure=True)`: every node that runs has the seconds that PyTorch took for its call, and nothing else
changes.

Invariant: which nodes run is determined here by the format's rule, not by the exporter's; no test asserts how long a
call takes.

Tier: quick, since it takes 7 s.
"""

import json
import os
import subprocess
import warnings

import interpreter
import models
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import tightfit
from tightfit import measure


class Indexed(nn.Module):
    """Looks up tokens, masks some of them out, drops some elements, normalises over the batch and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(23, 12)
        self.norm = nn.BatchNorm1d(12)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(6, 5)
        self.register_buffer("order", torch.tensor([3, 0, 2, 1, 4]))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        x = x.masked_fill((tokens < 5).unsqueeze(-1), 0.0)
        x = functional.max_pool1d(self.dropout(x), 2)
        return self.head(x[:, self.order].cumsum(1).mean(1))


def sentences() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 23, (4, 5)), torch.tensor([0, 1, 2, 3])


MODELS = {
    "conv": (models.ConvNet, functional.cross_entropy, models.images),
    "transformer": (models.Transformer, models.token_loss, models.tokens),
    "normed": (models.Normed, functional.cross_entropy, models.rows),
    "indexed": (Indexed, functional.cross_entropy, sentences),
}


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Few repetitions: the precision of measurements does not matter here."""
    monkeypatch.setattr(measure, "_SECONDS", 1e-4)


def export(target, kind="normed", **options):
    build, loss, batch = MODELS[kind]
    torch.manual_seed(3)
    model = options.pop("model", None) or build()
    options.setdefault("measure", True)
    tightfit.export(model, options.pop("loss", loss), options.pop("batch", batch()), out=target, name=kind, execute=False, **options)
    return interpreter.read(target)


def runs(node, graph):
    """Whether a node takes time: a view does not mutate, and its outputs lie in storages that it reads."""
    storage = {output["id"]: output["storage"] for each in graph["nodes"] for output in each["outputs"] if output}
    read = {storage[value] for value in node["inputs"]}
    made = {output["storage"] for output in node["outputs"] if output}
    return node["op"] != "placeholder" and ("mutates" in node or not made or bool(made - read))


OPTIMIZERS = ["adamw", "sgd", {"kind": "sgd", "momentum": 0.9}, None]


@pytest.mark.parametrize(("kind", "optimizer"), [*((kind, "adamw") for kind in MODELS), *(("normed", each) for each in OPTIMIZERS[1:])])
def test_what_runs_has_seconds_and_nothing_else_changes(tmp_path, kind, optimizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        graph = export(tmp_path / "measured.json.gz", kind, optimizer=optimizer)
    plain = export(tmp_path / "plain.json.gz", kind, optimizer=optimizer, measure=False)
    for node in graph["nodes"]:
        seconds = node.pop("seconds", None)
        assert (seconds is not None) == runs(node, graph), node
        assert seconds is None or 0.0 < seconds < 60.0
    assert graph == plain
    assert not any("seconds" in node for node in plain["nodes"])


def test_equal_calls_share_a_figure_and_others_do_not(tmp_path, monkeypatch):
    calls = []

    def count(call, device, storages):
        calls.append(call)
        return float(len(calls))

    monkeypatch.setattr(measure, "_measure", count)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 5))
    batch = (torch.randn(6, 8), torch.tensor([0, 1, 2, 3, 4, 0]))
    graph = export(tmp_path / "graph.json", model=model, batch=batch)
    by_name = {node["name"]: node.get("seconds") for node in graph["nodes"]}
    assert by_name["addmm"] == by_name["addmm_1"] == by_name["addmm_2"] != by_name["addmm_3"]
    assert by_name["adamw_0_weight"] == by_name["adamw_1_weight"] != by_name["adamw_3_weight"]
    assert by_name["adamw_0_bias"] != by_name["adamw_0_weight"]
    assert len(set(by_name.values()) - {None}) == len(calls)


def test_a_layout_or_a_constant_makes_another_call():
    def value(index, strides, offset=0, storage=0):
        return {"id": index, "shape": [4, 4], "dtype": "f32", "strides": strides, "offset": offset, "storage": storage}

    def graph(strides=(4, 1), offset=0, storage=1, alpha=1):
        first, second = value(0, [4, 1]), value(1, list(strides), offset, storage)
        node = {"name": "sum", "op": "aten.add.Tensor", "inputs": [0, 1], "args": [{"value": 0}, {"value": 1}],
                "kwargs": {"alpha": alpha}, "outputs": [value(2, [4, 1], 0, 2)]}
        return {"nodes": [{"name": "x", "op": "placeholder", "inputs": [], "outputs": [first]},
                          {"name": "y", "op": "placeholder", "inputs": [], "outputs": [second]}, node]}

    def key(**changes):
        document = graph(**changes)
        return measure.Call.of(document["nodes"][-1], measure.values_of(document)).key

    assert key() == key() == key(offset=16)
    assert len({key(), key(strides=(1, 4)), key(storage=0, offset=0), key(storage=0, offset=16), key(alpha=2)}) == 5


def test_a_model_of_fake_tensors_is_measured(tmp_path):
    with FakeTensorMode(allow_non_fake_inputs=True):
        half = {"dtype": torch.bfloat16}
        model = nn.Sequential(nn.Linear(16, 64, **half), nn.GELU(), nn.Linear(64, 4, **half))
        batch = (torch.randn(8, 16, dtype=torch.bfloat16), torch.zeros(8, 4, dtype=torch.bfloat16))
        graph = export(tmp_path / "graph.json", model=model, batch=batch, loss=functional.mse_loss)
    assert graph["nodes"][0]["outputs"][0]["dtype"] == "bf16"
    assert all(("seconds" in node) == runs(node, graph) for node in graph["nodes"])


def test_random_numbers_are_afterwards_where_they_were(tmp_path):
    model, batch = MODELS["transformer"][0](), MODELS["transformer"][2]()
    states = []
    for measuring in (False, True):
        export(tmp_path / "graph.json", "transformer", model=model, batch=batch, measure=measuring)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@torch.library.custom_op("measured::only_ones", mutates_args=())
def only_ones(x: torch.Tensor) -> torch.Tensor:
    """An operator that refuses made-up inputs."""
    if not bool((x == 1).all()):
        raise ValueError("it takes ones alone")
    return x.clone()


only_ones.register_fake(torch.empty_like)
only_ones.register_autograd(lambda _, gradient: gradient)


class Picky(nn.Module):
    """A layer before an operator that refuses its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return only_ones(self.layer(x))


def test_what_cannot_be_run_on_made_up_inputs_is_named_and_left_out(tmp_path):
    model, batch = Picky(), (torch.ones(4, 4), torch.ones(4, 4))
    with torch.no_grad():
        model.layer.weight.zero_()
        model.layer.bias.fill_(1.0)
    named = r"1 of the graph's nodes .* roofline: 'only_ones' \(measured.only_ones.default: ValueError: it takes ones alone\)"
    with pytest.warns(UserWarning, match=named):
        graph = export(tmp_path / "graph.json", model=model, batch=batch, loss=functional.mse_loss)
    left_out = [node["op"] for node in graph["nodes"] if runs(node, graph) and "seconds" not in node]
    assert left_out == ["measured.only_ones.default"]


def test_a_call_that_does_not_fit_is_an_error_that_names_it(tmp_path):
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Linear(1 << 21, 1 << 21, bias=False)
        batch = (torch.randn(1, 1 << 21), torch.randn(1, 1 << 21))
        with pytest.raises(tightfit.ExportError, match=r"node 'mm' \(aten.mm.default\) cannot be measured on cpu: .* are free"):
            export(tmp_path / "graph.json", model=model, batch=batch, loss=functional.mse_loss)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "message"), [
    ({"device": "nonsense"}, "is no device"),
    ({"device": "mps"}, "cpu and cuda, not for mps"),
    ({"device": "cuda:99"}, "there is no cuda:99 here"),
])
def test_refusals_say_what_to_do(tmp_path, options, message):
    with pytest.raises(tightfit.ExportError, match=message):
        export(tmp_path / "graph.json", **options)
    assert not list(tmp_path.iterdir())


def test_the_engine_measures_executable_steps_itself(tmp_path):
    model, loss, batch = MODELS["normed"]
    with pytest.raises(tightfit.ExportError, match="execute=False"):
        tightfit.export(model(), loss, batch(), out=tmp_path / "step", name="step", measure=True)


@pytest.mark.skipif("TIGHTFIT_BIN" not in os.environ, reason="TIGHTFIT_BIN does not name the program; `cargo xtask ci python` does")
def test_the_program_plans_with_the_measured_seconds(tmp_path):
    def tightfit_json(*arguments):
        command = [os.environ["TIGHTFIT_BIN"], *map(str, arguments), "--json"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    path = tmp_path / "graph.json.gz"
    graph = export(path, "transformer")
    total = sum(node.get("seconds", 0.0) for node in graph["nodes"])
    analyzed = tightfit_json("analyze", path)
    assert analyzed["step_seconds"] == pytest.approx(total, rel=1e-9)
    listed = {node["name"]: node["seconds"] for node in analyzed["nodes"]}
    assert all(listed[node["name"]] == node["seconds"] for node in graph["nodes"] if "seconds" in node)
    planned = tightfit_json("plan", path, "--budget", "90%", "--iterations", "10000")
    assert planned["step_seconds"] >= analyzed["step_seconds"] * (1 - 1e-9)
