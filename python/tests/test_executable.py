"""What an executable step expresses in operators other than PyTorch's, because the engine has no kernel for those.

Invariant: the comparison goes through the written files only; graphs to plan with keep PyTorch's operators.

Tier: quick, since it takes 4 s.
"""

import interpreter
import pytest
import torch
from safetensors.torch import load_file
from test_reference import by_name, placeholders
from torch import nn
from torch.nn import functional

import tightfit

LACKING = {
    "aten.constant_pad_nd.default", "aten.copy.default", "aten.cumsum.default", "aten.index.Tensor",
}


class Mixed(nn.Module):
    """A layer, something awkward, and a head."""

    def __init__(self, awkward, features):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.head = nn.Linear(features, 3)
        self.awkward = awkward

    def forward(self, x):
        return self.head(self.awkward(self.first(x)))


def pads(x):
    """Pads and crops, one or both, in one dimension and in two, and not at all."""
    wide = functional.pad(x, (2, 1), value=0.5)
    both = functional.pad(wide, (-3, 2, 1, 0))[1:]
    narrow = functional.pad(x, (-1, -1))
    return torch.cat([wide, both, functional.pad(narrow, (0, 0))], 1)


def assigns(x):
    """Writes to parts of a tensor: values of the same type, of another, a number, and a broadcast tensor."""
    y = x.new_zeros(x.shape[0], 12)
    y[:, 2:10] = x
    y[:, 0] = x.new_ones(())
    y[:, 10:] = torch.arange(2)
    y[1::3] = 3
    return y


def broadcasts(x):
    """Writes one row to all rows, and reads them as one."""
    y = x.new_zeros(x.shape)
    y.copy_(x[0])
    return y.view(-1).sin().view(x.shape)


def grouped(is_causal):
    def attend(x):
        """Four heads of queries, two of keys and values."""
        query = torch.stack([x, -x, 2 * x, x + 1], 1).view(1, 4, x.shape[0], 8)
        key, value = x.sin().view(1, -1, 2, 4).transpose(1, 2), x.cos().view(1, -1, 2, 4).transpose(1, 2)
        key, value = torch.cat([key, key], -1), torch.cat([value, -value], -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)[0]

    return attend


def packed(x):
    """Position numbers that say which sequence an element belongs to, looked up as in masks."""
    rows = torch.arange(x.shape[0])
    sequence = (rows % 4 == 0).cumsum(0)
    mask = sequence[rows[:, None]] == sequence[rows[None, :]]
    return torch.where(mask, 0.5, 0.0) @ x


CASES = {
    "pads": (pads, 11 + 10 + 6), "assigns": (assigns, 12), "broadcasts": (broadcasts, 8),
    "grouped": (grouped(False), 32), "grouped_causal": (grouped(True), 32), "packed": (packed, 8),
}


def batch(rows=9):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(rows, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def export(folder, model, **options):
    (folder / "table.csv").write_text("a,b,label\n1,2,0\n")
    data = {
        "kind": "table", "file": "../table.csv", "features": 6, "scale": 1.0, "batch": 9,
        "sampling_seed": 1, "validation": {"every": 5, "remainder": 0},
    }
    data["evaluation_batch"] = len(options["evaluation_batch"][0]) if "evaluation_batch" in options else 9
    tightfit.export(model, functional.cross_entropy, options.pop("example_batch", batch()), out=folder / "step", name="test",
                    data=data, **options)


def operators(graph):
    return {node["op"] for node in graph["nodes"]}


def given(graph, model, folder, inputs, targets):
    """The values of the graph's placeholders, lifted constants among them."""
    stored = load_file(folder / "step" / "weights.safetensors")
    constants = {name: tensor for name, tensor in stored.items() if name.startswith("constant.")}
    for name, tensor in constants.items():
        model.register_buffer(name.replace(".", "_"), tensor)
    own = dict(model.named_parameters())
    values = {"input": inputs, "target": targets}
    for node in graph["nodes"]:
        if node["phase"] in ("parameter", "buffer"):
            values[node["name"]] = (own | constants)[node["parameter"]].detach().clone()
        elif node["phase"] == "state":
            values[node["name"]] = torch.zeros(node["outputs"][0]["shape"])
    return values


@pytest.mark.parametrize("name", CASES)
def test_other_operators_compute_the_same(tmp_path, name):
    awkward, features = CASES[name]
    model, (inputs, targets) = Mixed(awkward, features), batch()
    export(tmp_path, model)
    train = interpreter.read(tmp_path / "step" / "train.json.gz")
    evaluate = interpreter.read(tmp_path / "step" / "eval.json.gz")
    assert not LACKING & (operators(train) | operators(evaluate))
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    values = interpreter.run(train, given(train, model, tmp_path, inputs, targets), keep=True)
    torch.testing.assert_close(values[train["outputs"][0]], loss.detach(), rtol=1e-6, atol=1e-6)
    producer = {output["id"]: node for node in train["nodes"] for output in node["outputs"] if output}
    for node in train["nodes"]:
        if node["phase"] == "optimizer":
            parameter, gradient = node["inputs"][:2]
            expected = model.get_parameter(producer[parameter]["parameter"]).grad
            torch.testing.assert_close(values[gradient], expected, rtol=1e-5, atol=1e-6)
    values = interpreter.run(evaluate, given(evaluate, model, tmp_path, inputs, targets))
    torch.testing.assert_close(values[evaluate["outputs"][1]], model(inputs).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["grouped", "grouped_causal"])
def test_attention_has_as_many_heads_of_keys_as_of_queries(tmp_path, name):
    awkward, features = CASES[name]
    export(tmp_path, Mixed(awkward, features))
    graph = interpreter.read(tmp_path / "step" / "train.json.gz")
    heads = {output["id"]: output["shape"][1:2] for node in graph["nodes"] for output in node["outputs"] if output}
    calls = [node for node in graph["nodes"] if "flash_attention" in node["op"]]
    assert len(calls) == 2 and all(heads[value] == [4] for node in calls for value in node["inputs"])


@pytest.mark.parametrize(("name", "operator"), [
    ("pads", "aten.constant_pad_nd.default"), ("assigns", "aten.copy.default"), ("packed", "aten.cumsum.default"),
])
def test_a_graph_to_plan_with_keeps_pytorchs_operators(tmp_path, name, operator):
    awkward, features = CASES[name]
    target = tmp_path / "graph.json"
    tightfit.export(Mixed(awkward, features), functional.cross_entropy, batch(), out=target, name="plan", execute=False)
    assert operator in operators(interpreter.read(target))


def test_constants_of_batches_of_other_sizes_are_other_buffers(tmp_path):
    awkward, features = CASES["packed"]
    export(tmp_path, Mixed(awkward, features), evaluation_batch=batch(rows=5))
    sizes = {}
    for graph in ("train", "eval"):
        document = interpreter.read(tmp_path / "step" / f"{graph}.json.gz")
        for fqn, node in by_name(document, ("buffer",)).items():
            sizes.setdefault(node["outputs"][0]["shape"][-1], set()).add(fqn)
    assert set(sizes) >= {5, 9} and not sizes[5] & sizes[9]


def test_a_batch_of_views_is_taken_apart(tmp_path):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 7)

        def forward(self, tokens):
            return self.embed(tokens).flatten(0, 1)

    tokens = torch.randint(0, 11, (2, 6))
    model = Shifted()
    (tmp_path / "text").write_bytes(bytes(100))
    data = {"kind": "bytes", "file": "../text", "window": 5, "batch": 2, "sampling_seed": 1, "validation": {"last_fraction": 0.2}}
    for inputs, targets in ((tokens[:, :-1], tokens[:, 1:]), (tokens, tokens)):
        data["window"] = inputs.shape[1]
        tightfit.export(model, lambda logits, targets: functional.cross_entropy(logits, targets.flatten()), (inputs, targets),
                        out=tmp_path / "step", name="shifted", data=data)
        graph = interpreter.read(tmp_path / "step" / "train.json.gz")
        first, second = (node["outputs"][0] for node in graph["nodes"] if node["phase"] == "input")
        assert first["storage"] != second["storage"] and "strides" not in first and "offset" not in second
    with pytest.raises(tightfit.ExportError, match="requires a gradient"):
        export(tmp_path, nn.Linear(6, 3), example_batch=(torch.randn(9, 6, requires_grad=True), batch()[1]))
