"""Runs a `tightfit-graph/1` document node by node with PyTorch's own operators, from the JSON alone.

Invariant: a value has the shape, dtype and strides that the document gives it, and values alias exactly where the
document says so; anything else fails an assertion that names the node.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import torch

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u64": torch.uint64, "u8": torch.uint8, "bool": torch.bool,
}


def read(path: Path) -> dict[str, Any]:
    """A graph file, plain or gzip."""
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)


def run(document: dict[str, Any], given: dict[str, torch.Tensor], *, step: int = 1, learning_rate: float = 1e-3,
        keep: bool = False) -> dict[int, torch.Tensor]:
    """All values by id, from placeholders given by node name; placeholders are written in place by mutating nodes.

    `keep=True` returns copies as they were when produced.
    """
    values: dict[int, torch.Tensor] = {}
    kept: dict[int, torch.Tensor] = {}
    storages: dict[int, int] = {}
    with torch.no_grad():
        for node in document["nodes"]:
            if node["op"] == "placeholder":
                results = [given[node["name"]]]
            else:
                args = _decode(node["args"], values)
                kwargs = _decode(node.get("kwargs", {}), values)
                results = _call(node["op"], args, kwargs, step, learning_rate)
            for described, result in zip(node["outputs"], results, strict=True):
                if described is None:
                    continue
                _check(node["name"], described, result, storages)
                values[described["id"]] = result
                kept[described["id"]] = result.clone() if keep else result
    return kept


def _decode(argument: Any, values: dict[int, torch.Tensor]) -> Any:
    if isinstance(argument, dict):
        if set(argument) == {"value"}:
            return values[argument["value"]]
        return {key: _decode(item, values) for key, item in argument.items()}
    if isinstance(argument, list):
        return [_decode(item, values) for item in argument]
    if isinstance(argument, str):
        if argument.startswith("torch."):
            return getattr(torch, argument.removeprefix("torch."))
        if argument in ("inf", "-inf", "nan"):
            return float(argument)
    return argument


def _call(op: str, args: list[Any], kwargs: dict[str, Any], step: int, learning_rate: float) -> list[torch.Tensor]:
    if op == "tightfit.adamw":
        return _adamw(*args, **kwargs, step=step, learning_rate=learning_rate)
    if op == "tightfit.sgd":
        return _sgd(*args, **kwargs, learning_rate=learning_rate)
    namespace, packet, overload = op.split(".")
    result = getattr(getattr(getattr(torch.ops, namespace), packet), overload)(*args, **kwargs)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _adamw(parameter, gradient, exp_avg, exp_avg_sq, *, betas, eps, weight_decay, step, learning_rate):
    """Decoupled weight decay, then Adam with bias correction (Loshchilov and Hutter 2019, algorithm 2)."""
    parameter.mul_(1 - learning_rate * weight_decay)
    exp_avg.lerp_(gradient, 1 - betas[0])
    exp_avg_sq.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    denominator = (exp_avg_sq / (1 - betas[1] ** step)).sqrt() + eps
    parameter.sub_(learning_rate / (1 - betas[0] ** step) * exp_avg / denominator)
    return [parameter, exp_avg, exp_avg_sq]


def _sgd(parameter, gradient, buffer=None, *, momentum, weight_decay, learning_rate):
    gradient = gradient + weight_decay * parameter
    if buffer is None:
        parameter.sub_(learning_rate * gradient)
        return [parameter]
    buffer.mul_(momentum).add_(gradient)
    parameter.sub_(learning_rate * buffer)
    return [parameter, buffer]


def _check(name: str, described: dict[str, Any], result: torch.Tensor, storages: dict[int, int]) -> None:
    assert list(result.shape) == described["shape"], f"{name}: shape {tuple(result.shape)}, graph {described}"
    assert result.dtype == DTYPES[described["dtype"]], f"{name}: dtype {result.dtype}, graph {described}"
    assert result.is_contiguous() == described.get("contiguous", True), f"{name}: strides {result.stride()}, graph {described}"
    if "strides" in described:
        real = [(size, stride) for size, stride in zip(result.shape, result.stride(), strict=True) if size != 1]
        graph = [pair for pair in zip(described["shape"], described["strides"], strict=True) if pair[0] != 1]
        assert real == graph, f"{name}: strides {result.stride()}, graph {described}"
    assert result.storage_offset() == described.get("offset", 0), f"{name}: offset {result.storage_offset()}, graph {described}"
    address = result.untyped_storage()._cdata
    assert storages.setdefault(described["storage"], address) == address, f"{name}: does not alias storage {described}"
