"""Builds a `tightfit-graph/1` document from tensors, real or fake, and serialises it.

Invariant: values that share an `untyped_storage()` share a storage id, every input was produced before it is used,
names are unique, and the same sequence of calls gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .errors import ExportError
from .extents import Extent

FORMAT = "tightfit-graph/1"

DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",  # seeds on CUDA
    torch.uint8: "u8",
    torch.bool: "bool",
}


# Of their first tensor these read only the selected elements, as many as they write.
_LOOKS_UP = ("aten.embedding.default", "aten.gather.default", "aten.index.Tensor", "aten.index_select.default",
             "aten.take.default")
# Of their first tensor these read one row for each element of the second.
_LOOKS_UP_ROWS = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")


@dataclass(frozen=True)
class ValueId:
    """A value of the graph: one version of (a view of) a storage."""

    index: int


def producer() -> str:
    """The version that wrote the graph, without the local build tag."""
    return "torch " + torch.__version__.split("+")[0]


def encode(argument: Any) -> Any:
    """One call argument as JSON: values as `{"value": id}`, constants as PyTorch prints them."""
    if isinstance(argument, ValueId):
        return {"value": argument.index}
    if argument is None or isinstance(argument, (bool, str)):
        return argument
    if isinstance(argument, int):
        return argument if isinstance(argument, Extent) else int(argument)
    if isinstance(argument, float):
        if math.isnan(argument):
            return "nan"
        if math.isinf(argument):
            return "inf" if argument > 0 else "-inf"
        return argument
    if isinstance(argument, (list, tuple)):
        return [encode(item) for item in argument]
    if isinstance(argument, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(argument)
    raise ExportError(
        f"argument {argument!r} of type {type(argument).__name__} has no form in {FORMAT}; "
        "export with static shapes and without generators or symbolic sizes"
    )


def values_in(argument: Any) -> list[ValueId]:
    """The values an argument mentions, in order of appearance."""
    if isinstance(argument, ValueId):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [found for item in argument for found in values_in(item)]
    if isinstance(argument, dict):
        return [found for item in argument.values() for found in values_in(item)]
    return []


def size_in_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements (an expanded dimension counts in full)."""
    return tensor.numel() * tensor.element_size()


class GraphBuilder:
    """A graph under construction; nodes are appended in program order."""

    def __init__(self, name: str, source: dict[str, Any]) -> None:
        self._name = name
        self._source = source
        self._modules: dict[str, int] = {"": 0}
        self._uncalled: list[str] = []
        self._storages: list[int] = []
        self._storage_of: dict[int, int] = {}
        self._tensors: list[torch.Tensor] = []  # keeps storages alive, so that their addresses are not reused
        self._names: set[str] = set()
        self._nodes: list[dict[str, Any]] = []
        self._outputs: list[int] = []
        self._output_names: list[str] = []
        self._seed_slots = 0

    def tensor(self, value: ValueId) -> torch.Tensor:
        """The tensor that represents a value."""
        return self._tensors[value.index]

    def modules(self, called: list[str], uncalled: list[str]) -> None:
        """Names the modules of the model: those that are called, in the order of the module table, and the others."""
        for module in called:
            self._modules.setdefault(module, len(self._modules))
        self._uncalled = uncalled

    def latest(self) -> str:
        """The name of the node that was appended last."""
        return self._nodes[-1]["name"]

    def placeholder(self, name: str, phase: str, tensor: torch.Tensor, *, parameter: str | None = None,
                    module: str = "") -> ValueId:
        """Adds a value that exists before the step begins."""
        [value] = self.node(name, "placeholder", phase, [], {}, [tensor], module=module, parameter=parameter,
                            cost=False)
        assert value is not None
        return value

    def node(self, name: str, op: str, phase: str, args: list[Any], kwargs: dict[str, Any],
             outputs: list[torch.Tensor | None], *, module: str = "", parameter: str | None = None, flops: int = 0,
             random: bool = False, stream: bool = False, mutates: bool = False, cost: bool = True,
             differentiates: str | None = None, dropped: Sequence[torch.Tensor] = (),
             workspace: int = 0, seconds: float | None = None) -> list[ValueId | None]:
        """Appends one call and returns its outputs' values (`None` if nothing uses the output).

        `cost=False` leaves bytes and FLOPs at zero, as views and placeholders have them. `dropped` are outputs that
        nothing uses: PyTorch makes them even so, so they are workspace, in addition to what else the call takes. A
        `random` call has a seed of its own, or with `stream` draws from PyTorch's running generator.
        """
        inputs = list(dict.fromkeys(value.index for value in values_in([args, kwargs])))
        for index in inputs:
            if index >= len(self._tensors):
                raise ExportError(f"node {name!r} reads value {index} before it is produced; report this graph")
        read = [self._tensors[index] for index in inputs]
        unused = {
            tensor.untyped_storage()._cdata: int(tensor.untyped_storage().nbytes()) for tensor in dropped
        }
        values = [None if tensor is None else self._value(name, tensor) for tensor in outputs]
        record: dict[str, Any] = {"name": self._unique(name), "op": op, "phase": phase}
        if module:
            record["module"] = self._modules.setdefault(module, len(self._modules))
        if parameter is not None:
            record["parameter"] = parameter
        record["inputs"] = inputs
        record["outputs"] = [None if value is None else self._describe(value) for value in values]
        if op != "placeholder":
            record["args"] = encode(args)
            if kwargs:
                record["kwargs"] = {key: encode(item) for key, item in kwargs.items()}
        if cost:
            if flops:
                record["flops"] = int(flops)
            sizes = list(map(size_in_bytes, read))
            written = sum(size_in_bytes(tensor) for tensor in outputs if tensor is not None)
            if op in _LOOKS_UP:
                sizes[0] = min(sizes[0], written)
            elif op in _LOOKS_UP_ROWS:
                sizes[0] = min(sizes[0], read[1].numel() * read[0].shape[-1] * read[0].element_size())
            record["bytes_read"], record["bytes_written"] = sum(sizes), written
            workspace += sum(unused.values())
        if workspace:
            record["workspace"] = workspace
        if seconds is not None:
            record["seconds"] = seconds
        if random:
            record["random"] = True
            if stream:
                record["stream"] = True
            else:
                record["seed_slot"] = self._seed_slots
                self._seed_slots += 1
        if mutates:
            record["mutates"] = True
        if differentiates is not None:
            record["differentiates"] = differentiates
        self._nodes.append(record)
        return values

    def enlarge(self, value: ValueId, size: int) -> None:
        """Sets the size of a value's storage to at least this many bytes."""
        storage = self._storage(self._tensors[value.index])
        self._storages[storage] = max(self._storages[storage], size)

    def output(self, value: ValueId, name: str) -> None:
        """Marks a value as outliving the step; the name says what it is."""
        self._outputs.append(value.index)
        self._output_names.append(name)

    def document(self) -> dict[str, Any]:
        """The whole graph as a JSON object."""
        return {
            "format": FORMAT,
            "name": self._name,
            "source": self._source,
            "modules": list(self._modules),
            "uncalled": self._uncalled,
            "storages": self._storages,
            "nodes": self._nodes,
            "outputs": self._outputs,
            "output_names": self._output_names,
        }

    def _unique(self, name: str) -> str:
        candidate, suffix = name, 0
        while candidate in self._names:
            suffix += 1
            candidate = f"{name}__{suffix}"
        self._names.add(candidate)
        return candidate

    def _value(self, node: str, tensor: torch.Tensor) -> ValueId:
        if tensor.dtype not in DTYPES:
            raise ExportError(
                f"node {node!r} produces {tensor.dtype}, which {FORMAT} does not have; "
                f"use one of {', '.join(str(dtype) for dtype in DTYPES)}"
            )
        if tensor.layout is not torch.strided:
            raise ExportError(f"node {node!r} produces a tensor of layout {tensor.layout}; only strided ones are written")
        self._tensors.append(tensor)
        return ValueId(len(self._tensors) - 1)

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storage_of:
            self._storage_of[key] = len(self._storages)
            self._storages.append(int(storage.nbytes()))
        return self._storage_of[key]

    def _describe(self, value: ValueId) -> dict[str, Any]:
        tensor = self._tensors[value.index]
        record: dict[str, Any] = {
            "id": value.index,
            "shape": [int(size) for size in tensor.shape],
            "dtype": DTYPES[tensor.dtype],
            "storage": self._storage(tensor),
        }
        contiguous, offset = tensor.is_contiguous(), int(tensor.storage_offset())
        if not contiguous:
            record["contiguous"] = False
            record["strides"] = [int(stride) for stride in tensor.stride()]
        if not contiguous or offset:
            record["offset"] = offset
        return record


def to_json(document: dict[str, Any]) -> str:
    """A graph as JSON text with one node, module or storage list per line, so that it can be read and compared."""
    lines = []
    for key, item in document.items():
        if key == "nodes":
            body = ",\n".join(json.dumps(node, separators=(", ", ": "), allow_nan=False) for node in item)
            lines.append(f'"nodes": [\n{body}\n]')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(item, allow_nan=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def to_gzip(document: dict[str, Any]) -> bytes:
    """A graph as gzip bytes that depend on nothing but the document."""
    return gzip.compress(to_json(document).encode(), compresslevel=9, mtime=0)
