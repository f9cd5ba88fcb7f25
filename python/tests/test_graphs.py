"""Exported graphs keep the format's rules: those of the corpus, and freshly exported ones of other kinds of models.

Invariant: nothing here looks at how the exporter works.

Tier: quick, since it takes 3 s.
"""

import json

import interpreter
import models
import pytest
import rules
import torch
from torch.nn import functional

import tightfit

STEPS = ["mlp-digits", "gpt-nano", "gpt-nano-dropout", "gpt-small"]


@pytest.mark.parametrize("step", STEPS)
def test_corpus_graphs_keep_the_rules(corpus, step):
    folder = corpus / "steps" / step
    train, evaluate = interpreter.read(folder / "train.json.gz"), interpreter.read(folder / "eval.json.gz")
    rules.check(train)
    rules.check_training(train)
    rules.check(evaluate)
    assert len(evaluate["outputs"]) == 2
    assert {node["phase"] for node in evaluate["nodes"]} == {"parameter", "input", "forward", "loss"}


@pytest.mark.parametrize("step", STEPS)
def test_corpus_steps_initialise_every_parameter(corpus, step):
    folder = corpus / "steps" / step
    document = json.loads((folder / "step.json").read_text())
    names = {
        node["parameter"]
        for graph in ("train", "eval")
        for node in interpreter.read(folder / f"{graph}.json.gz")["nodes"]
        if node["phase"] in ("parameter", "buffer")
    }
    assert set(document["parameters"]) == names
    assert (folder / document["data"]["file"]).is_file()


def test_module_paths_are_the_models_own_in_forward_and_backward(corpus):
    graph = interpreter.read(corpus / "steps/gpt-nano-dropout/train.json.gz")
    for phase in ("forward", "backward"):
        paths = {graph["modules"][node.get("module", 0)] for node in graph["nodes"] if node["phase"] == phase}
        assert {"wte", "h.0.attn.qkv", "h.0.attn", "h.1.mlp.proj", "h.1.ln_2", "ln_f", "lm_head", "h.0.dropout"} <= paths


def test_backward_nodes_are_linked_to_the_operator_that_they_differentiate(corpus):
    graph = interpreter.read(corpus / "steps/gpt-nano-dropout/train.json.gz")
    nodes = {node["name"]: node for node in graph["nodes"]}
    backward = [node for node in graph["nodes"] if node["phase"] == "backward"]
    of = {
        "aten.embedding_dense_backward.default": {"aten.embedding.default"},
        "aten.gelu_backward.default": {"aten.gelu.default"},
        "aten.mm.default": {"aten.addmm.default", "aten.mm.default"},
        "aten.native_dropout_backward.default": {"aten.native_dropout.default"},
        "aten.native_layer_norm_backward.default": {"aten.native_layer_norm.default"},
        "aten.nll_loss_backward.default": {"aten.nll_loss_forward.default"},
    }
    for op, operators in of.items():
        linked = [nodes[node["differentiates"]]["op"] for node in backward if node["op"] == op]
        assert linked and set(linked) <= operators, op
    for node in backward:
        if "differentiates" in node:
            assert node.get("module", 0) == nodes[node["differentiates"]].get("module", 0), node["name"]
    # Only these differentiate nothing: the gradient that the backward pass starts from, sums of gradients, and the
    # inverse of a view that left its input as it was.
    unlinked = {node["op"] for node in backward if "differentiates" not in node}
    assert unlinked == {"aten.full.default", "aten.add.Tensor", "aten.view.default"}
    assert graph["uncalled"] == ["h"] and "h" not in graph["modules"] and "h.0.mlp" in graph["modules"]


def test_dropout_has_seed_slots_and_evaluation_draws_nothing(corpus):
    folder = corpus / "steps/gpt-nano-dropout"
    random = [node for node in interpreter.read(folder / "train.json.gz")["nodes"] if node.get("random")]
    assert len(random) == 5 and {node["op"] for node in random} == {"aten.native_dropout.default"}
    assert not any(node.get("random") for node in interpreter.read(folder / "eval.json.gz")["nodes"])


PLANNED = {
    "conv": (models.ConvNet, functional.cross_entropy, models.images),
    "transformer": (models.Transformer, models.token_loss, models.tokens),
    "normed": (models.Normed, functional.cross_entropy, models.rows),
}


@pytest.mark.parametrize("kind", PLANNED)
def test_planning_graphs_keep_the_rules(tmp_path, kind):
    build, loss, batch = PLANNED[kind]
    target = tmp_path / "graph.json.gz"
    tightfit.export(build(), loss, batch(), out=target, name=kind, execute=False)
    graph = interpreter.read(target)
    rules.check(graph)
    rules.check_training(graph)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json.gz"]


def test_planning_without_an_optimizer_outputs_gradients(tmp_path):
    model = models.ConvNet()
    target = tmp_path / "graph.json"
    tightfit.export(model, functional.cross_entropy, models.images(), optimizer=None, out=target, name="conv", execute=False)
    graph = interpreter.read(target)
    rules.check(graph)
    assert len(graph["outputs"]) == 1 + len(list(model.parameters()))
    copies = [node for node in graph["nodes"] if node["op"] == "aten.copy_.default"]
    assert len(copies) == 3 and all(node["mutates"] for node in copies)


def test_planning_works_on_fake_tensors_of_16_bits(tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 64))
    finally:
        torch.set_default_dtype(before)
    batch = (torch.zeros(8, 64, dtype=torch.bfloat16), torch.zeros(8, 64, dtype=torch.bfloat16))
    target = tmp_path / "graph.json.gz"
    tightfit.export(model, functional.mse_loss, batch, out=target, name="fake", execute=False)
    graph = interpreter.read(target)
    rules.check(graph)
    assert graph["nodes"][0]["outputs"][0]["dtype"] == "bf16"


def test_sgd_keeps_one_state_with_momentum_and_none_without(tmp_path):
    for momentum, states in ((0.9, 1), (0.0, 0)):
        target = tmp_path / "graph.json"
        tightfit.export(models.Normed(), functional.cross_entropy, models.rows(), out=target, name="sgd", execute=False,
                        optimizer={"kind": "sgd", "momentum": momentum})
        graph = interpreter.read(target)
        rules.check(graph)
        rules.check_training(graph, states=states)
        updated = {node["name"] for node in graph["nodes"] if node["phase"] == "optimizer"}
        assert updated == {f"sgd_{name}_{kind}" for name in ("first", "norm", "last") for kind in ("weight", "bias")}
