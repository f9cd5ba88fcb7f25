"""Measures how long each call of a graph takes in PyTorch on a device, for `export(measure=True)`.

Invariant: the graph's own tensors are not needed and nothing but `seconds` is added; the tensors of only one call are
alive at a time; equal calls (operator, constants, types, shapes, strides) are run once and share the result; the global
state of PyTorch's random numbers is afterwards what it was before.
"""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import calls
from .calls import OPTIMIZERS, TORCH_DTYPES
from .devices import Device, kind_of
from .errors import ExportError

aten = torch.ops.aten

# A call is repeated until it has taken this many seconds in all, at least and at most this many times.
_SECONDS, _LEAST, _MOST = 0.1, 3, 100
# Runs before the first measured one, in which libraries choose and prepare their kernels.
_WARM_UP = 2
# Number of elements that are drawn at random; larger tensors repeat them.
_BLOCK = 1 << 16
# Number of nodes that a warning names.
_NAMED = 5

# The inputs of these operators have to be probabilities.
_PROBABILITIES = {aten.bernoulli, aten.binary_cross_entropy, aten.binary_cross_entropy_backward, aten.multinomial}

# Arguments of these operators with the generator's seed and offset: outside of a CUDA graph the CPU reads them.
_HOST_STATE = {aten._scaled_dot_product_efficient_attention_backward: slice(7, 9), aten._efficient_attention_backward: slice(12, 14)}


def measured(document: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The graph with `seconds` in each node that runs, as measured on `device` (`cpu` or `cuda`).

    Views and placeholders have none, nor do calls that cannot be run on made-up inputs; a warning names those. Raises
    `ExportError` if a call's tensors do not fit into the device's memory.
    """
    values = values_of(document)
    known: dict[str, float | _Refused] = {}
    nodes, refused = [], []
    with undisturbed(device):
        for node in document["nodes"]:
            if takes_time(node, values):
                call = Call.of(node, values)
                if call.key not in known:
                    known[call.key] = _measure(call, device, document["storages"])
                found = known[call.key]
                if isinstance(found, _Refused):
                    refused.append(f"{node['name']!r} ({node['op']}: {found.reason})")
                else:
                    node = node | {"seconds": found}
            nodes.append(node)
    if refused:
        listed = ", ".join(refused[:_NAMED]) + (f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else "")
        warnings.warn(
            f"{len(refused)} of the graph's nodes could not be run on made-up inputs on {device} and have no seconds, "
            f"so the planner predicts those by roofline: {listed}",
            stacklevel=3,
        )
    return document | {"nodes": nodes}


@dataclass(frozen=True)
class _Refused:
    """Why a call could not be measured."""

    reason: str


@dataclass(frozen=True)
class _Value:
    """Describes one tensor of a graph, enough to make another like it."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int
    storage: int

    @property
    def end(self) -> int:
        """One past the last element that it touches."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))


def values_of(document: dict[str, Any]) -> dict[int, _Value]:
    found = {}
    for node in document["nodes"]:
        for output in node["outputs"]:
            if output is not None:
                shape = tuple(output["shape"])
                strides = tuple(output.get("strides", _row_major(shape)))
                found[output["id"]] = _Value(shape, output["dtype"], strides, output.get("offset", 0), output["storage"])
    return found


def _row_major(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


def takes_time(node: dict[str, Any], values: dict[int, _Value]) -> bool:
    """Whether a node takes time: placeholders exist from the start, and views compute nothing."""
    if node["op"] == "placeholder":
        return False
    read = {values[index].storage for index in node.get("inputs", ())}
    made = [output["storage"] for output in node["outputs"] if output is not None]
    is_view = bool(made) and all(storage in read for storage in made)
    return bool(node.get("mutates")) or not is_view


@dataclass(frozen=True)
class Call:
    """One node with its tensors numbered from zero, so that equal calls of different nodes have one key."""

    node: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    inputs: list[_Value]
    fresh: list[int]

    @staticmethod
    def of(node: dict[str, Any], values: dict[int, _Value]) -> Call:
        number = {index: {"value": local} for local, index in enumerate(node.get("inputs", []))}
        inputs = [values[index] for index in node.get("inputs", [])]
        read = {value.storage for value in inputs}
        fresh = {output["storage"] for output in node["outputs"] if output is not None} - read
        return Call(
            node["name"], node["op"], _renumbered(node.get("args", []), number),
            {key: _renumbered(item, number) for key, item in node.get("kwargs", {}).items()}, inputs, sorted(fresh),
        )

    def spans(self) -> dict[tuple[int, str], tuple[int, int]]:
        """By storage and type, the elements that the call's inputs touch: the first, and one past the last."""
        spans: dict[tuple[int, str], tuple[int, int]] = {}
        for value in self.inputs:
            first, end = spans.get((value.storage, value.dtype), (value.offset, value.end))
            spans[value.storage, value.dtype] = min(first, value.offset), max(end, value.end)
        return spans

    def bytes_besides(self, there: Mapping[int, Any]) -> int:
        """The bytes that the call's inputs touch, without those at these positions."""
        parts = {(value.storage, value.dtype) for position, value in enumerate(self.inputs) if position not in there}
        spans = self.spans()
        return sum((spans[part][1] - spans[part][0]) * TORCH_DTYPES[part[1]].itemsize for part in parts)

    @property
    def key(self) -> str:
        """Everything that determines how long the call takes, as text."""
        spans = self.spans()
        order = {part: index for index, part in enumerate(spans)}
        tensors = []
        for value in self.inputs:
            part = value.storage, value.dtype
            tensors.append([value.shape, value.dtype, value.strides, value.offset - spans[part][0], order[part]])
        return json.dumps([self.op, self.args, self.kwargs, tensors], sort_keys=True)


def _renumbered(argument: Any, number: dict[int, Any]) -> Any:
    if isinstance(argument, dict):
        return number[argument["value"]]
    if isinstance(argument, list):
        return [_renumbered(item, number) for item in argument]
    return argument


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Within it: real tensors, no gradients, no automatic casts; afterwards the random state is as before."""
    with (
        _disable_current_modes(), torch.no_grad(), torch.autocast(device.type, enabled=False),
        kind_of(device).random_kept(),
    ):
        yield


def _measure(call: Call, device: torch.device, storages: list[int]) -> float | _Refused:
    """The lower quartile of a call's seconds (disturbances only make runs slower), or why it cannot be run."""
    spans = call.spans()
    needed = sum((end - first) * TORCH_DTYPES[dtype].itemsize for (_, dtype), (first, end) in spans.items())
    needed += sum(storages[storage] for storage in call.fresh)
    kind = kind_of(device)
    free = kind.free()
    if free is not None and needed > free:
        raise _too_large(call, device, f"takes {needed} bytes, and {free} are free")
    try:
        run = prepared(call, device)
        samples = _samples(run, kind)
    except MemoryError as error:
        raise _too_large(call, device, f"takes {needed} bytes and its workspace") from error
    except torch.AcceleratorError as error:
        raise ExportError(
            f"node {call.node!r} ({call.op}) stopped {device}: {first_line(error)}; "
            "export without measure=True, or from a model whose operators run on it"
        ) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise _too_large(call, device, f"takes {needed} bytes and its workspace") from error
        return _Refused(f"{type(error).__name__}: {first_line(error)}")
    return max(round(sorted(samples)[(len(samples) - 1) // 4], 9), 1e-9)


def _too_large(call: Call, device: torch.device, what: str) -> ExportError:
    return ExportError(
        f"node {call.node!r} ({call.op}) cannot be measured on {device}: its call alone {what}; "
        "measure a smaller batch, give a device with more memory, or export without measure=True"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch's allocators say that there is not enough memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def first_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    return (str(error).strip().splitlines() or [""])[0][:120]


def _samples(run: Callable[[], Any], kind: Device) -> list[float]:
    # To wait for an accelerator takes longer than a short call.
    times = 1 if kind.is_processor else _LEAST
    with kind.current():
        for _ in range(_WARM_UP):
            run()
        kind.synchronize()
        samples: list[float] = []
        while len(samples) < _LEAST or (sum(samples) < _SECONDS and len(samples) < _MOST):
            samples += kind.seconds(run, times)
        return samples


def prepared(call: Call, device: torch.device, there: Mapping[int, torch.Tensor] | None = None) -> Callable[[], Any]:
    """The call on tensors made for it, or on those in `there`, by the positions of its inputs."""
    args, kwargs = arguments(call, device, there)
    if call.op in OPTIMIZERS:
        update = OPTIMIZERS[call.op]
        return lambda: update(1e-3, 1, *args, **kwargs)
    operator = calls.overload(call.op)
    if operator is None:
        raise LookupError(f"PyTorch has no operator {call.op!r}")
    names = [argument.name for argument in operator._schema.arguments]
    if not call.inputs and "device" in names and names.index("device") >= len(args):
        kwargs["device"] = device
    return lambda: operator(*args, **kwargs)


def arguments(call: Call, device: torch.device,
              there: Mapping[int, torch.Tensor] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, made for it or taken from `there`; the same every time."""
    tensors = _as_read(call, _tensors(call, device, there or {}))
    node = {"op": call.op, "args": call.args, "kwargs": call.kwargs}
    return calls.arguments(node, tensors.__getitem__, device)


def _tensors(call: Call, device: torch.device, there: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    """Inputs with the step's shapes and strides; those that share a storage in the step share one here."""
    generator = torch.Generator(device=device).manual_seed(0)
    extents = _extents(call)
    packet = _packet(call.op)
    spans = call.spans()
    buffers: dict[tuple[int, str], torch.Tensor] = {}
    tensors = []
    for position, value in enumerate(call.inputs):
        if position in there:
            tensors.append(there[position])
            continue
        part = value.storage, value.dtype
        first, end = spans[part]
        if part not in buffers:
            extent = min(extents.get(other, 1) for other, also in enumerate(call.inputs) if (also.storage, also.dtype) == part)
            dtype = TORCH_DTYPES[value.dtype]
            buffers[part] = _filled(end - first, dtype, device, generator, extent, packet in _PROBABILITIES)
        tensors.append(torch.as_strided(buffers[part], value.shape, value.strides, value.offset - first))
    return tensors


def _as_read(call: Call, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs as the operator requires them: the format has no unsigned integers, and does not say which numbers
    PyTorch leaves on the CPU, where the operator reads them."""
    packet = _packet(call.op)
    if packet is aten._scaled_dot_product_flash_attention_backward and torch.version.hip is None:
        state = {argument["value"] for argument in call.args[12:14]}
        return [tensor.view(torch.uint64) if index in state and tensor.dtype == torch.int64 else tensor
                for index, tensor in enumerate(tensors)]
    if packet in _HOST_STATE:
        state = {argument["value"] for argument in call.args[_HOST_STATE[packet]]}
        return [tensor.cpu() if index in state else tensor for index, tensor in enumerate(tensors)]
    return tensors


def _packet(op: str) -> Any:
    namespace, name, *_ = op.split(".")
    return getattr(aten, name, None) if namespace == "aten" else None


def _filled(count: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator, extent: int,
            probability: bool) -> torch.Tensor:
    """Elements like those of a step: normal numbers, truth values half and half, indices below `extent`."""
    block = torch.empty(min(count, _BLOCK), dtype=dtype, device=device)
    if dtype == torch.bool:
        block.random_(0, 2, generator=generator)
    elif not dtype.is_floating_point:
        block.random_(0, max(min(extent, torch.iinfo(dtype).max), 1), generator=generator)
    elif probability:
        block.uniform_(0.0, 1.0, generator=generator)
    else:
        block.normal_(generator=generator)
    if count <= _BLOCK:
        return block
    whole = torch.empty(count, dtype=dtype, device=device)
    whole[:_BLOCK] = block
    there = _BLOCK
    while there < count:
        # Each copy doubles what is filled: many small copies would spend their time synchronizing threads.
        whole[there : 2 * there] = whole[: min(there, count - there)]
        there *= 2
    return whole


def _extents(call: Call) -> dict[int, int]:
    """Number of valid indices in an input, for operators that look things up; other integers are zero."""
    packet, args = _packet(call.op), call.args

    def shape(position: int) -> tuple[int, ...]:
        return call.inputs[args[position]["value"]].shape or (1,)

    if packet is aten.embedding:
        return {args[1]["value"]: shape(0)[0]}
    if packet is aten.embedding_dense_backward:
        return {args[1]["value"]: args[2]}
    if packet in (aten.nll_loss_forward, aten.nll_loss2d_forward):
        return {args[1]["value"]: shape(0)[min(1, len(shape(0)) - 1)]}
    if packet in (aten.nll_loss_backward, aten.nll_loss2d_backward):
        return {args[2]["value"]: shape(1)[min(1, len(shape(1)) - 1)]}
    if packet in (aten.gather, aten.scatter, aten.scatter_add, aten.scatter_reduce, aten.index_select, aten.index_add):
        return {args[2]["value"]: shape(0)[args[1]]}
    if packet in (aten.index, aten.index_put, aten._unsafe_index, aten._unsafe_index_put):
        indexed = zip(args[1], shape(0), strict=False)
        return {index["value"]: extent for index, extent in indexed if index is not None}
    return {}
