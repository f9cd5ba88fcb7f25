"""Batches of any form: several tensors, dicts, absent values, and models that compute their loss.

Invariant: a graph to plan with computes what eager PyTorch computes on the same batch; a step for the engine has one
tensor of inputs and one of targets, and batches with more are refused.

Tier: quick, since it takes 6 s.
"""

from collections import UserDict
from typing import NamedTuple

import interpreter
import models
import pytest
import torch
from test_export import options
from torch import nn
from torch.nn import functional

import tightfit


class Several(nn.Module):
    """Three inputs, one of which may be absent, and a switch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, scale, mask=None, doubled=False):
        hidden = self.layer(x) * scale
        hidden = hidden if mask is None else torch.where(mask, hidden, 0.0)
        return 2 * hidden if doubled else hidden


class OwnLoss(Several):
    """The same with labels; returns what `form` makes of loss and logits."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x, scale, labels=None):
        logits = super().forward(x, scale)
        return self.form(functional.cross_entropy(logits, labels), logits)


class Output(NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor


class Keyed(UserDict):
    """A mapping that is not a dict, like transformers' `BatchEncoding`."""


def tensors():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(9, 6, generator=generator), torch.rand(9, 1, generator=generator), torch.randn(9, 3).relu() > 0


def planned(folder, model, loss_fn, batch):
    tightfit.export(model, loss_fn, batch, optimizer=None, out=folder / "graph.json", name="graph", execute=False)
    return tightfit.to_fx(folder / "graph.json")


def computes(module, model, batch, loss):
    """Checks that the graph's loss and gradients are those of eager."""
    loss.backward()
    found = module(*tightfit.arguments(module, model, batch))
    torch.testing.assert_close(found[0], loss.detach())
    for name, gradient in zip(module.meta["output_names"][1:], found[1:], strict=True):
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)


X, SCALE, MASK = tensors()
CALLS = {
    "tuple": (X, SCALE, MASK), "list": [X, SCALE], "dict": {"x": X, "scale": SCALE, "mask": MASK},
    "nothing": {"x": X, "scale": SCALE, "mask": None}, "switch": {"scale": SCALE, "x": X, "doubled": True},
    "number": (X, 0.5), "mapping": Keyed(x=X, scale=SCALE),
}


@pytest.mark.parametrize("form", CALLS)
def test_inputs_are_what_the_model_is_called_with(tmp_path, form):
    model, inputs = Several(), CALLS[form]
    target = torch.randn(9, 3)
    module = planned(tmp_path, model, functional.mse_loss, (inputs, target))
    output = model(**inputs) if isinstance(inputs, (dict, Keyed)) else model(*inputs)
    computes(module, model, (inputs, target), functional.mse_loss(output, target))


@pytest.mark.parametrize("form", [
    lambda loss, logits: loss, lambda loss, logits: (loss, logits), lambda loss, logits: Output(logits, loss),
    lambda loss, logits: {"logits": logits, "loss": loss},
], ids=["alone", "first", "named", "dict"])
@pytest.mark.parametrize("alone", [True, False], ids=["dict", "pair"])
def test_a_model_may_compute_its_loss_itself(tmp_path, form, alone):
    model, inputs = OwnLoss(form), {"x": X, "scale": SCALE, "labels": torch.arange(9) % 3}
    batch = inputs if alone else (inputs, None)
    module = planned(tmp_path, model, None, batch)
    expected = functional.cross_entropy(model.layer(X) * SCALE, inputs["labels"])
    computes(module, model, batch, expected)


def test_targets_may_be_several(tmp_path):
    def loss(prediction, targets):
        return functional.mse_loss(prediction, targets["values"], reduction="none").mul(targets["weights"]).mean()

    model, targets = nn.Linear(6, 3), {"weights": torch.rand(9, 3), "values": torch.randn(9, 3)}
    computes(planned(tmp_path, model, loss, (X, targets)), model, (X, targets), loss(model(X), targets))


def test_an_output_of_transformers_has_the_loss(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                      num_attention_heads=2, num_key_value_heads=2, use_cache=False)
    model, tokens = transformers.LlamaForCausalLM(config), torch.randint(0, 64, (2, 8))
    mask = torch.ones_like(tokens)
    batch = transformers.BatchEncoding({"input_ids": tokens, "labels": tokens, "attention_mask": mask})
    for loss_fn, given in ((None, batch), (lambda output, targets: output.loss, (batch, None))):
        model.zero_grad()
        computes(planned(tmp_path, model, loss_fn, given), model, given, model(**batch).loss)


@pytest.mark.parametrize(("model", "loss_fn", "batch", "message"), [
    (Several(), functional.mse_loss, (CALLS["dict"], torch.randn(9, 3)), "3 tensors of inputs and 1 tensor of targets"),
    (Several(), functional.mse_loss, ((X, SCALE), torch.randn(9, 3)), "2 tensors of inputs.*wrap the model.*execute="),
    (OwnLoss(lambda loss, logits: loss), None, {"x": X, "scale": SCALE, "labels": torch.arange(9)},
     "3 tensors of inputs and 0 tensors"),
    (nn.Linear(6, 3), functional.cross_entropy, X, r"a pair \(inputs, targets\)"),
    (nn.Linear(6, 3), None, (X, None), "one tensor each"),
], ids=["dict", "tuple", "own", "one", "no target"])
def test_the_engines_steps_have_one_tensor_each(tmp_path, model, loss_fn, batch, message):
    with pytest.raises(tightfit.ExportError, match=message):
        tightfit.export(model, loss_fn, batch, **options(tmp_path))
    assert not (tmp_path / "step").exists()


def test_a_model_without_a_loss_is_told_what_to_give(tmp_path):
    for model, batch in ((OwnLoss(lambda loss, logits: {"logits": logits}), {"x": X, "scale": SCALE,
                                                                            "labels": torch.arange(9) % 3}),
                         (OwnLoss(lambda loss, logits: ()), {"x": X, "scale": SCALE, "labels": torch.arange(9) % 3})):
        with pytest.raises(tightfit.ExportError, match="without a loss; give loss_fn="):
            planned(tmp_path, model, None, batch)
    with pytest.raises(tightfit.ExportError, match="not a scalar"):
        planned(tmp_path, Several(), None, CALLS["dict"])
    with pytest.raises(tightfit.ExportError, match="loss_fn is str"):
        planned(tmp_path, Several(), "mse", CALLS["dict"])
    with pytest.raises(tightfit.ExportError, match="Several.* is no torch.nn.Module|type is no torch.nn.Module"):
        planned(tmp_path, Several, None, CALLS["dict"])


def test_halves_of_one_tensor_are_tensors_of_their_own(tmp_path):
    """Tokens and those that follow them, as language models are trained."""
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 7)

        def forward(self, tokens):
            return self.embed(tokens)

    ids = torch.randint(0, 11, (2, 6))
    (tmp_path / "text").write_bytes(bytes(100))
    data = {"kind": "bytes", "file": "../text", "window": 5, "batch": 2, "sampling_seed": 1,
            "validation": {"last_fraction": 0.2}}
    batch = ids[:, :-1], ids[:, 1:]
    tightfit.export(Shifted(), models.token_loss, batch, out=tmp_path / "step", name="shifted", data=data)
    for name in ("train", "eval"):
        graph = interpreter.read(tmp_path / "step" / f"{name}.json.gz")
        given = [node["outputs"][0] for node in graph["nodes"] if node["phase"] == "input"]
        assert len({output["storage"] for output in given}) == 2
        assert all("strides" not in output and not output.get("offset") for output in given)
