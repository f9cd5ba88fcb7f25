"""What can be tested of CUDA without a GPU: its attention operators, as graphs, and bytes as its allocator counts them.

Invariant: tensors are fake, so nothing here runs on a device; the operators and their results are PyTorch's own.

Tier: quick, since it takes less than a second.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tightfit import calls
from tightfit.calls import TORCH_DTYPES
from tightfit.devices import kind_of
from tightfit.measure import Call, _as_read, values_of
from tightfit.training.joint import Argument, Joint, document
from tightfit.training.optimizer_state import state_bytes
from tightfit.training.planned import code, held
from tightfit.training.settings import device_of

aten = torch.ops.aten
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


def flash(query, key, value, tangent):
    out, sums, first, second, longest, widest, state, offset, _ = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.1, True)
    return [out, *aten._scaled_dot_product_flash_attention_backward(
        tangent, query, key, value, out, sums, first, second, longest, widest, 0.1, True, state, offset)]


def efficient(query, key, value, tangent):
    out, sums, state, offset = aten._scaled_dot_product_efficient_attention(query, key, value, None, True, 0.1, True)
    return [out, *aten._scaled_dot_product_efficient_attention_backward(
        tangent, query, key, value, None, out, sums, state, offset, 0.1, [True, True, True, False], True)[:3]]


def cudnn(query, key, value, tangent):
    out, sums, first, second, longest, widest, state, offset, _ = aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.1, True)
    return [out, *aten._scaled_dot_product_cudnn_attention_backward(
        tangent, query, key, value, out, sums, state, offset, None, first, second, longest, widest, 0.1, True)]


def joint(attention) -> Joint:
    """Forward and backward pass of one attention with dropout on fake tensors of CUDA, as AOTAutograd names them."""
    def whole(primals, tangents):
        doubled = [item * 2 for item in primals]
        out, *gradients = attention(*doubled, tangents[0] * 2)
        return [out * 2, *(gradient * 2 for gradient in gradients)]

    with FakeTensorMode():
        *primals, tangent = (torch.empty(2, 4, 128, 64, device=CUDA, dtype=torch.bfloat16) for _ in range(4))
        module = make_fx(whole)(primals, [tangent])
    names = ["primals_1", "primals_2", "primals_3", "tangents_1"]
    for node, name in zip(module.graph.find_nodes(op="placeholder"), names, strict=True):
        node.name = node.target = name
    return Joint.of(module, [Argument(name, True, False) for name in "qkv"], 1)


@pytest.mark.parametrize("attention", [flash, efficient, cudnn])
def test_attention_on_cuda_is_planned(attention, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = document(joint(attention), "attention")
    [made] = [node for node in graph["nodes"] if node["op"].startswith("aten._scaled_dot_product") and
              "backward" not in node["op"]]
    assert made["stream"], "it draws the mask of dropout"
    state = [output["dtype"] for output in made["outputs"] if output is not None][2:]
    assert state == ["i64", "i64"]
    plan = held(graph, None, 1.0)
    source = code(plan, {}, [None]).source
    assert "def forward" in source and "def backward" in source


@pytest.mark.parametrize("attention", [flash, efficient, cudnn])
def test_made_up_states_of_dropout_lie_where_the_operator_reads_them(attention):
    graph = document(joint(attention), "attention")
    [read] = [node for node in graph["nodes"] if "attention_backward" in node["op"]]
    call = Call.of(read, values_of(graph))
    with FakeTensorMode():
        tensors = _as_read(call, [torch.empty(value.shape, dtype=TORCH_DTYPES[value.dtype], device=CUDA) for value in call.inputs])
    names = [argument.name for argument in calls.overload(call.op)._schema.arguments]
    devices = {names[place]: tensors[argument["value"]].device for place, argument in enumerate(call.args)
               if isinstance(argument, dict)}
    # Memory-efficient attention reads its random state on the processor, which only its source says.
    where = {name: CPU if attention is efficient and name.startswith("philox") else CUDA for name in devices}
    assert devices == where and "philox_seed" in devices


def test_bytes_on_cuda_are_those_of_blocks_of_512():
    assert [kind_of(CUDA).block(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    assert [kind_of(CPU).block(size) for size in (0, 1, 513)] == [0, 1, 513]
    with FakeTensorMode():
        bias = torch.nn.Parameter(torch.empty(3, device=CUDA))
        assert state_bytes("adamw", [bias]) == 3 * 512
        assert state_bytes("adamw", [torch.nn.Parameter(torch.empty(3))]) == 3 * 8 + 8


def test_libraries_keep_workspaces_on_cuda_alone():
    assert kind_of(CPU).libraries() == 0
    assert kind_of(CUDA).libraries() > 2 << 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device tells by itself")
def test_workspaces_are_those_that_the_environment_asks_for(monkeypatch):
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    assert kind_of(CUDA).libraries() == 2 * (33 << 20), "what two threads keep on an H100"
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "2048")
    assert kind_of(CUDA).libraries() == 2 * (34 << 20)
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1")
    assert kind_of(CUDA).libraries() == 2 * (32 << 20)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert kind_of(CUDA).libraries() == 2 * (2 * (4 << 20) + 8 * (16 << 10))


def test_a_number_of_the_processor_may_take_part_in_what_runs_on_cuda():
    with FakeTensorMode():
        there, number = torch.empty(2, device=CUDA), torch.tensor(0.5)
        assert device_of([there, number]) == CUDA
    assert device_of([torch.tensor(1.0)]) == CPU
