"""Plans run by Inductor: the plan decides what is saved and what is recomputed, and Inductor fuses the rest.

Invariant: gradients are PyTorch's own up to the rounding of fused kernels. The peak is not guaranteed: fused calls hold
less than those that were planned, and Inductor orders them itself; so the first steps are measured, the figure is
reported, and a warning says once if it exceeds the budget.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.multiprocessing.reductions import StorageWeakRef

from ..devices import kind_of
from ..errors import InfeasibleBudget
from ..nodes import draws, is_call
from . import roles
from .costs import costed
from .execution import Plan, Step
from .joint import BARRIER, Argument, Joint, following
from .planned import held

# Number of steps of each graph that are measured.
_MEASURED = 3

# How Inductor compiles one pass. The partition is already made. Passes are not cached on disk: the key of a cached pass
# does not say which saved tensors it may overwrite, so a backward pass that was compiled to run once could be used
# where it runs again. Kernels are cached by their source, as always.
_COMPILING = {"custom_partitioner_fn": None, "fx_graph_cache": False, "fx_graph_remote_cache": False}


def fused(backend: Any, module: fx.GraphModule, examples: Sequence[Any], arguments: Sequence[Argument],
          device: torch.device, outside: int, outside_parameters: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured with Inductor, using the partition of a plan."""
    partitioner = _Partitioner(backend, arguments, device, outside, outside_parameters)
    # The disk cache of whole compilations does not take the plan into account.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_fx(module, examples, inner_compile=partitioner.compile,
                          config_patches={"custom_partitioner_fn": partitioner})


class FusedStep(Step):
    """A captured graph with its plan, run by Inductor's kernels."""

    nests = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.measured_peak: int | None = None
        self._warned = False
        self._steps = 0
        # Bytes that are held for the whole step, and the storages that the forward pass made.
        self._static = 0
        self._made: list[tuple[StorageWeakRef, int]] = []

    def _planned(self, accumulated: frozenset[int], holds: bool, room: int | None, beside: int,
                 arguments: Sequence[Any], depth: int = 0, grown: int = 0) -> Plan:
        parameters = (one for one in arguments if isinstance(one, torch.nn.Parameter))
        found = costed(self._graph(accumulated, holds, arguments), self.device, parameters=parameters)
        self.refused = found.refused
        self.measuring = max(self.measuring, found.most)
        search = functools.partial(held, found.document, planner=self.settings.planner)
        try:
            plan = search(None if room is None else max(room, 0), self.settings.deadline)
        except InfeasibleBudget:
            # No proof: fused, the same calls hold less.
            plan = search(None, self.settings.deadline)
        return Plan(plan, None, accumulated, holds, beside, budget=self.budget)

    def run_forward(self, run: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """The forward pass: its first calls are measured."""
        self.calls += 1
        if self._steps >= _MEASURED:
            return run(arguments)
        given = _storages(arguments)
        self._static = self._there(arguments)
        results, peak = kind_of(self.device).course_of(lambda: run(arguments))
        self._made = [found for key, found in _storages(results).items() if key not in given]
        self._seen(peak, self._static)
        return results

    def run_backward(self, run: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """The backward pass, likewise."""
        if self._steps >= _MEASURED:
            return run(arguments)
        self._steps += 1
        before = self._static + sum(size for storage, size in self._made if not storage.expired())
        results, peak = kind_of(self.device).course_of(lambda: run(arguments))
        self._seen(peak, before)
        return results

    def _seen(self, peak: int | None, before: int) -> None:
        if peak is None:
            return
        is_whole = kind_of(self.device).statistics is not None
        self.measured_peak = max(self.measured_peak or 0, peak if is_whole else before + peak)
        budget = self.budget
        if budget is not None and self.measured_peak > budget and not self._warned:
            self._warned = True
            warnings.warn(
                f"a step of {self.name} held {self.measured_peak:,} bytes, {self.measured_peak - budget:,} more than "
                f"the budget of {budget:,}: with fused=True a budget is aimed at, not guaranteed. Give a smaller one, "
                "or leave fused=True out", RuntimeWarning, stacklevel=2,
            )


class _Inference:
    """Counts calls of a graph in which nothing is differentiated, and which has no plan."""

    def __init__(self) -> None:
        self.calls = 0
        self.made: list[Plan] = []


class _Partitioner(CustomPartitionerFn):
    """Splits the joint graph, after Inductor's own passes, by a plan."""

    def __init__(self, backend: Any, arguments: Sequence[Argument], device: torch.device, outside: int,
                 outside_parameters: Sequence[Any]) -> None:
        self.backend = backend
        self.arguments = list(arguments)
        self.device = device
        self.outside = outside, outside_parameters
        self.step: FusedStep | None = None

    def __deepcopy__(self, memo: Any) -> _Partitioner:
        return self

    def uuid(self) -> Any:
        """A name for Inductor's disk cache, which has no passes with a plan."""
        return "tightfit"

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], *, num_fwd_outputs: int,
                 static_lifetime_input_indices: Iterable[int] | None = None,
                 **_: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        backend = self.backend
        given = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
        # After Inductor's passes, the memory of results may differ from what their metadata says.
        FakeTensorProp(gm, detect_fake_mode(given)).propagate_dont_convert_inputs(*given)
        joint = Joint.of(gm, self.arguments, num_fwd_outputs)
        self.step = step = FusedStep(joint, backend.settings, backend.ledger, self.device, backend.name, *self.outside)
        backend.runs.append(step)
        plan = step.plan(frozenset(), step._others(None, [], []), ())
        more: dict[str, Any] = {}
        if "static_lifetime_input_nodes" in inspect.signature(partitioners._extract_fwd_bwd_modules).parameters:
            more["static_lifetime_input_nodes"] = type(partitioners.OrderedSet())(
                joint.primals[index] for index in static_lifetime_input_indices or ())
        forward, backward = partitioners._extract_fwd_bwd_modules(
            gm, saved(joint, plan.held.document), [], num_fwd_outputs=num_fwd_outputs, **more)
        return forward, partitioners.reordering_to_mimic_autograd_engine(backward)

    def compile(self, gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        """Inductor's own compilation of one pass, whose calls are counted and measured."""
        with torch._inductor.config.patch(_COMPILING):
            made = compile_fx_inner(gm, inputs, **options)
        run, step = made.current_callable, self.step
        if options.get("is_backward"):
            made.current_callable = lambda arguments: step.run_backward(run, arguments)
        elif step is not None:
            made.current_callable = lambda arguments: step.run_forward(run, arguments)
        else:
            inference = _Inference()
            self.backend.runs.append(inference)

            def counted(arguments: list[Any]) -> Any:
                inference.calls += 1
                return run(arguments)

            made.current_callable = counted
        return made


def saved(joint: Joint, document: Mapping[str, Any]) -> list[fx.Node]:
    """The nodes of a joint graph that a plan saves for the backward pass, and what else that pass needs.

    Random numbers are saved whatever the plan says: Inductor does not draw them again.
    """
    graph = joint.module.graph
    kept = _kept(document, {node.name: node for node in graph.nodes})
    follows = set(following(graph, joint.tangents))
    found: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    waiting = [source for node in graph.nodes if node in follows for source in node.all_input_nodes
               if source not in follows]
    waiting += [gradient for gradient in joint.gradients if gradient is not None and gradient not in follows]
    while waiting:
        node = waiting.pop()
        if node in seen or node in joint.tangents or node.op == "get_attr":
            continue
        seen.add(node)
        call = node.args[0] if node.op == "call_function" and not is_call(node) else node
        is_random = is_call(call) and isinstance(call.target, torch._ops.OpOverload) and draws(call)
        is_one = not isinstance(node.meta.get("val"), (tuple, list))
        if node.op == "placeholder" or (is_one and (node in kept or is_random)):
            found[node] = None
        else:
            waiting += node.all_input_nodes
    order = {node: index for index, node in enumerate(graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _kept(document: Mapping[str, Any], named: Mapping[str, fx.Node]) -> set[fx.Node]:
    """The nodes that the forward pass of a planned graph leaves for the backward pass."""
    nodes = document["nodes"]
    barrier = next(index for index, node in enumerate(nodes) if node["op"] == BARRIER)
    read = {value for node in nodes[barrier + 1:] for value in node.get("inputs", [])}
    read |= set(roles.results(document).values())
    found = set()
    for node in nodes[:barrier]:
        source = named.get(node.get("recomputes", node["name"]))
        if source is None or not is_call(source):
            continue
        for index, output in enumerate(node["outputs"]):
            if output is not None and output["id"] in read:
                several = isinstance(source.meta.get("val"), (tuple, list))
                found |= {user for user in source.users if user.args[1] == index} if several else {source}
    return found


def _storages(items: Iterable[Any]) -> dict[int, tuple[StorageWeakRef, int]]:
    found = {}
    for item in items:
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            found[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
    return found
