"""The export call itself: what it writes, what it refuses and what it leaves unchanged.

Invariant: a refused export names what was found and what to do, and leaves no file.

Tier: quick with a part of the cases, 14 s; full with all of them.
"""

import hashlib
import json
import os
import stat
import subprocess
import sys

import interpreter
import models
import pytest
import torch
from safetensors.torch import load_file
from tier import full
from torch import nn
from torch.nn import functional

import tightfit


def options(folder):
    (folder / "table.csv").write_text("a,b,label\n1,2,0\n")
    data = {
        "kind": "table", "file": "../table.csv", "features": 6, "scale": 1.0, "batch": 9, "evaluation_batch": 9,
        "sampling_seed": 1, "validation": {"every": 5, "remainder": 0},
    }
    return {"out": folder / "step", "name": "test", "data": data}


class Scaled(nn.Module):
    """A perceptron with normalisation, a non-persistent buffer and a frozen layer, all for the engine."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x):
        return self.last(self.frozen(functional.relu(self.norm(self.first(x))) * self.scale))


def export_scaled(folder, **changes):
    torch.manual_seed(7)
    model = Scaled()
    tightfit.export(model, functional.cross_entropy, models.rows(), **(options(folder) | changes))
    return model


def test_re_export_gives_the_same_bytes(tmp_path):
    export_scaled(tmp_path)
    first = {path.name: path.read_bytes() for path in (tmp_path / "step").iterdir()}
    export_scaled(tmp_path)
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "step").iterdir()}
    assert set(first) == {"train.json.gz", "eval.json.gz", "step.json", "weights.safetensors"}


@pytest.mark.skipif(not torch.__version__.startswith("2.15."), reason="the corpus was written with PyTorch 2.15, "
                    "and other releases trace other operators")
@pytest.mark.parametrize("step", ["mlp-digits", "gpt-nano", "gpt-nano-dropout"])
def test_the_corpus_is_what_the_exporter_writes_today(corpus, tmp_path, step):
    folder = tmp_path / "corpus" / "steps" / step
    folder.mkdir(parents=True)
    (tmp_path / "corpus" / "data").symlink_to(corpus / "data")
    source = (corpus / "steps" / step / "make.py").read_text()
    namespace = {"__file__": str(corpus / "steps" / step / "make.py"), "__name__": "make"}
    exec(compile(source, "make.py", "exec"), namespace)
    namespace["HERE"] = folder
    if "main" in namespace:
        namespace["main"]()
    else:
        rate = json.loads((corpus / "steps" / step / "step.json").read_text())["optimizer"]["learning_rate"]
        namespace["export_step"](folder, step, namespace["SHAPE"], rate)
    for name in ("train.json.gz", "eval.json.gz", "step.json"):
        assert (folder / name).read_bytes() == (corpus / "steps" / step / name).read_bytes(), name


def test_weights_without_a_recipe_are_stored(tmp_path):
    recipe = {"constant": 0.0}
    model = export_scaled(tmp_path, initialisation=lambda fqn, tensor: recipe if fqn.endswith("bias") else None)
    step = json.loads((tmp_path / "step" / "step.json").read_text())
    stored = load_file(tmp_path / "step" / "weights.safetensors")
    assert step["parameters"]["last.bias"] == recipe
    assert step["parameters"]["scale"] == {"file": "weights.safetensors"}
    assert set(stored) == {name for name, entry in step["parameters"].items() if "file" in entry}
    assert torch.equal(stored["scale"], torch.linspace(0.5, 1.5, 8))
    assert torch.equal(stored["last.weight"], model.last.weight)
    assert step["data"]["sha256"] == hashlib.sha256((tmp_path / "table.csv").read_bytes()).hexdigest()


def test_a_stale_weights_file_is_removed(tmp_path):
    export_scaled(tmp_path)
    export_scaled(tmp_path, initialisation=lambda fqn, tensor: {"uniform": {"low": -1.0, "high": 1.0}})
    assert not (tmp_path / "step" / "weights.safetensors").exists()


def test_a_tensor_made_in_forward_becomes_a_buffer(tmp_path):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x) * torch.tensor([1.0, 2.0, 3.0])

    tightfit.export(Constant(), functional.cross_entropy, models.rows(), **options(tmp_path))
    stored = load_file(tmp_path / "step" / "weights.safetensors")
    constants = [tensor for name, tensor in stored.items() if name.startswith("constant.")]
    assert constants and torch.equal(constants[0], torch.tensor([1.0, 2.0, 3.0]))


def test_class_weights_of_a_loss_module_become_a_buffer(tmp_path):
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    tightfit.export(nn.Linear(6, 3), loss, models.rows(), **options(tmp_path))
    stored = load_file(tmp_path / "step" / "weights.safetensors")
    assert torch.equal(stored["loss.weight"], torch.tensor([1.0, 2.0, 3.0]))


def test_the_batch_keeps_its_names_beside_parameters_called_alike(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.target = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x @ self.input + self.target

    tightfit.export(Named(), functional.cross_entropy, models.rows(), **options(tmp_path))
    graph = interpreter.read(tmp_path / "step" / "train.json.gz")
    assert [node["name"] for node in graph["nodes"] if node["phase"] == "input"] == ["input", "target"]
    assert [node["name"] for node in graph["nodes"] if node["phase"] == "parameter"] == ["input_tensor", "target_tensor"]


def test_the_model_is_left_as_it_was(tmp_path):
    model = Scaled()
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tightfit.export(model, functional.cross_entropy, models.rows(), **options(tmp_path))
    assert model.training and not model.norm.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.first._forward_hooks and not model.first._forward_pre_hooks
    assert model.first.weight.grad is None


class Untraceable(nn.Linear):
    """Branches on its data."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def vector_loss(prediction, targets):
    return functional.cross_entropy(prediction, targets, reduction="none")


BYTES = {"kind": "bytes", "file": "x", "window": 5, "batch": 2, "sampling_seed": 1, "validation": {"last_fraction": 0.2}}
REFUSED = {
    "the loss is": {"loss_fn": vector_loss},
    "could not trace": {"model": lambda: Untraceable(6, 3)},
    "no parameter receives a gradient": {"model": lambda: nn.Linear(6, 3).requires_grad_(False)},
    "optimizer 'lion' is not known": {"optimizer": "lion"},
    "has no option 'beta'": {"optimizer": {"kind": "adamw", "beta": 1}},
    "must be positive": {"learning_rate": 0.0},
    "needs an optimizer": {"optimizer": None},
    "needs data": {"data": None},
    "is not known": {"data": {"kind": "images"}},
    "lacks": {"data": {"kind": "bytes", "file": "x"}},
    "give a whole number above 0": {"data": {**BYTES, "batch": "16"}},
    "'sampling_seed' is -1": {"data": {**BYTES, "sampling_seed": -1}},
    "give .*last_fraction": {"data": {**BYTES, "validation": None}},
    "has no shuffle": {"data": {**BYTES, "shuffle": True}},
    "is the class CrossEntropyLoss": {"loss_fn": nn.CrossEntropyLoss},
    "must be a pair": {"example_batch": torch.zeros(9, 6)},
    "has dtype": {"model": lambda: nn.Linear(6, 3).double()},
    "returned": {"initialisation": lambda fqn, tensor: {"gaussian": 1}},
    "needs exactly": {"initialisation": lambda fqn, tensor: {"normal": {"std": 1}}},
    "name one file": {"execute": False},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_say_what_to_do_and_write_nothing(tmp_path, message):
    call = {"model": lambda: nn.Linear(6, 3), "loss_fn": functional.cross_entropy, "example_batch": models.rows()}
    call |= options(tmp_path) | REFUSED[message]
    model = call.pop("model")()
    with pytest.raises(tightfit.ExportError, match=message):
        tightfit.export(model, **call)
    assert not (tmp_path / "step").exists()


def test_a_missing_data_file_is_refused(tmp_path, monkeypatch):
    call = options(tmp_path)
    call["data"] = call["data"] | {"file": "../absent.csv"}
    seen = f"is not there: seen from the step's folder it is {tmp_path}/absent.csv"
    with pytest.raises(tightfit.ExportError, match=seen):
        tightfit.export(nn.Linear(6, 3), functional.cross_entropy, models.rows(), **call)
    monkeypatch.chdir(tmp_path)
    call["data"] = call["data"] | {"file": "table.csv"}
    with pytest.raises(tightfit.ExportError, match=r"write '\.\./table\.csv' for the one that lies in this folder"):
        tightfit.export(nn.Linear(6, 3), functional.cross_entropy, models.rows(), **call)
    call["data"] = call["data"] | {"file": "../table.csv", "sha256": "0"}
    with pytest.raises(tightfit.ExportError, match="SHA-256"):
        tightfit.export(nn.Linear(6, 3), functional.cross_entropy, models.rows(), **call)


def test_files_keep_their_permissions_and_links(tmp_path):
    plan = {"optimizer": None, "name": "graph", "execute": False}
    before = os.umask(0o077)
    try:
        tightfit.export(Scaled(), functional.cross_entropy, models.rows(), out=tmp_path / "private.json", **plan)
        export_scaled(tmp_path)
    finally:
        os.umask(before)
    made = [tmp_path / "private.json", tmp_path / "step" / "step.json", tmp_path / "step" / "weights.safetensors"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o600] * 3
    (tmp_path / "private.json").chmod(0o640)
    (tmp_path / "link.json").symlink_to("private.json")
    tightfit.export(nn.Linear(6, 3), functional.cross_entropy, models.rows(), out=tmp_path / "link.json", **plan)
    assert (tmp_path / "link.json").is_symlink() and b"norm" not in (tmp_path / "private.json").read_bytes()
    assert stat.S_IMODE((tmp_path / "private.json").stat().st_mode) == 0o640
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


# Exports weights of 48 MB in a process that has already made one small export, and prints how much the peak grows.
PEAK = """
import resource, sys, torch, tightfit
from torch import nn
from torch.nn import functional

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def export(model):
    data = {"kind": "table", "file": "../table.csv", "features": 1024, "scale": 1.0, "batch": 2, "evaluation_batch": 2,
            "sampling_seed": 1, "validation": {"every": 5, "remainder": 0}}
    batch = torch.zeros(2, 1024), torch.zeros(2, dtype=torch.int64)
    tightfit.export(model, functional.cross_entropy, batch, out="step", name="large", data=data)

export(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))[:2])
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))
for parameter in model.parameters():
    parameter.data.fill_(1.0)
before = peak()
export(model)
print((peak() - before) / sum(parameter.nbytes for parameter in model.parameters()))
"""


@full
def test_weights_are_written_from_where_they_lie(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n")
    (tmp_path / "in").mkdir()
    ran = subprocess.run([sys.executable, "-c", PEAK.replace("../table.csv", str(tmp_path / "table.csv"))],
                         cwd=tmp_path / "in", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 0.5, f"{float(ran.stdout):.2f} times the weights as well"
    stored = load_file(tmp_path / "in" / "step" / "weights.safetensors")
    assert len(stored) == 24 and all(bool((tensor == 1.0).all()) for tensor in stored.values())


def shares(**parts):
    """A model with buffers of these parts of one tensor."""
    model, whole = nn.Linear(6, 3), torch.arange(12.0)
    for name, part in parts.items():
        model.register_buffer(name, whole[part])
    model.forward = lambda x: functional.linear(x + model.first, model.weight, model.bias)
    return model


@pytest.mark.parametrize(("parts", "message"), [
    ({"first": slice(6, 12)}, "'first' does not lie in memory as one piece"),
    ({"first": slice(0, 12, 2)}, r"'first' does not lie in memory as one piece .* \.clone\(\), .*execute=False"),
    ({"first": slice(0, 6), "again": slice(0, 6)}, "'first' and 'again' lie in the same memory; .*clone"),
], ids=["end", "every other", "twice"])
def test_buffers_that_are_parts_of_something_are_refused(tmp_path, parts, message):
    with pytest.raises(tightfit.ExportError, match=message):
        tightfit.export(shares(**parts), functional.cross_entropy, models.rows(), **options(tmp_path))
    assert not (tmp_path / "step").exists()


def test_the_beginning_of_a_tensor_is_stored_alone(tmp_path):
    tightfit.export(shares(first=slice(0, 6)), functional.cross_entropy, models.rows(), **options(tmp_path))
    assert torch.equal(load_file(tmp_path / "step" / "weights.safetensors")["first"], torch.arange(6.0))


def test_a_batch_is_what_the_data_gives(tmp_path):
    def refused(example, evaluation=None):
        with pytest.raises(tightfit.ExportError) as found:
            tightfit.export(Scaled(), functional.cross_entropy, example, evaluation_batch=evaluation, **options(tmp_path))
        return str(found.value)

    rows, classes = torch.randn(9, 6), torch.zeros(9, dtype=torch.int64)
    assert "the inputs of example_batch are [9, 2, 3] of torch.float32" in refused((rows.view(9, 2, 3), classes))
    assert "the targets of example_batch are [9] of torch.int32" in refused((rows, classes.int()))
    assert "data of kind 'table' gives [9, 6] of torch.float32" in refused((rows[:8], classes[:8]))
    assert "the inputs of evaluation_batch are [8, 6]" in refused((rows, classes), (rows[:8], classes[:8]))
