"""Exported graphs compute what the model computes: run node by node, compared with autograd on the plain model.

Invariant: the comparison goes through the written files only.

Tier: quick, since it takes less than a second.
"""

import gpt
import interpreter
import models
import pytest
import torch
from torch.nn import functional

import tightfit

NANO = gpt.Shape(layers=2, width=64, heads=2, window=64, batch=4)


def placeholders(graph, model, inputs, targets):
    """Copies of the model's tensors and fresh optimizer state, by node name."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    given = {"input": inputs, "target": targets}
    for node in graph["nodes"]:
        if node["phase"] in ("parameter", "buffer"):
            given[node["name"]] = tensors[node["parameter"]].detach().clone()
        elif node["phase"] == "state":
            given[node["name"]] = torch.zeros(node["outputs"][0]["shape"])
    return given


def by_name(graph, phases):
    return {node["parameter"]: node for node in graph["nodes"] if node["phase"] in phases and "parameter" in node}


def nano():
    model = gpt.Gpt(NANO)
    with torch.no_grad():
        for fqn, parameter in model.named_parameters():
            recipe = gpt.recipe(NANO.layers, fqn)
            parameter.fill_(recipe["constant"]) if "constant" in recipe else parameter.normal_(0.0, recipe["normal"]["std"])
    tokens = torch.randint(0, 256, (NANO.batch, NANO.window + 1))
    return model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def test_gpt_nano_gradients_equal_autograds(corpus):
    graph = interpreter.read(corpus / "steps/gpt-nano/train.json.gz")
    model, inputs, targets = nano()
    values = interpreter.run(graph, placeholders(graph, model, inputs, targets), keep=True)
    loss = gpt.loss(model(inputs), targets)
    loss.backward()
    assert abs(values[graph["outputs"][0]].item() - loss.item()) <= 1e-5
    producer = {output["id"]: node for node in graph["nodes"] for output in node["outputs"] if output}
    updates = [node for node in graph["nodes"] if node["phase"] == "optimizer"]
    assert len(updates) == len(list(model.parameters()))
    for node in updates:
        parameter, gradient = node["inputs"][:2]
        expected = model.get_parameter(producer[parameter]["parameter"]).grad
        torch.testing.assert_close(values[gradient], expected, rtol=0, atol=1e-5)


def test_gpt_nano_three_steps_equal_adamws(corpus):
    graph = interpreter.read(corpus / "steps/gpt-nano/train.json.gz")
    model, inputs, targets = nano()
    given = placeholders(graph, model, inputs, targets)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in (1, 2, 3):
        values = interpreter.run(graph, given, step=step, learning_rate=1e-3, keep=True)
        loss = gpt.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(values[graph["outputs"][0]].item() - loss.item()) <= 1e-4
    for fqn, node in by_name(graph, ("parameter",)).items():
        torch.testing.assert_close(given[node["name"]], model.get_parameter(fqn).detach(), rtol=0, atol=3e-4)


def test_gpt_nano_evaluation_equals_the_model(corpus):
    graph = interpreter.read(corpus / "steps/gpt-nano-dropout/eval.json.gz")
    model, inputs, targets = nano()
    values = interpreter.run(graph, placeholders(graph, model, inputs, targets))
    loss, prediction = (values[value] for value in graph["outputs"])
    with torch.no_grad():
        expected = model(inputs)
    torch.testing.assert_close(prediction, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(loss, gpt.loss(expected, targets), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("build", "batch"), [(models.Normed, models.rows), (models.ConvNet, models.images)])
def test_batch_norm_gradients_and_buffers(tmp_path, build, batch):
    model, (inputs, targets) = build(), batch()
    target = tmp_path / "graph.json.gz"
    tightfit.export(model, functional.cross_entropy, (inputs, targets), optimizer=None, out=target, name="n", execute=False)
    graph = interpreter.read(target)
    given = placeholders(graph, model, inputs, targets)
    values = interpreter.run(graph, given, keep=True)
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    for value, expected in zip(graph["outputs"], [loss.detach(), *gradients], strict=True):
        torch.testing.assert_close(values[value], expected, rtol=1e-5, atol=1e-5)
    for fqn, node in by_name(graph, ("buffer",)).items():
        torch.testing.assert_close(given[node["name"]], model.get_buffer(fqn))
