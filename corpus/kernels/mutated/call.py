"""One call of an operator, as a graph records it, with what is needed to change it and to make it in PyTorch.

Invariant: arguments are those of the graph file, so that what PyTorch is asked is what the file says.
"""

import hashlib
import json
import math
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

TYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}
# Bases are small, so that a change costs little; extents of several elements, so that it shows.
MOST, LEAST = 130, 6


class Contents:
    """Tensors by what is in them."""

    def __init__(self, by_value: dict[int, torch.Tensor] | None = None) -> None:
        self.by_value = by_value or {}
        self.by_digest: dict[str, torch.Tensor] = {}

    def __getitem__(self, value: int) -> torch.Tensor:
        return self.by_value[value]

    @staticmethod
    def digest(tensor: torch.Tensor) -> str:
        """A name for type, shape and bytes."""
        text = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
        text.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
        return text.hexdigest()[:12]

    def keep(self, tensor: torch.Tensor) -> str:
        """Keeps a tensor once, and returns its digest."""
        tensor = content_of(tensor)
        return (self.by_digest.setdefault(self.digest(tensor), tensor), self.digest(tensor))[1]


def content_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy."""
    return tensor.detach().contiguous().clone(memory_format=torch.contiguous_format)


def span(tensor: dict[str, Any]) -> int:
    """Elements from the first one to behind the last one."""
    shape = tensor["shape"]
    if 0 in shape:
        return 0
    strides = tensor.get("strides") or torch.empty(shape, device="meta").stride()
    return 1 + sum((extent - 1) * step for extent, step in zip(shape, strides))


@dataclass
class Call:
    """A call whose tensors are described, not made."""

    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    # What the node says beside its operands: whether it mutates, is random, and with which seed.
    record: dict[str, Any]
    tensors: dict[int, dict[str, Any]]
    # `over` is the input in whose storage an output lies, `beside` an earlier output.
    outputs: list[dict[str, Any] | None]
    originals: dict[int, torch.Tensor]
    settings: dict[str, Any] = field(default_factory=dict)
    # The change is one of the outputs that the graph claims.
    lies: bool = False
    # Why the call must be refused whatever PyTorch makes of its arguments.
    wrong: str | None = None

    def copy(self) -> "Call":
        """A call that can be changed by itself."""
        return deepcopy(self)

    def is_view(self) -> bool:
        """Whether the operator computes nothing."""
        over = [output is None or output.get("over") is not None for output in self.outputs]
        return not self.record.get("mutates") and bool(over) and all(over)

    def contents(self) -> Contents:
        """The original elements over and over, as many and of the type that the tensors have now."""
        made = {}
        for value, tensor in self.tensors.items():
            old = self.originals[value].flatten()
            dtype = TYPES[tensor["dtype"]]
            if old.dtype.is_floating_point and not dtype.is_floating_point:
                old = old > 0 if dtype is torch.bool else (old * 2).round()
            count = math.prod(tensor["shape"])
            old = old if old.numel() else torch.ones(1)
            content = old.repeat(-(-count // old.numel()))[:count].to(dtype).reshape(tensor["shape"])
            for dim, step in enumerate(tensor.get("strides") or []):
                if step == 0 and content.shape[dim] > 0:
                    content = content.narrow(dim, 0, 1).expand(content.shape)
            made[value] = content_of(content)
        return Contents(made)

    def document(self, name: str) -> dict[str, Any]:
        """The graph of this call alone."""
        ids = {value: index for index, value in enumerate(self.tensors)}
        sizes: list[int] = []
        nodes: list[dict[str, Any]] = []

        def described(index: int, tensor: dict[str, Any], storage: int | None) -> dict[str, Any]:
            size = TYPES[tensor["dtype"]].itemsize
            needed = (tensor.get("offset", 0) + span(tensor)) * size
            if storage is None:
                storage = len(sizes)
                sizes.append(0)
            sizes[storage] = max(sizes[storage], needed)
            place = {key: tensor[key] for key in ("contiguous", "strides", "offset") if tensor.get(key) is not None}
            return {"id": index, "shape": tensor["shape"], "dtype": tensor["dtype"], "storage": storage} | place

        for value, tensor in self.tensors.items():
            output = described(ids[value], tensor, None)
            nodes.append({"name": f"x{ids[value]}", "op": "placeholder", "phase": "input", "inputs": [],
                          "outputs": [output]})
        outputs: list[dict[str, Any] | None] = []
        for output in self.outputs:
            if output is None:
                outputs.append(None)
                continue
            storage = None
            if output.get("over") is not None:
                storage = ids[output["over"]]
            elif output.get("beside") is not None:
                storage = outputs[output["beside"]]["storage"]
            outputs.append(described(len(ids) + len(outputs), output, storage))
        named = _values([self.args, self.kwargs])
        node = {"name": "changed", "op": self.op, "phase": "forward", "inputs": [ids[value] for value in named],
                "outputs": outputs, "args": _renamed(self.args, ids)}
        if self.kwargs:
            node["kwargs"] = _renamed(self.kwargs, ids)
        nodes.append(node | self.record)
        return {"format": "tightfit-graph/1", "name": name, "source": {}, "modules": [""], "storages": sizes,
                "nodes": nodes, "outputs": [output["id"] for output in outputs if output is not None]}


def _values(item: Any) -> list[int]:
    """The values that arguments mention, each once."""
    if isinstance(item, dict) and set(item) == {"value"}:
        return [item["value"]]
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
    return list(dict.fromkeys(value for part in parts for value in _values(part)))


def _renamed(item: Any, ids: dict[int, int]) -> Any:
    if isinstance(item, dict):
        if set(item) == {"value"}:
            return {"value": ids[item["value"]]}
        return {key: _renamed(part, ids) for key, part in item.items()}
    return [_renamed(part, ids) for part in item] if isinstance(item, list) else item


def decode(item: Any, tensors: dict[int, torch.Tensor]) -> Any:
    """An argument of a graph file as Python has it."""
    if isinstance(item, dict):
        return tensors[item["value"]]
    if isinstance(item, list):
        return [decode(part, tensors) for part in item]
    if isinstance(item, str):
        if item in ("inf", "-inf", "nan"):
            return float(item)
        return getattr(torch, item.removeprefix("torch."), item) if item.startswith("torch.") else item
    return item


def calls_of(path: Path) -> list[Call]:
    """Some of an operator's golden calls: small ones, and of different arguments."""
    document = json.loads(path.read_text())
    with safe_open(path.with_suffix(".safetensors"), "pt") as file:
        cases = json.loads((file.metadata() or {}).get("cases", "{}"))
        by_value = {output["id"]: output for node in document["nodes"] for output in node["outputs"] if output}
        found: list[Call] = []
        patterns: set[str] = set()
        nodes = [node for node in document["nodes"] if node["op"] != "placeholder"]
        for node in sorted(nodes, key=lambda node: _size(node, by_value)):
            tensors = [(len(by_value[value]["shape"]), by_value[value]["dtype"]) for value in node["inputs"]]
            pattern = str([len(node["args"]), sorted(node.get("kwargs", {})), tensors])
            if pattern in patterns or len(found) == 3:
                continue
            patterns.add(pattern)
            storages = {by_value[value]["storage"]: value for value in node["inputs"]}
            outputs = [
                output and _plain(output) | {"over": storages.get(output["storage"])} for output in node["outputs"]
            ]
            record = {key: node[key] for key in ("mutates", "random", "seed_slot") if key in node}
            found.append(Call(
                node["op"], node["args"], node.get("kwargs", {}), record,
                {value: _plain(by_value[value]) for value in node["inputs"]}, outputs,
                {value: file.get_tensor(f"value.{value}") for value in node["inputs"]},
                cases.get(node["name"], {"step": 1, "learning_rate": 1e-3}),
            ))
    return found


def _plain(tensor: dict[str, Any]) -> dict[str, Any]:
    return {key: tensor[key] for key in ("shape", "dtype", "contiguous", "strides", "offset") if key in tensor}


def _size(node: dict[str, Any], by_value: dict[int, dict[str, Any]]) -> tuple[bool, int]:
    tensors = [by_value[value] for value in node["inputs"]] + [output for output in node["outputs"] if output]
    counts = [math.prod(tensor["shape"]) for tensor in tensors]
    return max(counts) > MOST or max(counts) < LEAST, sum(counts)


def dropout() -> list[Call]:
    """Calls of dropout, which has no golden ones since its draws are the engine's own."""
    generator = torch.Generator().manual_seed(0)
    calls = []
    for probability, train in ((0.5, True), (0.0, True), (0.5, False)):
        output = {"shape": [3, 5], "dtype": "f32"}
        calls.append(Call(
            "aten.native_dropout.default", [{"value": 0}, probability, train], {}, {"random": True, "seed_slot": 0},
            {0: dict(output)}, [dict(output), output | {"dtype": "bool"}],
            {0: torch.randn((3, 5), generator=generator)}, {"step": 1, "learning_rate": 1e-3},
        ))
    return calls
