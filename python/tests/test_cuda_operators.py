"""Steps captured for a GPU that is not there: with the operators that PyTorch runs on CUDA.

Invariant: which kernel a call of attention takes is what PyTorch's documentation of its backends says, not what the
capture says of itself; the processor's graphs are what they were.
"""

import json

import models
import pytest
import torch
from torch import nn
from torch.nn import functional

import tightfit

FLASH = "aten._scaled_dot_product_flash_attention.default"
EFFICIENT = "aten._scaled_dot_product_efficient_attention.default"


class Attention(nn.Module):
    """Self-attention as a model asks for it, between two products."""

    def __init__(self, size=16, heads=(4, 4), mask=None, **options):
        super().__init__()
        self.size, self.heads, self.mask, self.options = size, heads, mask, options
        width = sum(heads) * size + heads[1] * size
        self.qkv, self.out = nn.Linear(24, width), nn.Linear(heads[0] * size, 3)

    def forward(self, x):
        parts = self.qkv(x).split([heads * self.size for heads in (*self.heads, self.heads[1])], dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        mask = None if self.mask is None else self.mask(x.shape[1], x.device, query.dtype)
        mixed = functional.scaled_dot_product_attention(query, key, value, mask, **self.options)
        return self.out(mixed.transpose(1, 2).flatten(2)).mean(1)


def graph_of(folder, model, batch, device="cuda", loss=functional.cross_entropy, **options):
    out = folder / "graph.json"
    tightfit.export(model, loss, batch, out=out, name="graph", execute=False, device=device, **options)
    return json.loads(out.read_text())


def operators(graph):
    return {node["op"] for node in graph["nodes"]}


def batch(dtype=torch.bfloat16, window=12):
    return torch.empty(2, window, 24, dtype=dtype, device="meta"), torch.empty(2, dtype=torch.int64, device="meta")


def boolean(window, device, _):
    return torch.ones(window, window, dtype=torch.bool, device=device).tril()


def added(window, device, dtype):
    return torch.zeros(1, 1, window, window, dtype=dtype, device=device)


@pytest.mark.parametrize(("options", "dtype", "expected"), [
    ({"is_causal": True}, torch.bfloat16, FLASH),
    ({"dropout_p": 0.1}, torch.float16, FLASH),
    ({"size": 20}, torch.bfloat16, FLASH),
    ({"heads": (4, 2), "enable_gqa": True}, torch.bfloat16, FLASH),
    ({"mask": boolean}, torch.bfloat16, EFFICIENT),
    ({"mask": added}, torch.bfloat16, EFFICIENT),
    ({"is_causal": True}, torch.float32, EFFICIENT),
    ({"size": 264}, torch.bfloat16, EFFICIENT),
    ({}, torch.float64, None),
    ({"heads": (4, 2), "enable_gqa": True}, torch.float32, None),
])
def test_attention_takes_the_first_kernel_that_takes_it(tmp_path, options, dtype, expected):
    with torch.device("meta"):
        model = Attention(**options).to(dtype)
    found = operators(graph_of(tmp_path, model, batch(dtype)))
    kernels = {name for name in found if "attention" in name and "backward" not in name}
    assert kernels == ({expected} if expected else set())
    assert sum("attention_backward" in name for name in found) == (expected is not None)
    processor = operators(graph_of(tmp_path, model, batch(dtype), device="cpu"))
    assert FLASH not in processor and EFFICIENT not in processor


def test_results_have_the_shapes_that_were_asked_for(tmp_path):
    """Heads whose size no kernel takes are longer inside the call, and as asked for outside."""
    with torch.device("meta"):
        model = Attention(size=20, is_causal=True).to(torch.bfloat16)
    graph = graph_of(tmp_path, model, batch())
    [call] = [node for node in graph["nodes"] if node["op"] == FLASH]
    assert call["outputs"][0]["shape"] == [2, 4, 12, 24]
    assert call["kwargs"]["scale"] == pytest.approx(20**-0.5)
    assert call["flops"] == 2 * 2 * 2 * 4 * 12 * 12 * 24
    seed = next(output for output in call["outputs"] if output and output["dtype"] == "u64")
    assert graph["storages"][seed["storage"]] == 16


def test_attention_inside_of_pytorch_is_found(tmp_path):
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.1, batch_first=True).to(torch.bfloat16)
    inputs = torch.empty(2, 12, 24, dtype=torch.bfloat16, device="meta")
    found = operators(graph_of(tmp_path, model, (inputs, inputs), loss=functional.mse_loss))
    assert FLASH in found and "aten.native_dropout.default" in found


def test_operators_are_whole_and_on_the_gpu(tmp_path):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(100, 16), nn.LayerNorm(16), nn.Linear(16, 100)

        def forward(self, tokens):
            x = self.embed(tokens) + torch.arange(16, device=tokens.device)
            return self.head(functional.silu(self.norm(x)))

    with torch.device("meta"):
        model = Gated()
    tokens = torch.empty(2, 8, dtype=torch.int64, device="meta")
    graph = graph_of(tmp_path, model, (tokens, tokens), loss=models.token_loss)
    found = operators(graph)
    assert {"aten.silu.default", "aten.silu_backward.default", "aten.native_layer_norm.default",
            "aten.embedding.default"} <= found
    assert graph["source"]["decompositions"] == "none"
    devices = {node["kwargs"]["device"] for node in graph["nodes"] if "device" in node.get("kwargs", {})}
    assert devices == {"cuda"}
    [rows] = [node for node in graph["nodes"] if node["op"] == "aten.embedding.default"]
    assert rows["bytes_read"] == 2 * 8 * 8 + 2 * 8 * 16 * 4, "indices, and the rows that they name"
    fitted = tightfit.fit(graph, "100%", machine="h100-80gb")
    assert fitted.peak <= fitted.budget


def test_pytorch_is_afterwards_what_it_was(tmp_path):
    before = functional.scaled_dot_product_attention
    with torch.device("meta"):
        model = Attention()
    first = graph_of(tmp_path, model, batch(torch.float32), device="cpu")
    graph_of(tmp_path, model, batch(torch.float32))
    assert functional.scaled_dot_product_attention is before
    assert graph_of(tmp_path, model, batch(torch.float32), device="cpu") == first


def test_a_model_with_memory_is_captured_alike(tmp_path):
    inputs, targets = torch.zeros(2, 12, 24, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64)
    real = graph_of(tmp_path, Attention(is_causal=True).to(torch.bfloat16), (inputs, targets))
    with torch.device("meta"):
        model = Attention(is_causal=True).to(torch.bfloat16)
    assert graph_of(tmp_path, model, batch()) == real


@pytest.mark.parametrize(("options", "expected"), [
    ({"device": "mauve"}, "is no device"),
    ({"device": "xpu"}, "captured and measured for cpu and cuda"),
    ({"device": "cuda:99", "measure": True}, "leave measure=True out"),
    ({"device": "cuda", "execute": True}, "the engine runs an executable step on processors"),
])
def test_other_devices_are_refused(tmp_path, options, expected):
    with torch.device("meta"):
        model = Attention().to(torch.bfloat16)
    call = {"out": tmp_path / "graph.json", "name": "graph", "execute": False} | options
    with pytest.raises(tightfit.ExportError, match=expected):
        tightfit.export(model, functional.cross_entropy, batch(), **call)
    assert not (tmp_path / "graph.json").exists()
