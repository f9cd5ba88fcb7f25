"""The export call itself: what it writes, what it refuses and what it leaves alone.

Invariant: a refused export names what was found and what to do, and leaves no file behind.
"""

import hashlib
import json

import interpreter
import models
import pytest
import torch
from safetensors.torch import load_file
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


def export_normed(folder, **changes):
    torch.manual_seed(7)
    model = models.Normed()
    tightfit.export(model, functional.cross_entropy, models.rows(), **(options(folder) | changes))
    return model


def test_re_export_gives_the_same_bytes(tmp_path):
    export_normed(tmp_path)
    first = {path.name: path.read_bytes() for path in (tmp_path / "step").iterdir()}
    export_normed(tmp_path)
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
    model = export_normed(tmp_path, initialisation=lambda fqn, tensor: recipe if fqn.endswith("bias") else None)
    step = json.loads((tmp_path / "step" / "step.json").read_text())
    stored = load_file(tmp_path / "step" / "weights.safetensors")
    assert step["parameters"]["last.bias"] == recipe
    assert step["parameters"]["scale"] == {"file": "weights.safetensors"}
    assert set(stored) == {name for name, entry in step["parameters"].items() if "file" in entry}
    assert torch.equal(stored["norm.running_var"], torch.ones(8)) and torch.equal(stored["last.weight"], model.last.weight)
    assert step["data"]["sha256"] == hashlib.sha256((tmp_path / "table.csv").read_bytes()).hexdigest()


def test_a_stale_weights_file_is_removed(tmp_path):
    export_normed(tmp_path)
    export_normed(tmp_path, initialisation=lambda fqn, tensor: {"uniform": {"low": -1.0, "high": 1.0}})
    assert not (tmp_path / "step" / "weights.safetensors").exists()


def test_a_tensor_made_in_forward_becomes_a_buffer(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x) * torch.tensor([1.0, 2.0, 3.0])

    tightfit.export(Scaled(), functional.cross_entropy, models.rows(), **options(tmp_path))
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
    model = models.Normed()
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
    "needs example_batch": {"example_batch": torch.zeros(9, 6)},
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


def test_a_missing_data_file_is_refused(tmp_path):
    call = options(tmp_path)
    call["data"] = call["data"] | {"file": "../absent.csv"}
    with pytest.raises(tightfit.ExportError, match="is not there"):
        tightfit.export(nn.Linear(6, 3), functional.cross_entropy, models.rows(), **call)
    call["data"] = call["data"] | {"file": "../table.csv", "sha256": "0"}
    with pytest.raises(tightfit.ExportError, match="SHA-256"):
        tightfit.export(nn.Linear(6, 3), functional.cross_entropy, models.rows(), **call)
