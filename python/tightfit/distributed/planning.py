"""Plans how a model runs on several devices: `tightfit.distributed.plan`.

Invariant: cut, order and recomputation are the compiled planner's; here they are only requested and applied.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.utils import _pytree as pytree

from .. import _native
from ..errors import OptionError, PlanError, TightfitError
from ..given import asked, path
from ..training.admission import as_built
from ..training.optimizer_state import state_bytes
from ..training.joint import BARRIER
from ..training.studying import capture_step
from .cutting import Entry, add_evaluation, cut
from .running import Pipeline, stages_of, undividable

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FORMAT = "tightfit-stages/1"
# Schedules whose backward passes are not split in two.
_UNDIVIDED = ["1f1b", "interleaved", "gpipe"]


@dataclass(frozen=True)
class StagePlan:
    """How a model is cut into stages, where they lie, in which order they run and what they recompute.

    `placement` has the rank of each stage, `recomputed` says for each stage which of its layers are recomputed,
    `begins` has the calls of modules with which layers begin, and `csv` the order as `torch.distributed.pipelining`
    reads it. `document` is the whole of it, as `tightfit stages --emit torch` writes it.
    """

    document: dict[str, Any]

    @staticmethod
    def read(source: str | os.PathLike[str] | Mapping[str, Any]) -> StagePlan:
        """A plan that `tightfit stages --emit torch -o FILE` wrote. Raises `PlanError` if it is not one."""
        file = None if isinstance(source, Mapping) else path(source, "source")
        try:
            document = dict(source) if file is None else json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise PlanError(f"{source} holds no plan ({error}); `tightfit stages --emit torch -o FILE` writes one") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise PlanError(f"this is no {FORMAT}; `tightfit stages --emit torch -o FILE` writes one")
        return StagePlan(document)

    @property
    def schedule(self) -> str:
        return self.document["schedule"]

    @property
    def microbatches(self) -> int:
        return self.document["micro_batches"]

    @property
    def csv(self) -> str:
        return self.document["csv"]

    @property
    def placement(self) -> list[int]:
        return [stage["rank"] for stage in self.document["stages"]]

    @property
    def ranks(self) -> int:
        return max(self.placement) + 1

    @property
    def recomputed(self) -> list[list[bool]]:
        return [[layer["recomputed"] for layer in stage["layers"]] for stage in self.document["stages"]]

    @property
    def begins(self) -> list[Entry]:
        """The calls with which layers begin, but for the first layer, which begins with the model."""
        layers = [layer for stage in self.document["stages"] for layer in stage["layers"]]
        return [Entry(layer["begins"]["module"], layer["begins"]["call"]) for layer in layers[1:]]

    def apply(self, model: nn.Module, inputs: Any, loss_fn: Callable[..., torch.Tensor], *,
              mesh: DeviceMesh | None = None) -> Pipeline:
        """This rank's part of `model`, ready to run in the default process group, or in `mesh`, whose dimension `"pp"`
        has the ranks of the pipeline and whose dimension `"dp"`, if it has one, those over which FSDP2 shards
        parameters.

        All ranks call this with models of the same weights. `inputs` are those of a micro-batch, a tensor or a tuple of
        positional arguments; only their shapes matter. Raises `ExportError` if the model is not the one planned for.
        """
        arguments = _positional(inputs)
        whole = cut(model, arguments, self.begins)
        add_evaluation(whole, model, arguments, self.begins)
        return Pipeline(self, whole, loss_fn, mesh)

    def __str__(self) -> str:
        lines = [
            f"{self.schedule}: {self.microbatches} micro-batches on {self.ranks} ranks, "
            f"{self.document['step_seconds'] * 1e3:.1f} ms an update predicted"
        ]
        for stage in self.document["stages"]:
            number, layers = stage["stage"], stage["layers"]
            again = sum(layer["recomputed"] for layer in layers)
            what = f"; {again} of {len(layers)} layers recomputed" if again else ""
            lines.append(f"  rank {stage['rank']}, stage {number}: {stage['span']}{what}")
        return "\n".join(lines)


def plan(model: nn.Module, batch: tuple[Any, Any], loss_fn: Callable[..., torch.Tensor], *, budget: int | str,
         microbatches: int, devices: int | None = None, mesh: DeviceMesh | None = None,
         optimizer: torch.optim.Optimizer | type | str | None = "adamw", schedule: str | None = None,
         balance: Sequence[int] | Sequence[str] | None = None,
         bandwidth: float | str | None = None, latency: float | str | None = None,
         machine: str | None = None) -> StagePlan:
    """Plans `model` as a pipeline on `devices`, or on the dimension `"pp"` of `mesh`: which layers are on which device,
    in which order each device performs the passes of the `microbatches` micro-batches of an update, and which layers
    are recomputed, so that an update takes the least time and no device holds more than `budget` bytes.

    `batch` is a micro-batch: `(inputs, target)`, where `inputs` is a tensor or a tuple of the model's positional
    arguments, and `loss_fn(output, target)` is its mean loss. Operators are measured on the model's device, or
    predicted for `machine`, such as `"h100-80gb"`: then the model may be on the meta device. `bandwidth` (bytes per
    second, or text, `"50GB/s"`) and `latency` (seconds, or `"10us"`) are those of the link between two devices.
    `balance` says where to cut: how many children of an `nn.Sequential` each stage has, or, for any model, the names of
    the modules with whose first calls the stages after the first one begin. The optimizer's state counts, for all
    devices of the dimension `"dp"` together.

    If there is a process group, all of its ranks call this; the first one plans and sends the plan to the others, since
    no two measurements are alike. Raises `TightfitError` if no plan was found that fits, `CompileError` if the model
    cannot be captured.
    """
    as_built(model, "tightfit.distributed.plan")
    if not callable(loss_fn):
        raise OptionError(f"loss_fn={loss_fn!r} is no function of the model's output and the target; give one")
    sharded = 1
    if mesh is not None and not hasattr(mesh, "mesh_dim_names"):
        raise OptionError(f"mesh= is of type {type(mesh).__name__}; give a torch.distributed DeviceMesh with a dimension \"pp\"")
    if mesh is not None and mesh.mesh_dim_names is not None:
        devices = mesh["pp"].size() if devices is None else devices
        sharded = mesh["dp"].size() if "dp" in mesh.mesh_dim_names else 1
    is_group = distributed.is_available() and distributed.is_initialized()
    if devices is None and is_group:
        devices = distributed.get_world_size()
    if devices is None:
        raise OptionError("give devices=, or a mesh with a dimension \"pp\"")
    state = _state(model, optimizer) / sharded
    cuts = [] if balance is None else _cuts(model, balance)

    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise OptionError("a batch is a pair, (inputs, target)")
    inputs, target = batch
    _positional(inputs)
    _of_rows(target, "target")

    def planned() -> dict[str, Any]:
        captured = _capture(model, batch, loss_fn, measure=machine is None)

        def ask(order: str | None) -> str:
            return asked(_native.stages, captured, budget, schedule=order, cut=cuts, devices=devices, microbatches=microbatches,
                                  bandwidth=bandwidth, latency=latency, state=state, machine=machine)

        return _fastest(ask, model, inputs, schedule)

    return StagePlan.read(_by_the_first(planned) if is_group else planned())


def _cuts(model: nn.Module, balance: Sequence[int] | Sequence[str]) -> list[str]:
    """The names of the modules with which the stages after the first one begin."""
    if isinstance(balance, str) or not isinstance(balance, Sequence) or not balance:
        raise OptionError(f"balance= is a list of numbers or of names, at least one, and not {balance!r}")
    if all(isinstance(name, str) for name in balance):
        return [str(name) for name in balance]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in balance):
        raise OptionError(f"balance= is how many children each stage has, at least one, or names of modules, and not {balance!r}")
    if not isinstance(model, nn.Sequential):
        raise OptionError(f"{type(model).__name__} is no nn.Sequential, whose children balance={list(balance)} would count; name the "
                          "modules with which stages begin")
    counts, children = [int(count) for count in balance], list(model._modules)
    if sum(counts) != len(children):
        raise OptionError(f"balance={counts} counts {sum(counts)} children, and the model has {len(children)}")
    return [children[first] for first in itertools.accumulate(counts[:-1])]


def _by_the_first(planned: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The first rank's plan or refusal, on all ranks."""
    told: list[Any] = [None, None]
    if distributed.get_rank() == 0:
        try:
            told[0] = planned()
        except TightfitError as error:
            told[1] = error
        except Exception as error:
            # The others would wait forever.
            told[1] = PlanError(f"the first rank could not plan: {type(error).__name__}: {error}")
            distributed.broadcast_object_list(told)
            raise
    distributed.broadcast_object_list(told)
    document, refused = told
    if refused is not None:
        raise refused
    return document


def _capture(model: nn.Module, batch: tuple[Any, Any], loss_fn: Callable[..., torch.Tensor], *, measure: bool) -> bytes:
    inputs, target = batch
    captured = capture_step(_WithLoss(model, loss_fn), (*_positional(inputs), target), measure=measure)
    return json.dumps(_of_model(captured)).encode()


def _fastest(ask: Callable[[str | None], str], model: nn.Module, inputs: Any, schedule: str | None) -> dict[str, Any]:
    """The fastest plan in the requested order, or in any that PyTorch can run."""
    document: dict[str, Any] = json.loads(ask(schedule))
    plan = StagePlan.read(document)
    if "W" not in plan.csv:
        return document
    reason = undividable(plan, stages_of(plan, cut(model, _positional(inputs), plan.begins)))
    if reason is None:
        return document
    if schedule is not None:
        raise OptionError(reason)
    found: list[dict[str, Any]] = []
    refused: TightfitError | None = None
    for order in _UNDIVIDED:
        try:
            found.append(json.loads(ask(order)))
        except TightfitError as error:
            refused = refused or error
    if refused is not None and not found:
        raise refused
    return min(found, key=lambda document: document["step_seconds"])


class _WithLoss(nn.Module):
    """A model whose output is the loss."""

    def __init__(self, model: nn.Module, loss_fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, *arguments: Any) -> torch.Tensor:
        *inputs, target = arguments
        return self.loss_fn(self.model(*inputs), target)


def _of_model(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph with the names that modules have in the model itself, and with only gradients as its outputs: whatever
    else a loop keeps is outside the pipeline. What only the backward pass reads is computed there, as in autograd."""
    def own(name: str) -> str:
        return "" if name == "model" else name.removeprefix("model.")

    names = list(map(own, graph["modules"]))
    modules = list(dict.fromkeys(names))
    number = [modules.index(name) for name in names]
    nodes = [{**node, "module": number[node["module"]]} if "module" in node else node for node in graph["nodes"]]
    _settle_passes(nodes)
    gradients = {
        output["id"]
        for node in nodes if node["phase"] == "backward"
        for output in node["outputs"] if output is not None
    }
    outputs = [output for output in graph["outputs"] if output in gradients]
    found = {**graph, "modules": modules, "nodes": nodes, "outputs": outputs}
    found.pop("output_names", None)
    if "uncalled" in graph:
        found["uncalled"] = [name for name in map(own, graph["uncalled"]) if name not in modules]
    return found


def _settle_passes(nodes: list[dict[str, Any]]) -> None:
    """Leaves in the forward pass only what its results and its writes need. The backward pass begins with the loss:
    stages that write statistics do not wait for one another."""
    needed: set[int] = set()
    for index, node in reversed(list(enumerate(nodes))):
        if node["op"] == BARRIER:
            results, _ = node["args"]
            inputs = [result["value"] for result in results if result is not None]
            nodes[index] = {**node, "inputs": inputs, "args": [results, []]}
            needed.update(inputs)
        elif node["phase"] == "forward":
            made = {output["id"] for output in node["outputs"] if output is not None}
            if node.get("mutates") or made & needed:
                needed.update(node["inputs"])
            else:
                nodes[index] = {**node, "phase": "backward"}


def _positional(inputs: Any) -> tuple[Any, ...]:
    if isinstance(inputs, Mapping):
        raise OptionError("the stages of a pipeline take positional arguments: give a tensor or a tuple, not a dict")
    _of_rows(inputs, "inputs")
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _of_rows(values: Any, what: str) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise OptionError(f"the batch's {what} hold no tensor, only {type(values).__name__}; give tensors, whose rows are divided")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise OptionError("micro-batches are rows of a batch, and one of its tensors has no dimension")


def _state(model: nn.Module, optimizer: Any) -> float:
    """Average bytes per element of a parameter, with its gradient and optimizer state if it is trained."""
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    kept = 0 if optimizer is None else state_bytes(optimizer, trained)
    held = sum(parameter.nbytes for parameter in parameters) + sum(parameter.nbytes for parameter in trained) + kept
    return held / max(sum(parameter.numel() for parameter in parameters), 1)
