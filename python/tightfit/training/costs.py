"""What each call of a step costs on the device that runs it: seconds, and the bytes that it holds meanwhile.

Invariant: one call's tensors are alive at a time; equal calls (operator, constants, types, shapes, strides) are run once;
what was measured on a device by one version of PyTorch with one number of threads is kept in a file for the next start.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import cache
from ..calls import TORCH_DTYPES
from ..graph import producer
from ..measure import Call, prepared, takes_time, undisturbed, values_of
from . import addresses

# A call runs until it has taken this many seconds, at least and at most so often, and once before that counts.
_SECONDS, _LEAST, _MOST = 0.004, 2, 12


@dataclass(frozen=True)
class Cost:
    """Seconds of a call, and the most bytes that it holds beyond its inputs, results included."""

    seconds: float
    peak: int


@dataclass(frozen=True)
class Costed:
    """A graph with seconds and workspaces, and the calls that could not be run, by node."""

    document: dict[str, Any]
    refused: dict[str, str]


def costed(document: dict[str, Any], device: torch.device, arguments: Sequence[Any] = ()) -> Costed:
    """The graph with the seconds and the workspace of each call that runs, as measured on `device`.

    `arguments` are the step's own, where they are there: calls that only read parameters or buffers are measured with
    those, and not with copies, for which a tight budget has no room.

    A call that cannot be run on made-up inputs keeps the workspace that the graph records, and has no seconds.
    """
    values, storages = values_of(document), document["storages"]
    known, refused = _Known(device), {}
    there = _static(document, arguments)
    nodes = []
    with undisturbed(device):
        for node in document["nodes"]:
            if takes_time(node, values) and not node["op"].startswith("tightfit."):
                call = Call.of(node, values)
                results = sum(storages[storage] for storage in call.fresh)
                mine = {} if node.get("mutates") else _read(node, values, there)
                cost = known.of(call, results, mine)
                if isinstance(cost, str):
                    refused[node["name"]] = cost
                else:
                    workspace = max(cost.peak - results, 0)
                    node = {key: item for key, item in node.items() if key != "workspace"} | {"seconds": cost.seconds}
                    node |= {"workspace": workspace} if workspace else {}
            nodes.append(node)
    known.keep()
    return Costed(document | {"nodes": nodes}, refused)


def _static(document: dict[str, Any], arguments: Sequence[Any]) -> dict[int, torch.Tensor]:
    """By storage, the parameters and buffers among the arguments."""
    found = {}
    for node in document["nodes"]:
        is_static = node["op"] == "placeholder" and node["phase"] in ("parameter", "buffer")
        if is_static and node["name"].startswith("argument_"):
            index = int(node["name"].removeprefix("argument_"))
            if index < len(arguments):
                found[node["outputs"][0]["storage"]] = arguments[index].detach()
    return found


def _read(node: Mapping[str, Any], values: Mapping[int, Any],
          there: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The inputs of a call, by position, that lie in tensors which are there."""
    found = {}
    for position, value in ((position, values[value]) for position, value in enumerate(node["inputs"])):
        tensor = there.get(value.storage)
        if tensor is not None and tensor.dtype == TORCH_DTYPES[value.dtype]:
            found[position] = tensor.as_strided(value.shape, value.strides, value.offset)
    return found


class _Known:
    """Costs by call, read from the file of a device and written back."""

    def __init__(self, device: torch.device) -> None:
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {torch.get_num_threads()}"
        self.device = device
        self.name = "costs/" + re.sub(r"[^\w.]+", "-", f"{producer()} {kind}") + ".json"
        self.costs: dict[str, Cost] = {}
        self.refused: dict[str, str] = {}
        self.is_new = False
        try:
            found = json.loads(cache.read(self.name) or "{}")
            self.costs = {key: Cost(float(seconds), int(peak)) for key, (seconds, peak) in found.items()}
        except (ValueError, TypeError, AttributeError):
            pass  # a file that was damaged is written anew

    def of(self, call: Call, results: int, there: Mapping[int, torch.Tensor]) -> Cost | str:
        """The cost of a call with so many bytes of results, or why it cannot be measured; `there` are inputs that need
        not be made."""
        key = call.key
        if key not in self.costs and key not in self.refused:
            try:
                cost = _measured(prepared(call, self.device, there), self.device)
                if cost.peak == 0 and results > 0:
                    raise LookupError("the allocator in use does not tell PyTorch's profiler what it hands out")
                self.costs[key] = cost
                self.is_new = True
            except Exception as error:  # whatever an operator makes of made-up inputs
                first = (str(error).strip().splitlines() or [""])[0][:120]
                self.refused[key] = f"{type(error).__name__}: {first}"
        return self.costs.get(key) or self.refused[key]

    def keep(self) -> None:
        """Writes what is known to the file."""
        if self.is_new:
            cache.keep(self.name, json.dumps({key: [cost.seconds, cost.peak] for key, cost in self.costs.items()}))


def _measured(run: Callable[[], Any], device: torch.device) -> Cost:
    peak = peak_of(run, device)
    samples: list[float] = []
    while len(samples) < _LEAST or (sum(samples) < _SECONDS and len(samples) < _MOST):
        samples.append(_seconds(run, device))
    return Cost(max(round(min(samples), 9), 1e-9), peak)


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    run()
    ended.record()
    torch.cuda.synchronize(device)
    return began.elapsed_time(ended) / 1e3


def peak_of(run: Callable[[], Any], device: torch.device) -> int:
    """The most bytes that a call takes of PyTorch's allocator at once, results included.

    On processors PyTorch's light profiler reports every allocation of the calling thread; on CUDA the allocator keeps
    the figure, in its own units.
    """
    if device.type == "cuda":
        if (peak := addresses.peak_of(run, device)) is not None:
            return peak
        run()
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    profiler = torch._C._profiler
    config = profiler.ProfilerConfig(profiler.ProfilerState.CPU, False, True, False, False, False,
                                     profiler._ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        run()
    finally:
        threads = torch._C._autograd._disable_profiler_legacy()
    held = peak = 0
    for event in (event for thread in threads for event in thread):
        if event.kind() == "memory_alloc":
            held += event.cpu_memory_usage()
            peak = max(peak, held)
    return peak


