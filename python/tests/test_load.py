"""What the program trained, loaded into PyTorch: the model is the one that the engine had.

Invariant: steps are trained by the program inside the package; the engine's loss of the batch after the last step is
what PyTorch has to compute with the loaded weights.
"""

import json
import subprocess
import sys

import gpt
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import tightfit


class Tied(nn.Module):
    """A perceptron with a weight that is there twice, a frozen layer, buffers that are read and are not, that are in
    its state and are not, and a layer that is called like a loss."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.frozen = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8).requires_grad_(False)
        self.middle, self.again = nn.Linear(8, 8), nn.Linear(8, 8)
        self.last, self.loss = nn.Linear(8, 3), nn.Linear(3, 3)
        self.again.weight = self.middle.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, 8))
        self.register_buffer("unread", torch.arange(3))

    def forward(self, x):
        hidden = functional.relu(self.norm(self.first(x))) * self.scale + self.shift
        return self.loss(self.last(self.again(self.frozen(self.middle(hidden)))))


def train(step, *arguments):
    """The lines that the program prints."""
    command = [sys.executable, "-m", "tightfit", "train", str(step), "--json", "--threads", "1", "--eval-batches", "1",
               "--budget", "100%", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def exported(folder, model, **changes):
    """The folder of a step of `model` over 40 made-up rows."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.cat([torch.randn(40, 6, generator=generator), torch.randint(0, 3, (40, 1), generator=generator)], 1)
    lines = [",".join([f"{item:.3f}" for item in row[:6]] + [str(int(row[6]))]) for row in rows.tolist()]
    (folder / "table.csv").write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n")
    data = {"kind": "table", "file": "../table.csv", "features": 6, "scale": 1.0, "batch": 9, "evaluation_batch": 8,
            "sampling_seed": 1, "validation": {"every": 5, "remainder": 0}}
    batch = torch.randn(9, 6, generator=generator), torch.randint(0, 3, (9,), generator=generator)
    evaluation = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
    tightfit.export(model, functional.cross_entropy, batch, out=folder / "step", data=data, evaluation_batch=evaluation,
                    **({"name": "tied"} | changes))
    return folder / "step"


def next_loss(step, saved, dump):
    """The engine's loss of the batch that follows, and that batch."""
    [loss] = [line["loss"] for line in train(step, "--steps", 1, "--resume", saved, "--dump", dump) if "loss" in line]
    stored = load_file(dump)
    return loss, stored["batch.input"], stored["batch.target"]


def test_a_trained_model_goes_on_in_pytorch(tmp_path):
    torch.manual_seed(1)
    model = Tied()
    step = exported(tmp_path, model)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    train(step, "--steps", 5, "--save", step / "trained.safetensors")
    state = tightfit.load(step)
    assert set(state) == set(before)
    assert {key: (item.dtype, item.shape) for key, item in state.items()} == \
        {key: (item.dtype, item.shape) for key, item in before.items()}
    assert state["again.weight"] is state["middle.weight"]
    stayed = {key for key, item in state.items() if torch.equal(item, before[key])}
    assert stayed == {"frozen.weight", "frozen.bias", "shift", "unread"}

    other = Tied()
    other.load_state_dict(state)
    loss, inputs, targets = next_loss(step, step / "trained.safetensors", tmp_path / "dump")
    assert functional.cross_entropy(other(inputs), targets).item() == pytest.approx(loss, rel=1e-5)
    assert functional.cross_entropy(model(inputs), targets).item() != pytest.approx(loss, rel=1e-3)


def test_a_gpt_has_its_head_and_its_embedding_in_one(corpus, tmp_path):
    step, saved = corpus / "steps" / "gpt-nano", tmp_path / "weights"
    train(step, "--steps", 2, "--save", saved)
    model = gpt.Gpt(gpt.Shape(layers=2, width=64, heads=2, window=64, batch=8))
    model.load_state_dict(tightfit.load(step, saved))
    loss, inputs, targets = next_loss(step, saved, tmp_path / "dump")
    assert gpt.loss(model(inputs), targets).item() == pytest.approx(loss, rel=1e-5)


def refused(*arguments):
    with pytest.raises(tightfit.WeightsError) as found:
        tightfit.load(*arguments)
    return str(found.value)


def test_what_is_not_there_or_damaged_is_said(tmp_path):
    step = exported(tmp_path, Tied())
    assert "tightfit.export" in refused(tmp_path / "nowhere")
    assert "--save" in refused(step)
    assert "is not there" in refused(step, tmp_path / "gone")
    assert "was not saved by" in refused(step, step / "weights.safetensors")

    saved = step / "trained.safetensors"
    train(step, "--steps", 1, "--save", saved)
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-7])
    assert "damaged" in refused(step, saved)
    saved.write_bytes(whole)
    (step / "again.safetensors").write_bytes(whole)
    assert "again.safetensors, trained.safetensors" in refused(step)

    tensors = load_file(saved)
    metadata = {"format": "tightfit-weights/1", "step_name": "tied", "steps": "1", "seed": "1"}
    del tensors["last.bias"]
    save_file(tensors, saved, metadata)
    assert "'last.bias'" in refused(step, saved)
    save_file(tensors, saved, metadata | {"step_name": "another"})
    assert "'another'" in refused(step, saved)
    save_file(tensors | {"last.bias": torch.ones(4)}, saved, metadata)
    assert "as [4] and not as [3]" in refused(step, saved)
    (step / "train.json.gz").write_bytes((step / "train.json.gz").read_bytes()[:99])
    assert "train.json.gz is damaged" in refused(step, saved)
    (step / "step.json").write_text("{")
    assert "damaged" in refused(step, saved)
    (step / "step.json").write_text("[]")
    assert "describes no step" in refused(step, saved)
