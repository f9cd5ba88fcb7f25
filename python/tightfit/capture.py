"""Captures a model and its loss as one ATen graph, with the module each node came from.

Invariant: the captured graph is functional except for `copy_` into buffers; every forward and loss node carries the
fully qualified name of the module that ran it, and every backward node that of the forward node it differentiates.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from . import cuda_operators
from .batch import Shape, leaves, ordered
from .checkpointed import noticed
from .decompositions import decompositions
from .errors import ExportError
from .recurrent import composed

MODULE = "tightfit_module"
PHASE = "tightfit_phase"
DIFFERENTIATES = "tightfit_differentiates"

aten = torch.ops.aten

# The PyTorch settings that are switched while a model is traced belong to the whole process.
_one_at_a_time = threading.RLock()


@dataclass
class Capture:
    """One captured graph and what its placeholders and outputs are.

    `graph` holds call_function nodes with `meta["val"]`, `meta[MODULE]` and `meta[PHASE]`; a backward node's
    `meta[DIFFERENTIATES]` is the forward node whose derivative it computes, if PyTorch says so. `called` and `uncalled`
    are the model's modules, in the order of their first calls and in the model's order.
    """

    module: fx.GraphModule
    parameters: dict[str, fx.Node]
    buffers: dict[str, fx.Node]
    inputs: list[fx.Node]
    tangent: fx.Node | None
    loss: fx.Node
    prediction: fx.Node | None
    gradients: dict[str, fx.Node]
    called: list[str]
    uncalled: list[str]

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph


def capture(model: nn.Module, loss_fn: Callable[..., Any] | None, batch: tuple[Any, Any], *, training: bool,
            executable: bool = False, on_cuda: bool = False) -> Capture:
    """Captures forward, loss and (when `training`) backward of a batch of inputs and targets.

    A model in training mode keeps the modes of its modules for training (a frozen normalisation stays in evaluation
    mode); otherwise all of them follow `training`. The model's own modes are restored. `executable` rewrites calls that
    the engine has no kernel for, if other operators can express them. With `on_cuda` the operators are those that
    PyTorch runs on CUDA, whole, whatever the model's device. Raises `ExportError` when PyTorch cannot trace the model.
    """
    step = _Step(model, loss_fn, Shape(ordered(batch)), returns_prediction=not training)
    arguments = _fake_like(model, leaves(batch))
    with _one_at_a_time, contextlib.ExitStack() as stack:
        stack.enter_context(_mode(model, training))
        stack.enter_context(_scopes(step))
        stack.enter_context(_compiling())
        stack.enter_context(composed())
        stack.enter_context(noticed())
        if on_cuda:
            stack.enter_context(cuda_operators.chosen())
        stack.enter_context(torch.enable_grad() if training else torch.no_grad())
        try:
            joint = aot_export_joint_with_descriptors(
                stack, step, arguments, decompositions={} if on_cuda else decompositions(executable),
                keep_inference_input_mutations=True,
            )
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(
                f"PyTorch could not trace {type(model).__name__}: {type(error).__name__}: {error}; {_advice(error)}"
            ) from error
        module = joint.graph_module
    _finish_tags(module.graph)
    if on_cuda:
        cuda_operators.name_device(module.graph)
    return _describe(module, step, training)


def _advice(error: Exception) -> str:
    if "convert all Tensors to FakeTensors" in str(error) or "Unexpected fake buffer" in str(error):
        return (
            "it uses a tensor that is no parameter and no buffer of the model and not in the batch; register it with "
            "register_buffer, or pass it in the batch"
        )
    if "Disabling autocast" in str(error):
        return f"it uses autocast on cuda; {cuda_operators.AUTOCAST}"
    of_devices = ("NVIDIA driver", "not compiled with CUDA", "on the same device", "found two different devices")
    if any(words in str(error) for words in of_devices):
        return (
            "it names a device in its forward; let tensors be made where the others are, as in torch.zeros(n, "
            "device=x.device), and take calls of .cuda() out"
        )
    return "make the forward free of data-dependent control flow and check that the batch fits the model"


class _Step(nn.Module):
    """The model followed by its loss; the forward is `loss_fn(model(inputs), targets)`, or the model's own loss."""

    def __init__(self, model: nn.Module, loss_fn: Callable[..., Any] | None, shape: Shape, *,
                 returns_prediction: bool) -> None:
        super().__init__()
        self.model = model
        if isinstance(loss_fn, nn.Module):
            if any(True for _ in loss_fn.parameters()):
                raise ExportError("the loss function has parameters of its own; move them into the model")
            self.loss = loss_fn
        self.returns_prediction = returns_prediction
        self.shape = shape
        self.scopes = _Scopes()
        self._loss_fn = (loss_fn,)

    def forward(self, *flat: torch.Tensor) -> Any:
        inputs, targets = self.shape.filled(flat)
        if isinstance(inputs, dict):
            prediction = self.model(**inputs)
        elif isinstance(inputs, (tuple, list)):
            prediction = self.model(*inputs)
        else:
            prediction = self.model(inputs)
        self.scopes.flush()
        self.scopes.phase = "loss"
        loss_fn = self._loss_fn[0]
        loss = own_loss(prediction) if loss_fn is None else loss_fn(prediction, targets)
        self.scopes.flush()
        self.scopes.phase = "forward"
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.dim() != 0:
            found = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ExportError(f"the loss is {found}, not a scalar tensor; reduce it, for example with .mean()")
        if not loss.dtype.is_floating_point:
            raise ExportError(f"the loss has dtype {loss.dtype}; it must be a floating-point scalar")
        if not self.returns_prediction:
            return (loss,)
        if not isinstance(prediction, torch.Tensor):
            raise ExportError(
                f"the model returns {type(prediction).__name__}; an executable step needs one prediction tensor, so "
                "wrap the model in a module that returns it, for example model(tokens).logits"
            )
        return (loss, prediction)


class _Scopes:
    """Marks traced nodes with the module that is running; nodes made since the last mark belong to it."""

    def __init__(self) -> None:
        self.stack = [""]
        self.phase = "forward"
        self.called: dict[str, None] = {"": None}

    def flush(self) -> None:
        mode = get_proxy_mode()
        if mode is None:
            return
        for node in reversed(mode.tracer.graph.nodes):
            if MODULE in node.meta:
                break
            node.meta[MODULE] = self.stack[-1]
            node.meta[PHASE] = self.phase


@contextlib.contextmanager
def _scopes(step: _Step) -> Iterator[None]:
    scopes, handles = step.scopes, []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            scopes.flush()
            scopes.called[name] = None
            scopes.stack.append(name)

        return hook

    def leave(*_: Any) -> None:
        scopes.flush()
        scopes.stack.pop()

    try:
        for name, module in step.model.named_modules():
            if name:
                handles.append(module.register_forward_pre_hook(enter(name)))
                handles.append(module.register_forward_hook(leave, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    if not (training and model.training):
        model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Tells the model that it is traced, as `torch.compile` does: models then do not ask for tensors' contents."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def own_loss(output: Any) -> Any:
    """The loss that a model computes itself: what it returns, the first result, or the one called `loss`."""
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif isinstance(output, (tuple, list)) and not hasattr(output, "loss"):
        found = output[0] if output else None
    else:
        found = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if not isinstance(found, torch.Tensor):
        raise ExportError(
            f"the model returns {type(output).__name__} without a loss; give loss_fn=…, or the batch what the model "
            "computes its loss from, such as labels"
        )
    return found


def _fake_like(model: nn.Module, flat: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The batch in the model's fake mode, if the model was built in one."""
    for parameter in model.parameters():
        if isinstance(parameter, FakeTensor):
            mode = parameter.fake_mode
            return tuple(leaf if isinstance(leaf, FakeTensor) else mode.from_tensor(leaf) for leaf in flat)
    return tuple(flat)


def _finish_tags(graph: fx.Graph) -> None:
    """Links backward nodes to the forward node with the same autograd sequence number, and gives them its module.

    Several forward nodes share a number: the pieces into which an operator was decomposed, and later calls that
    autograd does not record. The operator is the first of them.
    """
    first: dict[int, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_function" and PHASE in node.meta and "seq_nr" in node.meta:
            first.setdefault(node.meta["seq_nr"], node)
    for node in graph.nodes:
        if node.op != "call_function" or PHASE in node.meta:
            continue
        if node.target is aten.copy_.default:
            node.meta[PHASE], node.meta[MODULE] = "forward", ""
        else:
            # A sum of gradients, which autograd makes between two operators, differentiates none of them.
            accumulates = node.meta.get("is_gradient_acc", False)
            operator = None if accumulates else first.get(node.meta.get("seq_nr"))
            node.meta[PHASE] = "backward"
            node.meta[MODULE] = "" if operator is None else operator.meta[MODULE]
            if operator is not None:
                node.meta[DIFFERENTIATES] = operator


def _canonical_names(step: _Step) -> dict[str, str]:
    """Names inside the step → the model's own; a tensor registered twice has its first name."""
    first: dict[int, str] = {}
    owner: dict[str, int] = {}
    names = {}
    for name, tensor in [*step.named_parameters(remove_duplicate=False), *step.named_buffers(remove_duplicate=False)]:
        names[name] = first.setdefault(id(tensor), name.removeprefix("model."))
        if owner.setdefault(names[name], id(tensor)) != id(tensor):
            raise ExportError(f"both the model and the loss have a tensor {names[name]!r}; rename the model's module")
    return names


def _describe(module: fx.GraphModule, step: _Step, training: bool) -> Capture:
    names = _canonical_names(step)
    parameters: dict[str, fx.Node] = {}
    buffers: dict[str, fx.Node] = {}
    inputs: list[fx.Node] = []
    tangent = None
    for node in module.graph.find_nodes(op="placeholder"):
        match node.meta["desc"]:
            case ParamAOTInput(target=target):
                _register(parameters, names[target], node)
            case BufferAOTInput(target=target):
                _register(buffers, names[target], node)
            case PlainAOTInput():
                inputs.append(node)
            case TangentAOTInput(output=PlainAOTOutput(idx=0)) if tangent is None:
                tangent = node
            case other:
                raise ExportError(f"the captured step has an input {other!r} that has no place in a training step")
    [output] = module.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    loss = prediction = None
    gradients: dict[str, fx.Node] = {}
    for result, description in zip(results, output.meta["desc"], strict=True):
        match description:
            case PlainAOTOutput(idx=0):
                loss = result
            case PlainAOTOutput(idx=1):
                prediction = result
            case GradAOTOutput(grad_of=ParamAOTInput(target=target)) if result is not None:
                name = names[target]
                gradients[name] = _sum(module.graph, gradients[name], result) if name in gradients else result
            case _ if result is None:
                pass
            case GradAOTOutput(grad_of=PlainAOTInput()):
                raise ExportError("an input tensor requires a gradient; pass batches that are detached")
            case other:
                raise ExportError(f"the captured step has an output {other!r} that has no place in a training step")
    if loss is None:
        raise ExportError("the captured step has no loss; the loss function must return a tensor computed from the model")
    if training and (tangent is None or not gradients):
        raise ExportError("no parameter receives a gradient; check requires_grad and that the loss depends on the model")
    output.args = ([loss, *([] if prediction is None else [prediction]), *gradients.values()],)
    called = step.scopes.called
    uncalled = [name for name, _ in step.model.named_modules() if name not in called]
    return Capture(module, parameters, buffers, inputs, tangent, loss, prediction, gradients, list(called), uncalled)


def _register(named: dict[str, fx.Node], name: str, node: fx.Node) -> None:
    """Names a placeholder; a second one for the same tensor (tied weights) is replaced by the first."""
    if name in named:
        node.replace_all_uses_with(named[name], delete_user_cb=lambda user: user.op != "output")
    else:
        named[name] = node


def _sum(graph: fx.Graph, first: fx.Node, second: fx.Node) -> fx.Node:
    """The sum of two gradients of one parameter, computed as soon as both exist."""
    later = max(first, second)
    earlier = first if later is second else second
    with graph.inserting_after(later):
        total = graph.call_function(aten.add.Tensor, (earlier, later))
    with torch.no_grad():
        value = earlier.meta["val"] + later.meta["val"]
    total.meta.update({"val": value, PHASE: "backward", MODULE: later.meta[MODULE]})
    return total
