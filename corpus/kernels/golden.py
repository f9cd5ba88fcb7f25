"""Collects cases of operators: calls PyTorch on private copies of the inputs and keeps what went in and came out.

Invariant: inputs of one case share no storage, their strides and offsets are those given, and what is stored of an
input is its content before the call.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tightfit.graph import GraphBuilder, ValueId, producer, to_json
from torch import fx


class _Operator:
    """The cases of one operator."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name, {"producer": producer()})
        self.contents: dict[str, torch.Tensor] = {}
        self.metadata: dict[str, dict[str, Any]] = {}
        self.count = 0


class Goldens:
    """All operators' cases."""

    def __init__(self) -> None:
        self.operators: dict[str, _Operator] = {}

    @property
    def count(self) -> int:
        return sum(operator.count for operator in self.operators.values())

    def record(self, overload: torch._ops.OpOverload, *args: Any, used: set[int] | None = None,
               label: str = "case", **kwargs: Any) -> None:
        """One call of an ATen operator; `used` says which of several results something uses (all by default)."""
        def call(copies: list[Any], named: dict[str, Any]) -> list[torch.Tensor | None]:
            result = overload(*copies, **named)
            results = list(result) if isinstance(result, (tuple, list)) else [result]
            return [item if used is None or index in used else None for index, item in enumerate(results)]

        self.record_call(str(overload), call, list(args), kwargs, label=label, mutates=overload._schema.is_mutable)

    def record_call(self, name: str, call: Any, args: list[Any], kwargs: dict[str, Any], *, label: str,
                    mutates: bool = False, metadata: dict[str, Any] | None = None) -> None:
        """One call of any operator: `call(args, kwargs)` returns its results."""
        operator = self.operators.setdefault(name, _Operator(name))
        builder, case = operator.builder, f"{label}_{operator.count}"
        operator.count += 1
        copies, values = [], []

        def copy(argument: Any) -> Any:
            if not isinstance(argument, torch.Tensor):
                return argument
            copies.append(_private_copy(argument))
            value = builder.placeholder(f"{case}_input_{len(copies) - 1}", "input", copies[-1])
            operator.contents[f"value.{value.index}"] = _content(copies[-1])
            values.append(value)
            return copies[-1]

        given, named = fx.node.map_aggregate(args, copy), fx.node.map_aggregate(kwargs, copy)
        with torch.no_grad():
            results = call(list(given), dict(named))
        view = not mutates and bool(results) and all(
            result is None or any(_alias(result, source) for source in copies) for result in results
        )

        def refer(argument: Any) -> Any:
            if isinstance(argument, torch.Tensor):
                return next(value for value, source in zip(values, copies, strict=True) if source is argument)
            return argument

        made: list[ValueId | None] = builder.node(
            case, name, "forward", list(fx.node.map_aggregate(given, refer)), dict(fx.node.map_aggregate(named, refer)),
            results, mutates=mutates, cost=not view,
        )
        for index, (value, result) in enumerate(zip(made, results, strict=True)):
            if value is not None and result is not None:
                builder.output(value, f"output {index} of {case}")
                operator.contents[f"value.{value.index}"] = _content(result)
        if metadata is not None:
            operator.metadata[case] = metadata

    def files(self, folder: Path) -> dict[Path, bytes]:
        """Every operator's two files, by path."""
        files = {}
        for name, operator in sorted(self.operators.items()):
            metadata = {"cases": json.dumps(operator.metadata, sort_keys=True)} if operator.metadata else None
            files[folder / f"{name}.json"] = to_json(operator.builder.document()).encode()
            files[folder / f"{name}.safetensors"] = save(operator.contents, metadata=metadata)
        return files


def _content(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().clone(memory_format=torch.contiguous_format)


def _alias(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _private_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, strides and offset in a storage of its own, no larger than needed."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    offset = tensor.storage_offset()
    storage = torch.zeros(offset + (span if tensor.numel() else 0), dtype=tensor.dtype)
    shape = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    once = tensor.detach()[tuple(slice(0, size) for size in shape)] if shape else tensor.detach()
    storage.as_strided(shape, tensor.stride(), offset).copy_(once)
    return storage.as_strided(tensor.shape, tensor.stride(), offset)
