"""Steps captured for a GPU that is not there: with the operators that PyTorch runs on CUDA.

Invariant: the expected kernel of a call of attention is what PyTorch's documentation of its backends says, not what the
capture reports; the processor's graphs are unchanged.

Tier: quick, since it takes 7 s.
"""

import json
import threading

import models
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tightfit

FLASH = "aten._scaled_dot_product_flash_attention.default"
EFFICIENT = "aten._scaled_dot_product_efficient_attention.default"


class Attention(nn.Module):
    """Self-attention as models call it, between two products."""

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
    ({"size": 18}, torch.float32, None),
    ({"size": 20, "mask": boolean}, torch.bfloat16, None),
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


class Plain(nn.Module):
    """A call of attention on one tensor, after a trained product."""

    def __init__(self, call):
        super().__init__()
        self.call, self.weight = call, nn.Parameter(torch.ones(16, dtype=torch.bfloat16))

    def forward(self, x):
        return self.call(x * self.weight).float().mean()


def plain(folder, call, shape=(2, 4, 12, 16), device="cuda"):
    with torch.device("meta"):
        model = Plain(call)
    return operators(graph_of(folder, model, (torch.empty(shape, dtype=torch.bfloat16, device="meta"), None), device, None))


def attend(query, key=None, value=None, **options):
    key = query if key is None else key
    return functional.scaled_dot_product_attention(query, key, key if value is None else value, **options)


def chosen_by(backend):
    def call(x):
        with sdpa_kernel(backend):
            return attend(x)

    return call


@pytest.mark.parametrize(("call", "shape", "expected"), [
    (chosen_by(SDPBackend.EFFICIENT_ATTENTION), (2, 4, 12, 16), EFFICIENT),
    (chosen_by(SDPBackend.MATH), (2, 4, 12, 16), None),
    (lambda x: attend(x.transpose(2, 3).contiguous().transpose(2, 3)), (2, 4, 12, 16), None),
    (lambda x: attend(x, x[:1], x[:1]), (2, 4, 12, 16), None),
    (attend, (12, 16), None),
    (attend, (4, 12, 16), None),
    (lambda x: attend(x, attn_mask=x[:1, :1, :, :12]), (2, 4, 12, 16), EFFICIENT),
], ids=["efficient by choice", "math by choice", "columns", "broadcast", "2 dimensions", "3 dimensions", "mask that learns"])
def test_kernels_are_asked_whether_they_take_a_call(tmp_path, call, shape, expected):
    found = plain(tmp_path, call, shape)
    assert {name for name in found if "attention" in name and "backward" not in name} == ({expected} if expected else set())


def masked(shape, dtype, **options):
    return lambda x: attend(x, attn_mask=torch.zeros(shape, dtype=dtype, device=x.device), **options)


@pytest.mark.parametrize("call", [
    masked((12, 11), torch.bool), masked((12, 12), torch.int64), masked((12, 12), torch.bool, is_causal=True),
    lambda x: attend(x, dropout_p=1.5),
], ids=["shape", "type", "mask and causal", "dropout"])
def test_what_pytorch_refuses_is_refused(tmp_path, call):
    with pytest.raises(tightfit.ExportError, match="could not trace"):
        plain(tmp_path, call)


def test_autocast_on_cuda_is_refused(tmp_path):
    def call(x):
        with torch.autocast("cuda", torch.bfloat16):
            return attend(x)

    with pytest.raises(tightfit.ExportError, match=r"(?s)autocast on cuda.*model.to\(torch.bfloat16\)"):
        plain(tmp_path, call)


def test_what_a_user_put_in_its_place_counts(tmp_path, monkeypatch):
    own = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *args, **options: own(*args, **options).sin())
    found = plain(tmp_path, attend)
    assert {FLASH, "aten.sin.default"} <= found


def test_other_threads_go_on_as_before(tmp_path):
    """While one thread captures for CUDA, another computes on the processor, and a third captures for it."""
    began, ends = threading.Event(), threading.Event()

    def slow(x):
        began.set()
        ends.wait(60)
        return attend(x)

    folders = [tmp_path / name for name in ("cuda", "cpu")]
    found = {}

    def export(folder, call, device):
        folder.mkdir()
        found[device] = plain(folder, call, device=device)

    threads = [threading.Thread(target=export, args=(folders[0], slow, "cuda"))]
    threads[0].start()
    assert began.wait(120)
    threads.append(threading.Thread(target=export, args=(folders[1], attend, "cpu")))
    threads[1].start()
    x = torch.randn(1, 2, 4, 8)
    assert torch.equal(attend(x), functional.scaled_dot_product_attention(x, x, x))
    ends.set()
    for thread in threads:
        thread.join(120)
    assert FLASH in found["cuda"] and FLASH not in found["cpu"]
    assert any("_for_cpu" in name for name in found["cpu"])
    assert functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sparse_gradients_are_refused(tmp_path, device):
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 50))
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(tightfit.ExportError, match="sparse=False"):
        graph_of(tmp_path, model, (tokens, tokens), device, models.token_loss)


def test_a_device_named_in_the_forward_is_advised_against(tmp_path):
    with pytest.raises(tightfit.ExportError, match=r"device=x.device"):
        plain(tmp_path, lambda x: x + torch.zeros(16, device="cuda"))


def test_results_have_the_shapes_that_were_asked_for(tmp_path):
    """Heads whose size no kernel accepts are padded inside the call, and have the requested size outside."""
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
