"""The backend of `torch.compile`: turns what Dynamo captured into a step that runs within a budget.

Invariant: a graph is captured raw, without decompositions, so that its operators are those that PyTorch would run; the
planner makes the partition, and the plan's functions are what runs.
"""

from __future__ import annotations

import functools
import re
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from ..batch import listed
from ..errors import CompileError
from ..notices import noticed
from .admission import unsharded
from .budget import Budget
from .dividing import WHOLE
from .dynamo import admit
from .execution import Step
from .instance import is_symbolic
from .joint import Argument, Joint, is_tensor, path
from .ledger import Ledger
from .masks import leave_out
from .settings import Placement, Settings, device_of
from .traced import captured
from .varying import Varying


# Number of captures of batches of the same shapes after which a warning is given: training, evaluation, no gradients,
# with and without autocast are fewer.
_OFTEN = 8


class Backend:
    """Makes a step of each graph that Dynamo captures of a model, or one for each set of sizes, and owns them all: the
    objects that Dynamo and AOTAutograd keep until they are reset refer to the backend and its steps weakly.

    `model` is given if known: its tensors that a graph does not use count too. `step` constructs the steps.
    """

    def __init__(self, settings: Settings, budget: Budget, model: nn.Module | None, name: str, *,
                 step: Callable[..., Step] = Step) -> None:
        self.settings = settings
        self.name = name
        self.step = step
        # A weak reference, since the model refers to its backend and has to die when the user releases it.
        self._model = None if model is None else weakref.ref(model, lambda _: ledger.forget())
        budget.members.admit(has_addresses=settings.placement is Placement.ADDRESSES)
        self.ledger = ledger = Ledger(budget, self._model)
        self.runs: list[Step | Varying] = []
        self.kinds: Counter[Any] = Counter()
        # The lengths of the model's lists and tables when the first batch of a kind was captured.
        self.lengths: dict[str, int] = {}

    @property
    def entry(self) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        """The callable that `torch.compile` gets as its backend."""
        own = weakref.ref(self)
        return lambda module, examples: own()(module, examples)

    def __call__(self, module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        """Compiles one graph, as `torch.compile` requires of a backend."""
        if self.settings.placement is Placement.INDUCTOR and any(map(is_symbolic, examples)):
            raise CompileError("torch.compile made a size of the batch symbolic, and with fused=True a plan is for one shape; "
                               "give dynamic=False to torch.compile, call torch._dynamo.reset() if the model was compiled "
                               "without it before, and mark no dimension as dynamic")
        admit(module)
        leave_out(module)
        if self.model is not None:
            unsharded(self.model, "tightfit.compile")
        arguments = [_argument(node, example) for node, example in
                     zip(module.graph.find_nodes(op="placeholder"), examples, strict=True)]
        self._count(examples)
        detached = [] if self.settings.differentiable_outputs else _detach_all_but_losses(module)
        tensors = [item for item in examples if isinstance(item, torch.Tensor)]
        self.ledger.device = device = device_of(tensors)
        outside = _outside(self.model, tensors, device)
        batch = [example.shape for example, argument in zip(examples, arguments, strict=True)
                 if argument.phase == "input" and isinstance(example, torch.Tensor)]
        # Loops call `backward` outside of autocast, where eager's backward pass makes no automatic casts.
        with torch._functorch.config.patch(backward_pass_autocast="off"), captured(), \
                noticed(f"capturing {self.name} on a batch of {listed(batch)}"):
            if self.settings.placement is Placement.INDUCTOR:
                from .fused import fused  # it loads Inductor

                run = fused(self, module, examples, arguments, device, *outside)
            else:
                compilation = _Compilation(self, arguments, device, *outside)
                run = self._noted(aot_autograd(
                    fw_compiler=compilation.forward, bw_compiler=compilation.backward,
                    partition_fn=compilation.partition, inference_compiler=compilation.inference, decompositions={},
                    keep_inference_input_mutations=True,
                )(module, examples))
        return _with_guards(run, detached) if detached else run

    def _noted(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; the ledger notes what it returns."""
        own = weakref.ref(self.ledger)

        def noted(*arguments: Any) -> Any:
            ledger = own()
            ledger.entered = None
            results = run(*arguments)
            ledger.returned(results)
            return results

        return noted

    def _count(self, examples: Sequence[Any]) -> None:
        """Warns if one kind of batch is captured again and again."""
        kind = tuple((str(example.shape), example.dtype, example.requires_grad) for example in examples
                     if isinstance(example, torch.Tensor))
        self.kinds[kind] += 1
        if self.kinds[kind] == 1:
            self.lengths = _lengths(self.model)
        if self.kinds[kind] == _OFTEN:
            grown = [name for name, length in _lengths(self.model).items() if length > self.lengths.get(name, length)]
            reason = (f"{grown[0]!r} of the model grows in its forward, and PyTorch's compiler takes its length for a constant. Append "
                      "to it outside of the forward, or keep a fixed number of entries" if grown else
                      "its forward reads a number that changes from call to call (an argument, an attribute, a schedule). Make it "
                      "a tensor")
            warnings.warn(f"{self.name} was captured and planned {_OFTEN} times for batches of the same shapes: {reason}", stacklevel=2)

    @property
    def model(self) -> nn.Module | None:
        """The model, if it is known."""
        return None if self._model is None else self._model()

    @property
    def steps(self) -> list[Step]:
        """The steps of all graphs, one for each set of sizes."""
        return [step for run in self.runs for step in (run.steps.values() if isinstance(run, Varying) else [run])]

    @property
    def calls(self) -> int:
        """Number of forward passes that its steps have run."""
        return sum(run.calls for run in self.runs)


class _Compilation:
    """The callbacks for AOTAutograd's compilation of one graph; AOTAutograd keeps this object."""

    def __init__(self, backend: Backend, arguments: list[Argument], device: torch.device, outside: int,
                 outside_parameters: Sequence[Any]) -> None:
        self._backend = weakref.ref(backend)
        self._run: weakref.ref[Step | Varying] | None = None
        self.arguments = arguments
        self.device = device
        self.outside = outside
        self.outside_parameters = outside_parameters

    @property
    def run(self) -> Step | Varying:
        """What runs the graph: a step, or one for each set of sizes."""
        return self._run()

    def partition(self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int,
                  **_: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward pass as AOTAutograd sees them: one token passes between them."""
        self._made(joint, num_fwd_outputs)
        return _stand_ins(self.run.joint)

    def forward(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """The function that runs the forward pass."""
        # No saved tensor may be donated to the backward pass: they are the plan's, and may be needed twice.
        metadata = TracingContext.get().fw_metadata
        if metadata is not None:
            metadata.bw_donated_idxs = []
        return _boxed(self.run.forward)

    def backward(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """The function that runs the backward pass."""
        return _boxed(self.run.backward)

    def inference(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """The function that runs a graph in which nothing is differentiated."""
        [output] = module.graph.find_nodes(op="output")
        self._made(module, len(output.args[0]))
        return _boxed(self.run.forward)

    def _made(self, module: fx.GraphModule, outputs: int) -> None:
        backend = self._backend()
        step = functools.partial(backend.step, settings=backend.settings, ledger=backend.ledger, device=self.device, name=backend.name,
                                 outside=self.outside, outside_parameters=self.outside_parameters)
        varies = any(is_symbolic(node.meta.get("val")) for node in module.graph.find_nodes(op="placeholder"))
        run = self._varying(module, outputs, step) if varies else step(Joint.of(module, self.arguments, outputs))
        backend.runs.append(run)
        self._run = weakref.ref(run)

    def _varying(self, module: fx.GraphModule, outputs: int, step: Callable[[Joint], Step]) -> Varying:
        settings = self._backend().settings
        # Planned addresses are those of one set of sizes, and so are chunks.
        is_shared = settings.placement is not Placement.ADDRESSES and WHOLE in settings.ways and \
            getattr(self._backend().step, "runs_smaller", True)
        return Varying(module, self.arguments, outputs, step, self._backend().ledger.budget, is_shared=is_shared)


def _lengths(model: nn.Module | None) -> dict[str, int]:
    """The lengths of the lists, tables and sets that the modules of a model keep, by name."""
    return {f"{prefix}.{name}" if prefix else name: len(item)
            for prefix, module in ([] if model is None else model.named_modules())
            for name, item in vars(module).items() if isinstance(item, (list, dict, set)) and not name.startswith("_")}


def _boxed(method: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    run = weakref.WeakMethod(method)

    def boxed(arguments: list[Any]) -> list[Any]:
        return run()(arguments)

    boxed._boxed_call = True
    return boxed


def _argument(node: fx.Node, example: Any) -> Argument:
    source = node.meta["grapharg"].source.name if node.meta.get("grapharg") is not None else ""
    source = source() if callable(source) else source
    return Argument(path(source) or _local(source) or node.name, isinstance(example, nn.Parameter), "_buffers[" in source)


def _local(source: str) -> str:
    """The name of an argument of the forward in a source such as `L['x']`."""
    found = re.fullmatch(r"L\[['\"](\w+)['\"]\]", source)
    return found[1] if found else ""


def _outside(model: nn.Module | None, examples: list[torch.Tensor], device: torch.device) -> tuple[int, list[Any]]:
    """Bytes of a model's tensors on a device that are not among the examples, and references to the parameters."""
    if model is None:
        return 0, []
    seen = {tensor.untyped_storage()._cdata for tensor in examples}
    outside, parameters = 0, []
    for tensor in [*model.parameters(), *model.buffers()]:
        storage = tensor.untyped_storage()
        if tensor.device == device and storage._cdata not in seen:
            seen.add(storage._cdata)
            outside += storage.nbytes()
            if isinstance(tensor, nn.Parameter):
                parameters.append(weakref.ref(tensor))
    return outside, parameters


def _stand_ins(joint: Joint) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Two graphs with the arguments and results of the two passes, but no computation."""
    forward, backward = fx.Graph(), fx.Graph()
    given: dict[fx.Node, fx.Node] = {}
    for primal in joint.primals:
        given[primal] = _like(forward.placeholder(str(primal.target)), primal)
    token = _empty(forward, joint)
    results = [_result(forward, output, given) for output in joint.outputs]
    forward.output((*results, token))
    saved = backward.placeholder("token")
    saved.meta.update(token.meta)
    for tangent in joint.tangents:
        given[tangent] = _like(backward.placeholder(str(tangent.target)), tangent)
    backward.output(tuple(_result(backward, gradient, given) for gradient in joint.gradients))
    return fx.GraphModule({}, forward), fx.GraphModule({}, backward)


def _like(node: fx.Node, other: fx.Node) -> fx.Node:
    node.meta.update(other.meta)
    return node


def _empty(graph: fx.Graph, joint: Joint) -> fx.Node:
    node = graph.call_function(torch.ops.aten.empty.memory_format, ([0],), {"device": "cpu"})
    mode = next(primal.meta["val"].fake_mode for primal in joint.primals if is_tensor(primal))
    with mode:
        node.meta["val"] = torch.empty(0)
    return node


def _result(graph: fx.Graph, result: Any, given: dict[fx.Node, fx.Node]) -> Any:
    if not isinstance(result, fx.Node):
        return result
    if result in given and given[result].graph is graph:
        return given[result]
    return _like(graph.call_function(torch.ops.aten.empty.memory_format, ([0],)), result)


def _detach_all_but_losses(module: fx.GraphModule) -> list[int]:
    """Detaches the outputs that a loss was computed from: a number that has a gradient. Other outputs may be for a loss
    outside of the model, and stay. Returns the indices of the detached ones."""
    [output] = module.graph.find_nodes(op="output")
    results = list(output.args[0])
    differentiable = {index: result for index, result in enumerate(results) if _requires_grad(result)}
    losses = [result for result in differentiable.values() if result.meta["example_value"].dim() == 0]
    behind = _behind(losses)
    others = {index: result for index, result in differentiable.items() if result in behind}
    if not others:
        return []
    with module.graph.inserting_before(output):
        for index, result in others.items():
            detached = module.graph.call_method("detach", (result,))
            detached.meta.update(result.meta)
            detached.meta["example_value"] = result.meta["example_value"].detach()
            results[index] = detached
    output.args = (tuple(results),)
    module.recompile()
    return list(others)


def _behind(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes from which these nodes were computed."""
    found: set[fx.Node] = set()
    ahead = list(nodes)
    while ahead:
        for source in ahead.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                ahead.append(source)
    return found


def _requires_grad(result: Any) -> bool:
    value = result.meta.get("example_value") if isinstance(result, fx.Node) and result.op != "placeholder" else None
    return isinstance(value, torch.Tensor) and value.requires_grad


def _with_guards(run: Callable[..., Any], detached: list[int]) -> Callable[..., Any]:
    def guarded(*arguments: Any) -> Any:
        results = list(run(*arguments))
        if torch.is_grad_enabled():
            for index in detached:
                results[index] = _NotTheLoss.apply(results[index], _anchor())
        return tuple(results)

    return guarded


def _anchor() -> torch.Tensor:
    return torch.empty(0, requires_grad=True)


class _NotTheLoss(torch.autograd.Function):
    """An output that was detached: differentiating it raises an error that says so."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise CompileError(
            "a loss was computed from an output that has no gradient: this model returns a loss, so the outputs that it was "
            "computed from were detached, which saves the memory of their gradients; give differentiable_outputs=True to tightfit.compile to "
            "train through them"
        )


