"""Optimizers of `torch.optim` given to the exporter: which are accepted, how their options are translated, and what is
refused.

Invariant: the engine's updates are compared with those of the very optimizer that was exported; if it cannot make them,
the refusal says what to do.

Tier: quick, since it takes 6 s.
"""

import copy

import interpreter
import pytest
import torch
from safetensors.torch import load_file
from test_engine import BIN, UPDATE, compare, parts, run
from test_export import options
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, lr_scheduler

import tightfit


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def export(folder, model, optimizer, **changes):
    call = options(folder)
    lines = [f"{a},{b},{a - b},{int(a > b)}" for a in range(10) for b in range(10)]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    call["data"] |= {"features": 3, "scale": 5.0}
    batch = torch.zeros(9, 3), torch.zeros(9, dtype=torch.int64)
    tightfit.export(model, functional.cross_entropy, batch, optimizer=optimizer, **(call | changes))
    return folder / "step"


def updates(step):
    """The operator of the updates, the learning rate, and options by parameter."""
    graph = interpreter.read(step / "train.json.gz")
    named = {output["id"]: node.get("parameter") for node in graph["nodes"] for output in node["outputs"] if output}
    nodes = [node for node in graph["nodes"] if node["phase"] == "optimizer"]
    [operator] = {node["op"] for node in nodes}
    rate = interpreter.read(step / "step.json")["optimizer"]["learning_rate"]
    return operator, rate, {named[node["inputs"][0]]: node["kwargs"] for node in nodes}


NAMES = ["first.bias", "first.weight", "last.bias", "last.weight"]


@pytest.mark.parametrize(("build", "operator", "rate", "expected"), [
    (lambda model: AdamW(model.parameters()), "tightfit.adamw", 1e-3,
     {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}),
    (lambda model: AdamW(model.parameters(), lr=torch.tensor(0.5), betas=(0.5, 0.6), eps=1e-3, weight_decay=0.2,
                         fused=True), "tightfit.adamw", 0.5, {"betas": [0.5, 0.6], "eps": 1e-3, "weight_decay": 0.2}),
    (lambda model: Adam(model.parameters(), lr=0.25), "tightfit.adamw", 0.25,
     {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}),
    (lambda model: SGD(model.parameters(), lr=0.5, momentum=0.75, weight_decay=0.125), "tightfit.sgd", 0.5,
     {"momentum": 0.75, "weight_decay": 0.125}),
    (lambda model: SGD(model.parameters(), dampening=0.5), "tightfit.sgd", 1e-3,
     {"momentum": 0.0, "weight_decay": 0.0}),
    (lambda model: AdamW, "tightfit.adamw", 1e-3, {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}),
    (lambda model: SGD, "tightfit.sgd", 1e-3, {"momentum": 0.0, "weight_decay": 0.0}),
], ids=["adamw", "adamw options", "adam", "sgd", "idle dampening", "adamw class", "sgd class"])
def test_an_optimizer_of_pytorch_says_its_options(tmp_path, build, operator, rate, expected):
    model = Small()
    found = updates(export(tmp_path, model, build(model)))
    assert found == (operator, rate, dict.fromkeys(NAMES, expected))


def test_a_learning_rate_that_is_given_counts(tmp_path):
    model = Small()
    optimizer = AdamW(model.parameters(), lr=0.5)
    lr_scheduler.LinearLR(optimizer)
    with pytest.raises(tightfit.ExportError, match="a schedule changes the learning rate .* learning_rate="):
        export(tmp_path, model, optimizer)
    assert updates(export(tmp_path, model, optimizer, learning_rate=0.125))[1] == 0.125


def grouped(kind, model, **options):
    """No decay for biases, as language models are trained."""
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    weights = [parameter for name, parameter in model.named_parameters() if not name.endswith("bias")]
    return kind([{"params": weights}, {"params": biases, "weight_decay": 0.0, **options}], lr=0.05, weight_decay=0.3)


@pytest.mark.skipif(not BIN, reason="TIGHTFIT_BIN does not name the tightfit program")
@pytest.mark.parametrize("build", [
    lambda model: grouped(AdamW, model, betas=(0.5, 0.75), eps=1e-4), lambda model: grouped(SGD, model, momentum=0.5),
    lambda model: Adam(model.parameters(), lr=0.05),
], ids=["adamw", "sgd", "adam"])
def test_the_engine_updates_as_the_optimizer_does(tmp_path, build):
    model = Small()
    optimizer = build(model)
    step = export(tmp_path, model, optimizer)
    twin = copy.deepcopy(model)
    theirs = build(twin)
    for index in range(1, 4):
        run(step, "--budget", "min", "--steps", index, "--dump", tmp_path / "dump")
        dump = load_file(tmp_path / "dump")
        theirs.zero_grad()
        functional.cross_entropy(twin(dump["batch.input"]), dump["batch.target"]).backward()
        for name, parameter in twin.named_parameters():
            parameter.grad.copy_(dump[f"gradient.{name}"])
        theirs.step()
        found = {name: tensor for name, tensor in parts(dump, "updated.").items() if name in NAMES}
        compare(found, twin.state_dict(), UPDATE, f"step {index}")


def stepped(model):
    optimizer = AdamW(model.parameters())
    model(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


def scheduler(model):
    return lr_scheduler.CosineAnnealingLR(SGD(model.parameters(), lr=0.1), 10)


def rates(model):
    return AdamW([{"params": model.first.parameters(), "lr": 0.1}, {"params": model.last.parameters()}])


REFUSED = {
    "the engine has no RMSprop; .*AdamW or SGD.*optimizer=None": lambda model: torch.optim.RMSprop(model.parameters()),
    "Adam adds its weight decay to the gradient.*AdamW": lambda model: Adam(model.parameters(), weight_decay=0.1),
    "amsgrad=True.*amsgrad=False": lambda model: AdamW(model.parameters(), amsgrad=True),
    "maximize=True": lambda model: SGD(model.parameters(), maximize=True),
    "nesterov=True": lambda model: SGD(model.parameters(), momentum=0.9, nesterov=True),
    "dampening=0.5": lambda model: SGD(model.parameters(), momentum=0.9, dampening=0.5),
    "CosineAnnealingLR is a schedule.*learning_rate=.*--lr": scheduler,
    "has made updates already.*fresh": stepped,
    "2 learning rates.*the same": rates,
    "shape .8, 3. that is none of the model's": lambda model: AdamW(Small().parameters()),
    "'last.weight' requires a gradient, and the optimizer does": lambda model: AdamW(model.first.parameters()),
    "optimizer is Adagrad, with which": lambda model: torch.optim.Adagrad,
    "optimizer is int, with which": lambda model: 3,
    "optimizer is list": lambda model: ["adamw"],
    "optimizer .'adamw'. is not known": lambda model: {"kind": ["adamw"]},
    "betas are 3; give two numbers": lambda model: {"kind": "adamw", "betas": 3},
    "betas are .0.9, 1.0.; both": lambda model: {"kind": "adamw", "betas": [0.9, 1.0]},
    "weight_decay is -1": lambda model: {"kind": "sgd", "weight_decay": -1},
    "momentum is nan": lambda model: {"kind": "sgd", "momentum": float("nan")},
    "eps is 'small'; give a number": lambda model: {"kind": "adamw", "eps": "small"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_engine_would_do_otherwise_is_refused(tmp_path, message):
    model = Small()
    with pytest.raises(tightfit.ExportError, match=message):
        export(tmp_path, model, REFUSED[message](model))
    assert not (tmp_path / "step").exists()


@pytest.mark.parametrize("build", [stepped, rates], ids=["stepped", "rates"])
def test_a_step_to_plan_asks_neither_for_rates_nor_for_state(tmp_path, build):
    model = Small()
    batch = torch.zeros(9, 3), torch.zeros(9, dtype=torch.int64)
    tightfit.export(model, functional.cross_entropy, batch, optimizer=build(model), out=tmp_path / "graph.json",
                    name="graph", execute=False)
    nodes = interpreter.read(tmp_path / "graph.json")["nodes"]
    assert sum(node["phase"] == "state" for node in nodes) == 2 * len(NAMES)
