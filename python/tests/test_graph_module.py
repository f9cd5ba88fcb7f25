"""Graph files as modules of torch.fx: optimizers, random numbers, unsuitable arguments, files that are not graphs.

Invariant: what a step computes is compared with the reference interpreter, which shares no code with the package.

Tier: quick, since it takes 2 s.
"""

import copy
import gzip
import json
import resource

import interpreter
import models
import pytest
import tightfit
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional


def small() -> dict:
    """One product, its loss and the gradient of its parameter."""
    def value(number, shape, storage=None):
        return {"id": number, "shape": shape, "dtype": "f32", "storage": number if storage is None else storage}

    def read(number):
        return {"value": number}

    return {
        "format": "tightfit-graph/1", "name": "small", "modules": [""], "storages": [8, 8, 8, 4, 8],
        "nodes": [
            {"name": "x", "op": "placeholder", "phase": "input", "outputs": [value(0, [2])]},
            {"name": "w", "op": "placeholder", "phase": "parameter", "parameter": "w", "outputs": [value(1, [2])]},
            {"name": "mul", "op": "aten.mul.Tensor", "phase": "forward", "inputs": [0, 1], "args": [read(0), read(1)],
             "outputs": [value(2, [2])]},
            {"name": "sum", "op": "aten.sum.default", "phase": "loss", "inputs": [2], "args": [read(2)],
             "outputs": [value(3, [])]},
            {"name": "grad", "op": "aten.clone.default", "phase": "backward", "inputs": [0], "args": [read(0)],
             "kwargs": {"memory_format": "torch.contiguous_format"}, "outputs": [value(4, [2])], "differentiates": "mul"},
        ],
        "outputs": [3, 4], "output_names": ["loss", "w"],
    }


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_file_and_a_document_are_the_same_module(suffix, tmp_path):
    path, text = tmp_path / f"small{suffix}", json.dumps(small()).encode()
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    model, x = Scale(), torch.tensor([1.0, 5.0])
    for graph in (path, str(path), small()):
        module = tightfit.to_fx(graph)
        loss, gradient = module(*tightfit.arguments(module, model, x))
        assert loss.item() == 17.0 and torch.equal(gradient, x) and not loss.requires_grad
        assert module.meta["output_names"] == ["loss", "w"]
        [node] = [node for node in module.graph.nodes if node.name == "grad"]
        assert node.meta["tightfit"] == {"name": "grad", "phase": "backward", "module": "", "differentiates": "mul"}


def test_a_boxed_module_empties_its_list():
    module = tightfit.to_fx(small(), boxed=True)
    given = tightfit.arguments(module, Scale(), torch.tensor([1.0, 5.0]))
    assert module(given)[0].item() == 17.0 and given == []


@pytest.mark.parametrize("step", ["gpt-nano", "mlp-digits"])
def test_a_training_step_is_the_interpreters(step, corpus):
    """Three steps with an optimizer, from the same weights; parameters and state are written in place."""
    document = interpreter.read(corpus / "steps" / step / "train.json.gz")
    module = tightfit.to_fx(document)
    shapes = {node["name"]: node["outputs"][0] for node in document["nodes"] if node["op"] == "placeholder"}
    generator = torch.Generator().manual_seed(3)

    def tensor(described):
        if described["dtype"] == "i64":
            return torch.randint(0, 10, described["shape"], generator=generator)
        return torch.randn(described["shape"], generator=generator) * 0.05

    given = {name: tensor(described) for name, described in shapes.items()}
    for node in document["nodes"]:
        if node["phase"] == "state":
            given[node["name"]].zero_()
    ours = copy.deepcopy(given)
    for number in (1, 2, 3):
        values = interpreter.run(document, given, step=number, learning_rate=1e-3)
        [loss] = [values[value] for value in document["outputs"]]
        arguments = [{"learning_rate": 1e-3, "step": number}.get(node.meta["tightfit"]["name"], ours.get(node.meta["tightfit"]["name"]))
                     for node in module.graph.find_nodes(op="placeholder")]
        [found] = module(*arguments)
        torch.testing.assert_close(found, loss)
    for name in given:
        torch.testing.assert_close(ours[name], given[name], rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_state_starts_at_zero_and_stays_in_the_callers_dict(tmp_path):
    model, batch = models.Normed(), models.rows()
    tightfit.export(model, functional.cross_entropy, batch, optimizer={"kind": "sgd", "momentum": 0.9}, name="normed",
                    out=tmp_path / "normed.json.gz", execute=False)
    module, state = tightfit.to_fx(tmp_path / "normed.json.gz"), {}
    for missing, given in (("learning_rate", {"step": 1}), ("step", {"learning_rate": 0.1})):
        with pytest.raises(tightfit.GraphFileError, match=f"give {missing}="):
            tightfit.arguments(module, model, batch, **given)
    reference = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for number in (1, 2, 3):
        [loss] = module(*tightfit.arguments(module, model, batch, state=state, learning_rate=0.1, step=number))
        optimizer.zero_grad()
        expected = functional.cross_entropy(reference(batch[0]), batch[1])
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach())
    assert set(state) == {f"{name}.momentum" for name, p in model.named_parameters() if p.requires_grad}
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")
    torch.testing.assert_close(model.norm.running_mean, reference.norm.running_mean)


def test_random_numbers_follow_the_seed_and_the_slot(tmp_path):
    torch.manual_seed(0)
    model, batch = models.Transformer(), models.tokens()
    path = tmp_path / "step.json"
    tightfit.export(model, models.token_loss, batch, optimizer=None, execute=False, out=path, name="dropout")
    module = tightfit.to_fx(path)
    given = tightfit.arguments(module, model, batch)
    torch.manual_seed(5)
    first, second = module(*given)[0], module(*given)[0]
    torch.manual_seed(5)
    again = module(*given)[0]
    assert torch.equal(first, again) and not torch.equal(first, second)
    # Every call draws numbers of its own.
    masks = []
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target.__name__ == "draw":
            masks.append(node.args[1])
    assert len(set(masks)) == len(masks) == 8


def test_names_that_are_none_in_python_and_names_that_the_run_gives():
    graph = small()
    for node, name in zip(graph["nodes"], ["learning_rate", "a b.c", "lambda", "x-1", "import"], strict=True):
        node["name"] = name
    graph["nodes"][4]["differentiates"] = "lambda"
    module = tightfit.to_fx(graph)
    assert module(torch.ones(2), torch.ones(2))[0].item() == 2.0


class Constant(nn.Module):
    """Multiplies by a tensor that is made in the forward pass."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x):
        return x * self.w * torch.tensor([1.0, -1.0])


def test_what_the_model_does_not_have_comes_from_the_export(tmp_path):
    model, loss = Constant(), nn.CrossEntropyLoss(weight=torch.tensor([0.25, 0.75]))
    batch = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    constants = tightfit.export(model, loss, batch, optimizer=None, execute=False, out=tmp_path / "step.json", name="constant")
    assert sorted(constants) == ["constant._tensor_constant0", "loss.weight"]
    module = tightfit.to_fx(tmp_path / "step.json")
    found, gradient = module(*tightfit.arguments(module, model, batch, constants=constants))
    expected = loss(model(batch[0]), batch[1])
    expected.backward()
    torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(gradient, model.w.grad)
    with pytest.raises(tightfit.GraphFileError, match="is missing"):
        tightfit.arguments(module, model, batch)


def refused(graph, message):
    with pytest.raises(tightfit.GraphFileError, match=message):
        tightfit.to_fx(graph)


def test_what_is_no_graph_is_refused(tmp_path):
    refused(tmp_path / "missing.json", "No such file")
    packed = bytearray(gzip.compress(json.dumps(small()).encode()))
    packed[20] ^= 0xFF
    for graph in (None, 5, []):
        refused(graph, "is no graph")
    for content in (bytes(packed), b"", b"{", b"[1]", b"\x1f\x8b", gzip.compress(b"{}"), b"[" * 100_000):
        (tmp_path / "bad.json").write_bytes(content)
        refused(tmp_path / "bad.json", "tightfit-graph/1|the gzip data is damaged")

    # Small files that unpack to millions of lists, in a field that is read and in one that is not.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bomb = tmp_path / "bomb.json.gz"
    lists = b"[" + b"[]," * (5 << 20) + b"[]]"
    bomb.write_bytes(gzip.compress(b'{"format":"tightfit-graph/1","source":' + lists + b"}", 1))
    refused(bomb, "more parts than are read")
    bomb.write_bytes(gzip.compress(b'{"unknown":' + lists + b"," + json.dumps(small()).encode()[1:], 1))
    refused(bomb, "the most that are read")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10

    def damaged(change, message):
        graph = small()
        change(graph)
        refused(graph, message)

    damaged(lambda graph: graph["nodes"][2].update(op="aten.nothing.default"), "'mul' calls 'aten.nothing.default'")
    damaged(lambda graph: graph["nodes"][2].update(op="os.system"), "'mul' calls 'os.system'")
    damaged(lambda graph: graph["nodes"][2].update(args=[{"value": 7}]), "value 7 is read before it is produced")
    damaged(lambda graph: graph["nodes"][2].update(op="aten.from_file.default", args=["here", True, 1]), "from_file")
    damaged(lambda graph: graph["nodes"][2].update(random=True, seed_slot=[]), r"seed slot \[\]")
    damaged(lambda graph: graph["nodes"][2].update(random=True, seed_slot=-1), "seed slot -1")
    damaged(lambda graph: graph.pop("nodes"), "damaged: KeyError: 'nodes'")
    damaged(lambda graph: graph["nodes"][2].update(module=3), "damaged")
    damaged(lambda graph: graph["nodes"][4].update(kwargs={"memory_format": "torch.no_format"}), "damaged")
    damaged(lambda graph: graph["nodes"][4].update(kwargs={"device": "nowhere"}), "damaged")
    damaged(lambda graph: graph["nodes"][0].update(outputs=[]), "damaged")


@pytest.mark.parametrize("field", ["name", "op", "key", "text", "constant"])
def test_a_file_is_not_code(field, tmp_path, monkeypatch):
    """Text in a file never becomes Python code, in whatever field."""
    monkeypatch.chdir(tmp_path)
    code = "a=__import__('os').mkdir('run'), b"
    graph = small()
    node = graph["nodes"][4]
    match field:
        case "name":
            for other in graph["nodes"][:4]:
                other["name"] += code + "\n" + code
            del node["differentiates"]
        case "op":
            node["op"] = f"aten.clone.{code}"
        case "key":
            node["kwargs"] = {code: None}
        case "text":
            node["kwargs"] = {"memory_format": code}
        case "constant":
            node["kwargs"] = {"memory_format": "torch.load"}
    try:
        module = tightfit.to_fx(graph)
        module(torch.ones(2), torch.ones(2))
    except (tightfit.GraphFileError, RuntimeError, TypeError):
        assert field != "name"
    assert not (tmp_path / "run").exists()


def test_arguments_that_do_not_suit_the_graph_are_refused():
    with pytest.raises(tightfit.GraphFileError, match="none that to_fx made"):
        tightfit.arguments(torch.fx.symbolic_trace(nn.Linear(2, 2)), Scale(), torch.ones(2))
    module = tightfit.to_fx(small())

    def refused(model, batch, message):
        with pytest.raises(tightfit.GraphFileError, match=message):
            tightfit.arguments(module, model, batch)

    refused(nn.Linear(2, 2), torch.ones(2), "parameter 'w' is missing")
    refused(Scale(), torch.ones(3), r"tensor 'x' of the batch is torch.float32 of shape \[3\], but the graph's is .*\[2\]")
    refused(Scale(), torch.ones(2, dtype=torch.float64), "float64")
    refused(Scale(), 5, "tensor 'x' of the batch is missing")
    refused(Scale(), [], "tensor 'x' of the batch is missing")
    refused(Scale(), [torch.ones(2), torch.ones(2)], "more tensors than the graph")
