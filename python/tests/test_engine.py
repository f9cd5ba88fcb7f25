"""The engine against PyTorch: the same weights and the same batch give the same loss, gradients and updates.

Invariant: PyTorch never sees a number that the engine did not write to a file, and the engine none that PyTorch made,
except through `tightfit.export`. The program is named by the environment variable `TIGHTFIT_BIN`.

Tier: quick with a part of the cases, 46 s; full with all of them.
"""

import copy
import importlib.util
import json
import os
import subprocess

import gpt
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import tightfit
from tier import cases

BIN = os.environ.get("TIGHTFIT_BIN")
pytestmark = pytest.mark.skipif(not BIN, reason="TIGHTFIT_BIN does not name the tightfit program")

GRADIENT = 1e-4
UPDATE = 1e-6
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01


def run(step, *arguments):
    """Trains and returns the lines of JSON; dumps and weights are written where `arguments` say."""
    command = [BIN, "train", str(step), "--json", "--threads", "2", "--eval-batches", "1", "--allow-outside", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def losses(lines):
    return [line["loss"] for line in lines if "loss" in line]


def error(ours, theirs):
    """max|a − b| / max|b|"""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    scale = theirs.abs().max().item()
    return (ours - theirs).abs().max().item() / (scale if scale > 0.0 else 1.0)


def made_by(corpus, name):
    """The module `make.py` of a step."""
    spec = importlib.util.spec_from_file_location(f"make_{name}", corpus / "steps" / name / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_of(corpus, name):
    """The step's model and its loss."""
    make = made_by(corpus, name)
    if name == "mlp-digits":
        return make.Perceptron(), functional.cross_entropy
    return gpt.Gpt(make.SHAPE), gpt.loss


def parts(dump, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in dump.items() if name.startswith(prefix)}


def gradients_of(model, loss_fn, weights, dump):
    """PyTorch's loss and gradients for the weights and the batch that the engine had."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    model.zero_grad()
    loss = loss_fn(model(dump["batch.input"]), dump["batch.target"])
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in own.items()}


def stepped(optimizer_of, weights, gradients, states):
    """Weights and state after a step of PyTorch's optimizer, by the engine's names."""
    parameters = {name: nn.Parameter(weights[name].clone()) for name in gradients}
    optimizer = optimizer_of(list(parameters.values()))
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].clone()
        optimizer.state[parameter] = {key: tensor.clone() for key, tensor in states(name).items()}
    optimizer.step()
    after = {name: parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for key, tensor in optimizer.state[parameter].items():
            if key != "step":
                after[f"{name}.{key}"] = tensor
    return after


def adamw(rate):
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate, betas=BETAS, eps=EPS, weight_decay=DECAY)


def compare(ours, theirs, tolerance, what):
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    errors = {name: error(ours[name], theirs[name]) for name in theirs}
    worst = max(errors, key=errors.get)
    print(f"{what}: worst error {errors[worst]:.2e} at {worst}, {len(errors)} tensors")
    assert errors[worst] <= tolerance, {name: value for name, value in errors.items() if value > tolerance}


QUICK = [("gpt-nano", 3, 1, "100%"), ("gpt-nano", 3, 4, "min"), ("mlp-digits", 3, 1, "100%"), ("mlp-digits", 3, 1, "min")]
RUNS = [(name, *run, budget) for name in ("gpt-nano", "mlp-digits") for run in ((1, 1), (3, 1), (3, 4), (20, 1))
        for budget in ("100%", "min")]


@pytest.mark.parametrize(("name", "steps", "micro_batches", "budget"),
                         cases(*QUICK, full=[run for run in RUNS if run not in QUICK]))
def test_loss_gradients_and_updates_are_pytorchs(corpus, tmp_path, name, steps, micro_batches, budget):
    """For several micro-batches the dump holds all rows; their mean is PyTorch's over one batch of all of them."""
    folder = corpus / "steps" / name
    rate = json.loads((folder / "step.json").read_text())["optimizer"]["learning_rate"]
    common = (folder, "--budget", budget, "--microbatches", micro_batches)
    run(*common, "--steps", steps - 1, "--save", tmp_path / "before")
    lines = run(*common, "--steps", 1, "--resume", tmp_path / "before", "--dump", tmp_path / "dump")
    before, dump = load_file(tmp_path / "before"), load_file(tmp_path / "dump")
    ours, updated = parts(dump, "gradient."), parts(dump, "updated.")

    model, loss_fn = model_of(corpus, name)
    loss, theirs = gradients_of(model, loss_fn, before, dump)
    [engine_loss] = losses(lines)
    print(f"{name}, step {steps}: loss {engine_loss} and {loss}")
    # A loss near zero consists of the rounding errors of logits of magnitude ten.
    assert abs(engine_loss - loss) <= 1e-5 * max(1.0, abs(loss))
    compare(ours, theirs, GRADIENT, f"{name}, step {steps}, gradients")

    def states(parameter):
        return {
            "step": torch.tensor(float(steps - 1)),
            "exp_avg": before[f"{parameter}.exp_avg"],
            "exp_avg_sq": before[f"{parameter}.exp_avg_sq"],
        }

    compare(updated, stepped(adamw(rate), before, ours, states), UPDATE, f"{name}, step {steps}, updates")
    assert all(not torch.equal(updated[key], before[key]) for key in ours)


def test_state_begins_at_zero_and_weights_as_the_recipes_say(corpus, tmp_path):
    run(corpus / "steps" / "gpt-nano", "--budget", "100%", "--steps", 0, "--save", tmp_path / "weights")
    recipes = json.loads((corpus / "steps" / "gpt-nano" / "step.json").read_text())["parameters"]
    weights = load_file(tmp_path / "weights")
    assert set(weights) == {name + end for name in recipes for end in ("", ".exp_avg", ".exp_avg_sq")}
    for name, tensor in weights.items():
        recipe = recipes.get(name, {"constant": 0.0})
        if "constant" in recipe:
            assert torch.equal(tensor, torch.full_like(tensor, recipe["constant"])), name
            continue
        std, count = recipe["normal"]["std"], tensor.numel()
        assert abs(tensor.mean().item()) <= 4.0 * std / count**0.5, name
        assert abs(tensor.std().item() / std - 1.0) <= 4.0 / (2 * count) ** 0.5, name
        assert 3.0 * std < tensor.abs().max().item() < 6.0 * std, name
    drawn = [tensor.flatten()[:64] for name, tensor in weights.items() if "normal" in recipes.get(name, {})]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_a_text_batch_is_windows_of_the_training_part(corpus, tmp_path):
    folder = corpus / "steps" / "gpt-nano"
    text = (corpus / "data" / "kjv.txt").read_bytes()
    training = text[: len(text) - int(len(text) * 0.1)]
    run(folder, "--budget", "100%", "--steps", 4, "--dump", tmp_path / "dump")
    dump = load_file(tmp_path / "dump")
    for inputs, targets in zip(dump["batch.input"], dump["batch.target"], strict=True):
        assert torch.equal(inputs[1:], targets[:-1])
        assert bytes([*inputs.tolist(), targets[-1].item()]) in training


def test_a_table_batch_is_rows_of_the_training_part(corpus, tmp_path):
    rows = [line.split(",") for line in (corpus / "data" / "digits.csv").read_text().splitlines()[1:]]
    training = [tuple(map(int, row)) for index, row in enumerate(rows) if index % 5 != 0]
    drawn = []
    for steps in (1, 2):
        run(corpus / "steps" / "mlp-digits", "--budget", "100%", "--steps", steps, "--dump", tmp_path / "dump")
        dump = load_file(tmp_path / "dump")
        pixels = (dump["batch.input"] * 16).to(torch.int64)
        drawn += [(*row, label) for row, label in zip(pixels.tolist(), dump["batch.target"].tolist(), strict=True)]
    # Two batches of 720 are an epoch of 1437 and three more.
    assert set(drawn) == set(training) and len(drawn) == 1440


class Tiny(nn.Module):
    """A tanh layer and a norm, with a buffer that is used: nothing that the steps of the corpus have."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 24)
        self.norm = nn.LayerNorm(24)
        self.second = nn.Linear(24, 24)
        self.last = nn.Linear(24, 2)
        self.register_buffer("shift", torch.tensor([0.1, -0.2, 0.3]))

    def forward(self, x):
        x = torch.tanh(self.first(x + self.shift))
        return self.last(torch.tanh(self.second(self.norm(x))))


def write_table(path, rows):
    """Points in a cube; the class says on which side of a bent surface they lie."""
    points = torch.rand(rows, 3, generator=torch.Generator().manual_seed(3)) * 2 - 1
    classes = (points[:, 0] + points[:, 1] ** 2 > points[:, 2]).to(torch.int64)
    lines = [",".join(f"{x:.6f}" for x in point) + f",{label}" for point, label in zip(points.tolist(), classes.tolist())]
    path.write_text("\n".join(["x,y,z,side", *lines]) + "\n")


@pytest.mark.parametrize(("optimizer", "rate"), [
    ({"kind": "sgd", "momentum": 0.9, "weight_decay": 0.001}, 0.1),
    ({"kind": "sgd"}, 0.5),
    ({"kind": "adamw", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}, 0.01),
], ids=["momentum", "sgd", "adamw"])
def test_a_new_model_is_exported_and_trained(tmp_path, optimizer, rate):
    write_table(tmp_path / "points.csv", 500)
    model = Tiny()
    data = {
        "kind": "table", "file": "../points.csv", "features": 3, "scale": 1.0, "batch": 100, "evaluation_batch": 100,
        "sampling_seed": 4, "validation": {"every": 5, "remainder": 2},
    }
    batch = (torch.zeros(100, 3), torch.zeros(100, dtype=torch.int64))
    step = tmp_path / "step"
    tightfit.export(model, functional.cross_entropy, batch, optimizer=optimizer, learning_rate=rate, out=step, name="tiny", data=data)

    run(step, "--budget", "100%", "--steps", 0, "--save", tmp_path / "initial")
    initial = load_file(tmp_path / "initial")
    for name, tensor in model.state_dict().items():
        assert torch.equal(initial[name], tensor), name

    # PyTorch follows the engine for some steps, on the engine's batches, with gradients of its own.
    twin = copy.deepcopy(model)
    options = {key: value for key, value in optimizer.items() if key != "kind"}
    kind = torch.optim.AdamW if optimizer["kind"] == "adamw" else torch.optim.SGD
    torch_optimizer = kind(twin.parameters(), lr=rate, **options)
    for index in range(1, 6):
        lines = run(step, "--budget", "min", "--steps", index, "--dump", tmp_path / "dump")
        dump = load_file(tmp_path / "dump")
        torch_optimizer.zero_grad()
        loss = functional.cross_entropy(twin(dump["batch.input"]), dump["batch.target"])
        loss.backward()
        assert abs(losses(lines)[-1] - loss.item()) <= 1e-5
        compare(parts(dump, "gradient."), {name: p.grad for name, p in twin.named_parameters()}, GRADIENT, f"step {index}, gradients")
        torch_optimizer.step()
        theirs = twin.state_dict() | {
            f"{name}.{key.removesuffix('_buffer')}": tensor
            for name, parameter in twin.named_parameters()
            for key, tensor in torch_optimizer.state[parameter].items() if key != "step" and tensor is not None
        }
        compare(parts(dump, "updated."), theirs, GRADIENT, f"step {index}, weights and state")

    lines = run(step, "--budget", "min", "--steps", 150, "--save", tmp_path / "trained")
    assert lines[-1]["validation_accuracy"] >= 0.9
    assert losses(lines)[-1] < 0.5 * losses(lines)[0]
    # PyTorch can use the weights.
    trained = load_file(tmp_path / "trained")
    model.load_state_dict({name: trained[name] for name in model.state_dict()})
    rows = [list(map(float, line.split(","))) for line in (tmp_path / "points.csv").read_text().splitlines()[1:]]
    validation = torch.tensor([row for index, row in enumerate(rows) if index % 5 == 2])
    logits, classes = model(validation[:, :3]), validation[:, 3].to(torch.int64)
    assert (logits.argmax(1) == classes).float().mean().item() == pytest.approx(lines[-1]["validation_accuracy"], abs=1e-6)
    assert functional.cross_entropy(logits, classes).item() == pytest.approx(lines[-1]["validation_loss"], rel=1e-4)
