"""Measures the cost of each call of a step on the device that runs it: seconds, and the bytes that it holds meanwhile.

Invariant: the tensors of only one call are alive at a time; equal calls (operator, constants, types, shapes, strides)
are run once; a call may overwrite only what nothing but the step itself holds, and only if that was tried; measurements
on a device by one version of PyTorch with one number of threads are kept in a file for the next start.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import cache, calls
from ..calls import TORCH_DTYPES
from ..devices import Device, kind_of
from ..devices.processor import is_profiled
from ..errors import CompileError
from ..measure import (
    Call, arguments, first_line, is_out_of_memory, prepared, takes_time, undisturbed, values_of,
)
from .counting import Count
from .inplace import PUT, tried
from .joint import BARRIER
from .places import places
from .roles import Kind, Role

# A call is repeated until it has taken this many seconds, at least and at most this many times. The run that measures
# its memory is one of these: its extra time is negligible in calls so long that they run no more than twice.
_SECONDS, _LEAST, _MOST = 0.004, 2, 4
# Bytes of parameters that are read before a run of a short call: between two calls a step reads as much, so a call does
# not find in the caches what it left there when it ran last (with warm caches, a step of 40 ms is predicted to take 28).
_READ = 16 << 20
# The name of files that keep costs; another one once other calls may overwrite what they read.
_FILE = "costs/calls"
_FLOATS = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
# Exceptions that operators raise.
_REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, ArithmeticError)


@dataclass(frozen=True)
class Cost:
    """Seconds of a call, the most bytes that it holds beyond its inputs, results included, the bytes of the storage of
    each result, and the positions of the arguments that its result can be written over."""

    seconds: float
    peak: int
    results: tuple[int, ...]
    overwrites: tuple[int, ...] = ()


@dataclass(frozen=True)
class Costed:
    """A graph with seconds and workspaces, and the calls that could not be run, by node. Of the calls that were measured
    just now, the largest held `most` bytes, its inputs included."""

    document: dict[str, Any]
    refused: dict[str, str]
    most: int = 0


def costed(document: dict[str, Any], device: torch.device, given: Sequence[Any] = (),
           parameters: Iterable[torch.Tensor] = ()) -> Costed:
    """The graph with the seconds and the workspace of each call that runs, as measured on `device`.

    `given` are the step's own arguments, if available: calls that only read parameters or buffers are measured with
    those, and not with copies, for which a tight budget has no room. They, or else `parameters`, are read between two
    runs of a call.

    A call that cannot be run on made-up inputs keeps the workspace that the graph records, and has no seconds.
    On CUDA, the sizes of tensors are those of the blocks that the allocator hands out for them.
    """
    kind = kind_of(device)
    storages = [kind.block(size) for size in document["storages"]]
    values = values_of(document)
    there = _static(document, given)
    known, refused = _Known(device, there.values() or parameters), {}
    shared = _shared(document, values)
    nodes = []
    with undisturbed(device), kind.current():
        for node in document["nodes"]:
            if takes_time(node, values) and not node["op"].startswith("tightfit."):
                is_put = node["op"] == PUT and bool(node.get("overwrites"))
                call = Call.of(_moved(node) if is_put else node, values)
                results = sum(storages[storage] for storage in call.fresh)
                mine = {} if node.get("mutates") else _read(node, values, there)
                cost = known.of(call, results, mine)
                if isinstance(cost, str):
                    # Assertions fail on made-up inputs, and make nothing.
                    refused |= {node["name"]: cost} if any(node["outputs"]) else {}
                else:
                    if is_put:
                        nodes.append(node | {"seconds": cost.seconds})
                        continue
                    _enlarge(storages, node, call, cost, kind)
                    workspace = max(cost.peak - sum(storages[storage] for storage in call.fresh), 0)
                    node = {key: item for key, item in node.items() if key != "workspace"} | {"seconds": cost.seconds}
                    node |= {"workspace": workspace} if workspace else {}
                    over = [node["args"][position]["value"] for position in cost.overwrites]
                    over = [value for value in over if values[value].storage not in shared]
                    node |= {"overwrites": over} if over else {}
            nodes.append(node)
    known.keep()
    document = document | {"nodes": nodes, "storages": storages}
    # Parts that are made in their places are not moved there.
    puts = places(document).puts
    document["nodes"] = [node | {"seconds": 0.0} if node["name"] in puts else node for node in nodes]
    return Costed(document, refused, known.most)


def _moved(node: Mapping[str, Any]) -> dict[str, Any]:
    """A call that moves what `PUT` does: it copies the part."""
    part = node["args"][1]
    return dict(node) | {"op": "aten.clone.default", "args": [part], "inputs": [part["value"]]}


def _enlarge(storages: list[int], node: Mapping[str, Any], call: Call, cost: Cost, kind: Device) -> None:
    """Counts the whole storages of a call's results: some keep the memory that they were computed in, as the sum over a
    `mse_loss` does."""
    for output, size in zip(node["outputs"], cost.results, strict=False):
        if output is not None and output["storage"] in call.fresh:
            storages[output["storage"]] = max(storages[output["storage"]], kind.block(size))


def _shared(document: dict[str, Any], values: Mapping[int, Any]) -> set[int]:
    """Storages that others see: the step's arguments, and its results."""
    seen = {values[output["id"]].storage for node in document["nodes"] for output in node["outputs"]
            if node["op"] in ("placeholder", BARRIER)}
    owed = [value for node in document["nodes"] if node["op"] == BARRIER for value in node["inputs"]]
    return seen | {values[value].storage for value in [*owed, *document["outputs"]]}


def _static(document: dict[str, Any], arguments: Sequence[Any]) -> dict[int, torch.Tensor]:
    """By storage, the parameters and buffers among the arguments."""
    found = {}
    for node in document["nodes"]:
        is_static = node["op"] == "placeholder" and node["phase"] in ("parameter", "buffer")
        role = Role.of(node) if is_static else None
        if role is not None and role.kind is Kind.ARGUMENT and role.index < len(arguments):
            found[node["outputs"][0]["storage"]] = arguments[role.index].detach()
    return found


def _read(node: Mapping[str, Any], values: Mapping[int, Any],
          there: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The inputs of a call, by position, that lie in given tensors."""
    found = {}
    for position, value in ((position, values[value]) for position, value in enumerate(node.get("inputs", []))):
        tensor = there.get(value.storage)
        if tensor is not None and tensor.dtype == TORCH_DTYPES[value.dtype]:
            found[position] = tensor.as_strided(value.shape, value.strides, value.offset)
    return found


class _Known:
    """Costs by call, read from the file of a device and written back."""

    def __init__(self, device: torch.device, parameters: Iterable[torch.Tensor]) -> None:
        self.device = device
        self.kind = kind_of(device)
        self._parameters = _first(parameters, self.kind)
        self.name = cache.of_device(_FILE, device)
        self.costs: dict[str, Cost] = {}
        self.refused: dict[str, str] = {}
        self.is_new = False
        # The most bytes that a call held while it was measured.
        self.most = 0
        try:
            found = json.loads(cache.read(self.name) or "{}")
            self.costs = {key: Cost(float(seconds), int(peak), tuple(map(int, results)), tuple(map(int, over)))
                          for key, (seconds, peak, results, over) in found.items()}
        except (ValueError, TypeError, AttributeError):
            pass  # a file that was damaged is written again

    def of(self, call: Call, results: int, there: Mapping[int, torch.Tensor]) -> Cost | str:
        """The cost of a call with this many bytes of results, or why it cannot be measured; `there` are inputs that
        need not be made."""
        key = call.key
        if key not in self.costs and key not in self.refused:
            with Count.aside(self.device):
                self._measure(call, results, there)
        return self.costs.get(key) or self.refused[key]

    def _measure(self, call: Call, results: int, there: Mapping[int, torch.Tensor]) -> None:
        """Measures a call, or notes why that cannot be done."""
        key = call.key
        if self.kind.is_processor and is_profiled():
            raise CompileError("a profiler is active, and what operators take is measured by PyTorch's profiler before the "
                               "first step; begin to profile after the first step of each kind of batch, and after the first "
                               "with gradients that are there already")
        try:
            cost = _measured(prepared(call, self.device, there), self.kind, self._parameters)
            if cost.peak == 0 and results > 0:
                raise LookupError("the allocator in use does not tell PyTorch's profiler what it hands out")
            beside = max(cost.peak - max(results, sum(cost.results)), 0)
            self.costs[key] = replace(cost, overwrites=self._overwrites(call, beside))
            self.is_new = True
            self.most = max(self.most, call.bytes_besides(there) + max(cost.peak, results))
        except torch.AcceleratorError as error:
            # Nothing can run on the device any more.
            raise CompileError(f"measuring {call.op!r} on made-up inputs stopped {self.device}: {first_line(error)}; "
                               "please report this model") from error
        except _REFUSALS as error:  # whatever an operator makes of made-up inputs
            if is_out_of_memory(error):
                raise CompileError(f"there is not enough memory on {self.device} to measure {call.op!r} before the first "
                                   f"step: {first_line(error)}; give a smaller batch") from None
            self.refused[key] = f"{type(error).__name__}: {first_line(error)}"

    def _overwrites(self, call: Call, most: int) -> tuple[int, ...]:
        """The arguments that a call's result can overwrite, if this takes at most this many further bytes."""
        overload = calls.overload(call.op)
        if overload is None or torch.Tag.nondeterministic_seeded in overload.tags:
            return ()
        return tuple(tried(overload, lambda: arguments(call, self.device), self.kind.peak_of, most))

    def keep(self) -> None:
        """Writes what is known to the file, and frees the memory that the allocator cached while measuring."""
        if self.is_new:
            self.kind.empty_cache()
            costs = {key: [cost.seconds, cost.peak, cost.results, cost.overwrites] for key, cost in self.costs.items()}
            cache.keep(self.name, json.dumps(costs))


def _first(parameters: Iterable[torch.Tensor], kind: Device) -> list[torch.Tensor]:
    """Parameters of `_READ` bytes in all; none for an accelerator, whose calls do not wait for
    one another's data."""
    found: list[torch.Tensor] = []
    if not kind.is_processor:
        return found
    left = _READ
    for parameter in parameters:
        tensor = parameter.detach()
        if type(tensor) is not torch.Tensor or tensor.device != kind.device or tensor.dtype not in _FLOATS or not tensor.is_contiguous():
            continue
        found.append(tensor.view(-1)[:left // tensor.element_size()])
        left -= found[-1].nbytes
        if left < tensor.element_size():
            break
    return found


def _measured(run: Callable[[], Any], kind: Device, parameters: Sequence[torch.Tensor]) -> Cost:
    results: list[int] = []

    def watched() -> Any:
        made = run()
        results[:] = [one.untyped_storage().nbytes() if isinstance(one, torch.Tensor) else 0
                      for one in (made if isinstance(made, (list, tuple)) else [made])]
        return made

    began = time.perf_counter()
    peak = kind.peak_of(watched)
    # On an accelerator, measuring memory takes two runs and synchronizes, so its time does not count.
    samples = [time.perf_counter() - began] if kind.is_processor else []
    while len(samples) < _LEAST or (sum(samples) < _SECONDS and len(samples) < _MOST):
        if samples and samples[-1] < _SECONDS:
            for parameter in parameters:
                parameter.sum()
        samples += kind.seconds(run)
    return Cost(max(round(min(samples), 9), 1e-9), peak, tuple(results))
