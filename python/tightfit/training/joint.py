"""A joint graph of AOTAutograd, forward and backward pass in one, as a graph to plan with.

Invariant: the graph holds what separate calls of forward and backward pass hold. A barrier separates them: it reads
everything that the forward pass returns to its caller, outputs and new contents of buffers alike, and makes the
tangents. The batch is held to the end, as the caller holds it, and so are outputs and tangents. Random nodes draw from
PyTorch's running generator, in their order.

If the updates of the parameters are part of it, nothing separates them: the graph is one sequence, in which a parameter
is updated after everything that reads its old value, and the barrier is its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..errors import CompileError, ExportError
from ..extents import LAID_OUT, VARYING, laid_out_alike, row_major
from ..graph import GraphBuilder, ValueId, producer
from ..nodes import draws, is_call, tensors
from ..simplify import equivalent, follow, shorten
from ..translator import Translator
from . import roles
from .inplace import PUT
from .roles import Kind, Role

aten = torch.ops.aten

BARRIER = "tightfit.barrier"
# Operator of an argument that shares the storage of another one: takes that one, and this argument's index.
SHOWN = "tightfit.argument"
# Operator of the update of a parameter, which takes the parameter and its gradient.
UPDATE = "tightfit.update"

# They repeat checks that were made during capture, and compute nothing.
_CHECKS = {aten._assert_tensor_metadata.default}
# A copy of what a call reads is worth making if it is smaller than the call's results by this factor.
_SMALLER = 16


@dataclass(frozen=True)
class Argument:
    """An argument of the joint graph: its name for messages, and whether its gradient is accumulated."""

    name: str
    is_parameter: bool
    is_buffer: bool

    @property
    def phase(self) -> str:
        return "parameter" if self.is_parameter else "buffer" if self.is_buffer else "input"


@dataclass(frozen=True)
class Update:
    """The cost of the update of a parameter: bytes besides the parameter, its gradient and its state, and seconds."""

    workspace: int
    seconds: float


@dataclass(frozen=True)
class Joint:
    """A joint graph whose forward pass comes first.

    `outputs` are those of the forward pass, in its order, and `gradients` one for each argument; both may hold `None`,
    and `outputs` constants.
    """

    module: fx.GraphModule
    arguments: tuple[Argument, ...]
    primals: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    outputs: tuple[Any, ...]
    gradients: tuple[fx.Node | None, ...]
    # The positions of the arguments that are sizes, if it also runs smaller ones (`extents.py`).
    sizes: tuple[int, ...] = ()

    @staticmethod
    def of(module: fx.GraphModule, arguments: Sequence[Argument], outputs: int, sizes: tuple[int, ...] = ()) -> Joint:
        """The joint graph of a partitioner's arguments, simplified; `outputs` is the forward pass's number of
        results."""
        found = Joint.captured(module, arguments, outputs)
        _known(module, dict(zip(found.primals, arguments, strict=True)))
        _simplify(module, outputs)
        _dropout_as_eager(module.graph)
        _forward_first(module.graph, found.tangents)
        _keep_old_versions(module.graph)
        _read_copies(module.graph)
        return replace(Joint.captured(module, arguments, outputs), sizes=sizes)

    @staticmethod
    def captured(module: fx.GraphModule, arguments: Sequence[Argument], outputs: int) -> Joint:
        """The same as it was captured."""
        placeholders = module.graph.find_nodes(op="placeholder")
        tangents = tuple(node for node in placeholders if "tangents" in str(node.target))
        primals = tuple(node for node in placeholders if node not in tangents)
        if len(primals) != len(arguments):
            raise ExportError(f"the captured graph has {len(primals)} inputs where the model was given {len(arguments)}; "
                              "tensor subclasses and side effects such as prints are not supported: take them out")
        [output] = module.graph.find_nodes(op="output")
        results = list(output.args[0])
        gradients = results[outputs:] or [None] * len(primals)
        return Joint(module, tuple(arguments), primals, tangents, tuple(results[:outputs]), tuple(gradients))

    def extent_along(self, dimension: int) -> int:
        """The largest extent of the batch's tensors along a dimension; 0 without any."""
        given = (primal.meta["val"] for primal, argument in zip(self.primals, self.arguments, strict=True) if argument.phase == "input")
        return max((value.shape[dimension] for value in given if isinstance(value, torch.Tensor) and value.dim() > dimension), default=0)

    @property
    def has_backward(self) -> bool:
        """Whether there is a backward pass."""
        return any(gradient is not None for gradient in self.gradients)


def _known(module: fx.GraphModule, arguments: Mapping[fx.Node, Argument]) -> None:
    """Refuses tensors of kinds that plans do not support."""
    for node in module.graph.nodes:
        for value in tensors(node.meta.get("val")):
            what = repr(arguments[node].name) if node in arguments else f"the result of {node.target}"
            if value.layout is not torch.strided:
                raise CompileError(f"{what} is a sparse tensor, whose bytes depend on its contents; make it dense (such as "
                                   "nn.Embedding(…, sparse=False))")
            if value.is_complex():
                raise CompileError(f"{what} is of {value.dtype}, and complex tensors are not supported; keep real and "
                                   "imaginary part as real tensors")


def _simplify(module: fx.GraphModule, outputs: int) -> None:
    """Removes what computes nothing. Unread random numbers are drawn even so: the next draw would differ."""
    graph = module.graph
    [output] = graph.find_nodes(op="output")
    owed = {result for result in output.args[0][:outputs] if isinstance(result, fx.Node)}
    for node in list(graph.nodes):
        if is_call(node) and isinstance(node.target, torch._ops.OpOverload) and node not in owed:
            shorten(node)
            source = equivalent(node)
            if source is not None:
                follow(node, source)
                node.replace_all_uses_with(source)
                graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
        elif node.op == "call_function" and not node.users:
            is_operator = isinstance(node.target, torch._ops.OpOverload)
            acts = is_operator and node.target not in _CHECKS and (node.target._schema.is_mutable or draws(node))
            if not acts and not _asserts(node):
                graph.erase_node(node)


def _asserts(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target not in _CHECKS \
        and not node.target._schema.returns


def _dropout_as_eager(graph: fx.Graph) -> None:
    """Rewrites the backward pass of dropout on processors as eager runs it there.

    Eager has no dropout operator on processors: it multiplies by the mask divided by the share that is kept, which in
    16 bits is rounded; `native_dropout_backward` multiplies by the scale in 32 bits instead. In more bits the results
    are the same, but the operator holds the scaled mask twice, which separate calls need not.
    """
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout_backward.default):
        gradient, mask, scale = node.args
        value, source = gradient.meta["val"], mask.args[0]
        is_rounded = value.element_size() == 2
        if value.device.type != "cpu" or (is_rounded and (scale == 0 or source.target is not aten.native_dropout.default)):
            continue
        with graph.inserting_before(node):
            kept = graph.call_function(aten._to_copy.default, (mask,), {"dtype": value.dtype})
            scaled = (aten.div.Tensor, 1.0 - source.args[1]) if is_rounded else (aten.mul.Tensor, scale)
            noise = graph.call_function(scaled[0], (kept, scaled[1]))
            product = graph.call_function(aten.mul.Tensor, (gradient, noise))
        for made in (kept, noise, product):
            made.meta.update(node.meta)
        with torch.no_grad():
            kept.meta["val"] = mask.meta["val"].to(value.dtype)
            noise.meta["val"] = torch.empty_like(kept.meta["val"])
            made = value * noise.meta["val"]
            # Views of the result share the storage of the old value, which is kept if its strides are right.
            product.meta["val"] = node.meta["val"] if node.meta["val"].stride() == made.stride() else made
        node.replace_all_uses_with(product)
        graph.erase_node(node)


def following(graph: fx.Graph, tangents: Sequence[fx.Node]) -> list[fx.Node]:
    """The calls that follow from a tangent, in their order."""
    follows = dict.fromkeys(tangents)
    for node in graph.nodes:
        if node.op == "call_function" and any(source in follows for source in node.all_input_nodes):
            follows[node] = None
    return list(follows)[len(tangents):]


def _forward_first(graph: fx.Graph, tangents: Sequence[fx.Node]) -> None:
    """Moves calls that do not depend on a tangent before those that do."""
    [output] = graph.find_nodes(op="output")
    for node in following(graph, tangents):
        output.prepend(node)


def _keep_old_versions(graph: fx.Graph) -> None:
    """Copies a buffer's new contents for calls that read them after they were written to the buffer."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for write in graph.find_nodes(op="call_function", target=aten.copy_.default):
        source = write.args[0]
        late = [user for user in source.users if user is not write and user.op != "output" and order[user] > order[write]]
        if late:
            with graph.inserting_before(write):
                kept = graph.call_function(aten.clone.default, (source,))
            with torch.no_grad():
                kept.meta.update({"val": source.meta["val"].clone(), "seq_nr": write.meta.get("seq_nr")})
            order[kept] = order[write] - 0.5
            for user in late:
                user.replace_input_with(source, kept)


def _read_copies(graph: fx.Graph) -> None:
    """Lets calls read copies of small buffers that are written later, so that they may run again: a batch normalization
    reads running statistics, which its results do not depend on, and of which the backward pass finds the new ones."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for write in graph.find_nodes(op="call_function", target=aten.copy_.default):
        buffer = write.args[0]
        if buffer.op != "placeholder":
            continue
        for user in [user for user in buffer.users if is_call(user) and user is not write and order[user] < order[write]]:
            made = sum(tensor.nbytes for tensor in tensors(user.meta.get("val")))
            if _SMALLER * buffer.meta["val"].nbytes > made:
                continue
            with graph.inserting_before(user):
                copied = graph.call_function(aten.clone.default, (buffer,))
            copied.meta.update(user.meta)
            with torch.no_grad():
                copied.meta["val"] = buffer.meta["val"].clone()
            user.replace_input_with(buffer, copied)


def is_tensor(output: Any) -> bool:
    """Whether a result of the graph is a tensor that it computes or was given."""
    return isinstance(output, fx.Node) and isinstance(output.meta["val"], torch.Tensor)


def document(joint: Joint, name: str, *, accumulated: frozenset[int] = frozenset(), between: int = 0,
             holds_outputs: bool = True, updates: Mapping[int, Update] | None = None,
             states: Mapping[int, int] | None = None) -> dict[str, Any]:
    """The joint graph as tightfit-graph/1.

    `accumulated` are the arguments whose gradients exist when the step begins: what the backward pass computes is added
    to them in place. All other gradients are results. `between` are bytes that are taken between the two calls and
    freed before the second, as by a loss outside of the model. `holds_outputs` says that the caller holds the outputs
    during the backward pass, and not only until it begins.

    `updates` are the parameters that are updated by their gradients, by their positions; if given, there are no
    tangents except the constant 1, and all outputs are held to the end.

    `states` are the bytes of the optimizer's state of each, if state and parameters may be away: then parameters need
    not be held when the step ends, and an update reads and writes its state.

    Names say what nodes and outputs stand for (`roles.py`); what else is held is called `held`.
    """
    return _Document(joint, name, accumulated, between, holds_outputs, updates, states).run()


class _Document(Translator):
    """The translation of a joint graph."""

    def __init__(self, joint: Joint, name: str, accumulated: frozenset[int], between: int,
                 holds_outputs: bool, updates: Mapping[int, Update] | None, states: Mapping[int, int] | None) -> None:
        super().__init__(GraphBuilder(name, {"producer": producer(), "decompositions": "none"}))
        self.joint = joint
        self.accumulated = accumulated
        self.between = between
        self.holds_outputs = holds_outputs
        self.updates = updates
        self.states = states
        self.kept: dict[int, ValueId] = {}
        self.backward = set(following(joint.module.graph, joint.tangents))
        self.names: dict[int, str] = {}
        # The last version of each written buffer.
        self.written: dict[fx.Node, ValueId] = {}
        self.own: set[int] = set()
        self.entered = False

    def run(self) -> dict[str, Any]:
        joint, builder = self.joint, self.builder
        sums = self._placeholders()
        enter = self._barrier if self.updates is None else self._ones
        due = {} if self.updates is None else _due(joint, self.updates)
        for node in joint.module.graph.nodes:
            if is_call(node):
                if node in self.backward and not self.entered:
                    enter()
                self._call(node)
            for index in due.get(node, ()):
                self._update(index, self.updates[index])
        if not self.entered or self.updates is not None:
            self._barrier()
        for index, output in enumerate(joint.outputs):
            if is_tensor(output) and self.holds_outputs:
                self.builder.output(self._current(output), f"output {index}")
                self.own.add(_storage(output.meta["val"]))
        for node in joint.tangents:
            self.own.add(_storage(node.meta["val"]))
        for index, gradient in enumerate(joint.gradients):
            if gradient is not None and index not in sums and self.updates is None:
                builder.output(self._owned(index, gradient), roles.result(index))
        for index, gradient in enumerate(joint.gradients):
            if gradient is not None and index in sums:
                self._add(index, sums[index], gradient)
        for node in [*joint.primals, *(joint.tangents if self.updates is None else ())]:
            if node in self.values and node not in self.written and not (self.states is not None and _is_parameter(node, joint)):
                builder.output(self.value(node), "held")
        return builder.document()

    def _placeholders(self) -> dict[int, ValueId]:
        """Makes placeholders of the arguments, of constants, and of existing gradients; returns the last ones."""
        joint, builder = self.joint, self.builder
        first: dict[int, ValueId] = {}
        for index, (argument, node) in enumerate(zip(joint.arguments, joint.primals, strict=True)):
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                continue
            storage, name = _storage(value), Role(Kind.ARGUMENT, index).name
            if storage in first:
                # It shares the storage of an earlier argument.
                [made] = builder.node(name, SHOWN, "forward", [first[storage], index], {}, [value], cost=False)
                self.values[node] = made
            else:
                parameter = argument.name if argument.phase != "input" else None
                self.values[node] = first[storage] = builder.placeholder(name, argument.phase, value, parameter=parameter)
                if self.states is not None:
                    # Tensors that are away during capture have no memory.
                    builder.enlarge(first[storage], _span(value))
        for node in joint.module.graph.find_nodes(op="get_attr"):
            value = getattr(joint.module, str(node.target))
            node.meta.setdefault("val", value)
            self.values[node] = builder.placeholder(roles.constant(str(node.target)), "buffer", value,
                                                    parameter=f"constant.{node.target}")
        sums = {}
        for index in sorted(self.accumulated):
            if joint.gradients[index] is not None:
                like = torch.empty_like(joint.primals[index].meta["val"], requires_grad=False)
                sums[index] = builder.placeholder(Role(Kind.GRADIENT, index).name, "buffer", like,
                                                  parameter=f"{joint.arguments[index].name}.grad")
        for index, size in (self.states or {}).items():
            if size:
                with torch.no_grad():
                    state = joint.primals[index].meta["val"].new_empty((size,), dtype=torch.uint8)
                self.kept[index] = builder.placeholder(Role(Kind.STATE, index).name, "state", state,
                                                       parameter=f"{joint.arguments[index].name}.state")
        return sums

    def _barrier(self) -> None:
        joint = self.joint
        owed = [self._current(output) if is_tensor(output) else None for output in joint.outputs]
        entering = [] if self.entered else joint.tangents
        written = [value for node, value in self.written.items()
                   if self.states is None or not _is_parameter(node, joint)]
        made = self.builder.node("barrier", BARRIER, "backward", [owed, written], {},
                                 [node.meta["val"] for node in entering], cost=False, workspace=self.between)
        self.values.update(zip(entering, made, strict=True))
        self.entered = True

    def _ones(self) -> None:
        """Makes the gradients of losses with respect to themselves."""
        for node in self.joint.tangents:
            value = node.meta["val"]
            [self.values[node]] = self.builder.node(
                str(node.target), "aten.full.default", "backward", [list(value.shape), 1.0],
                {"dtype": value.dtype, "layout": torch.strided, "device": value.device, "pin_memory": False}, [value],
            )
        self.entered = True

    def _update(self, index: int, update: Update) -> None:
        primal, gradient = self.joint.primals[index], self.joint.gradients[index]
        like = primal.meta["val"]
        is_laid_out = _obeys_layout(gradient.meta["val"], like)
        value = self.value(gradient) if is_laid_out else self._owned(index, gradient)
        args, outputs = [self.value(primal), value], [like]
        if index in self.kept:
            args.append(self.kept[index])
            outputs.append(self.builder.tensor(self.kept[index]))
        self.written[primal], *_ = self.builder.node(
            f"update_{index}", UPDATE, "optimizer", args, {}, outputs, mutates=True, workspace=update.workspace,
            seconds=update.seconds,
        )

    def _call(self, node: fx.Node) -> None:
        is_late = node in self.backward
        self.call(node, "backward" if is_late else "forward", module=_module(node), stream=True,
                  differentiates=self._differentiated(node) if is_late else None)
        if not is_late and "seq_nr" in node.meta:
            self.names.setdefault(node.meta["seq_nr"], self.builder.latest())
        if node.target._schema.is_mutable:
            self.written[node.args[0]] = self.value(node)

    def described(self, result: Any) -> Any:
        """In a type of the format: on CUDA, attention's random state is unsigned."""
        if isinstance(result, torch.Tensor) and result.dtype == torch.uint64:
            with torch.no_grad():
                return result.view(torch.int64)
        return result

    def _differentiated(self, node: fx.Node) -> str | None:
        """The forward node with the same autograd sequence number; a sum of gradients differentiates none."""
        return None if node.meta.get("is_gradient_acc") else self.names.get(node.meta.get("seq_nr"))

    def _current(self, node: fx.Node) -> ValueId:
        return self.written.get(node) or self.value(node)

    def _owned(self, index: int, gradient: fx.Node) -> ValueId:
        """The gradient in memory of its own, with the layout that autograd uses: like the parameter."""
        value, like = gradient.meta["val"], self.joint.primals[index].meta["val"]
        storage = _storage(value)
        given = {_storage(node.meta["val"]) for node in self.joint.primals if isinstance(node.meta["val"], torch.Tensor)}
        if _obeys_layout(value, like) and storage not in self.own and storage not in given:
            self.own.add(storage)
            return self.value(gradient)
        dense = _is_dense(like)
        with torch.no_grad():
            made = value.new_empty_strided(like.shape, like.stride()) if dense else value.new_empty(like.shape)
        name = f"gradient_{index}"
        shape, strides = made.shape, made.stride()
        if (laid_out := self.joint.primals[index].meta.get(LAID_OUT)) is not None:
            shape, strides = laid_out if dense else (laid_out[0], row_major(laid_out[0]))
        [empty] = self.builder.node(f"{name}_empty", "aten.new_empty_strided.default", "backward",
                                    [self.value(gradient), list(shape), list(strides)], {}, [made])
        [filled] = self.builder.node(f"{name}_own", "aten.copy_.default", "backward",
                                     [empty, self.value(gradient)], {}, [made], mutates=True)
        self.own.add(_storage(made))
        return filled

    def _add(self, index: int, there: ValueId, gradient: fx.Node) -> None:
        self.builder.node(Role(Kind.SUM, index).name, "aten.add_.Tensor", "backward", [there, self.value(gradient)], {},
                          [self.builder.tensor(there)], mutates=True)


def _is_parameter(node: fx.Node, joint: Joint) -> bool:
    return node in joint.primals and joint.arguments[joint.primals.index(node)].is_parameter


def _due(joint: Joint, updates: Mapping[int, Update]) -> dict[fx.Node, list[int]]:
    """The node after which each parameter may be updated: its gradient exists, its old value is no longer read."""
    read = {_storage(joint.primals[index].meta["val"]): index for index in updates}
    last: dict[int, fx.Node] = {}
    for node in joint.module.graph.nodes:
        if node.op == "output":
            continue
        for tensor in (tensor for source in node.all_input_nodes for tensor in tensors(source.meta.get("val"))):
            if (index := read.get(_storage(tensor))) is not None:
                last[index] = node
        for index in updates:
            if joint.gradients[index] is node:
                last[index] = node
    due: dict[fx.Node, list[int]] = {}
    for index, node in last.items():
        due.setdefault(node, []).append(index)
    return due


def largest(joint: Joint) -> int:
    """The bytes of the arguments, and of the call whose inputs and results are the largest in addition to those."""

    def storages(nodes: Iterable[fx.Node]) -> dict[int, int]:
        found = (tensor.untyped_storage() for node in nodes for tensor in tensors(node.meta.get("val")))
        return {storage._cdata: storage.nbytes() for storage in found}

    given = storages(joint.primals)
    most = 0
    for node in joint.module.graph.nodes:
        if node.op == "call_function":
            most = max(most, sum(size for storage, size in storages([node, *node.all_input_nodes]).items() if storage not in given))
    return sum(given.values()) + most


def largest_in(graph: Mapping[str, Any]) -> int:
    """The same of a graph that was written."""
    stored = {value["id"]: value["storage"] for node in graph["nodes"] for value in node["outputs"] if value is not None}
    given = {stored[value["id"]] for node in graph["nodes"] if node["op"] == "placeholder" for value in node["outputs"]
             if value is not None}
    most = 0
    for node in graph["nodes"]:
        if node["op"] != BARRIER:
            made = [stored[value["id"]] for value in node["outputs"] if value is not None]
            read = {stored[value] for value in node.get("inputs", [])}
            # What a part is put into is written in its place.
            read -= {stored[value] for value in node.get("overwrites") or [] if node["op"] == PUT}
            most = max(most, sum(graph["storages"][storage] for storage in read.union(made) - given))
    return sum(graph["storages"][storage] for storage in given) + most


def alike_only(planned: Mapping[str, Any], joint: Joint) -> dict[str, Any]:
    """The graph, where calls overwrite only what has their result's shape and strides at all sizes."""
    varying = {node.name: node.meta.get(VARYING) for node in joint.module.graph.nodes}
    made = {output["id"]: (node["name"], index) for node in planned["nodes"]
            for index, output in enumerate(node["outputs"]) if output is not None}

    def value(name: str, index: int) -> Any:
        found = varying.get(name)
        return found[index] if isinstance(found, (tuple, list)) else found

    def is_alike(result: Any, source: Any) -> bool:
        return isinstance(result, torch.Tensor) and isinstance(source, torch.Tensor) and laid_out_alike(result, source)

    nodes = []
    for node in planned["nodes"]:
        if "overwrites" in node:
            kept = [source for source in node["overwrites"] if is_alike(value(node["name"], 0), value(*made[source]))]
            node = {key: item for key, item in node.items() if key != "overwrites"} | ({"overwrites": kept} if kept else {})
        nodes.append(node)
    return {**planned, "nodes": nodes}


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() if tensor.numel() else 0


def _obeys_layout(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether autograd would keep a gradient as it is: strides like a dense parameter's, or else in row-major order."""
    if not _is_dense(parameter):
        return gradient.is_contiguous()
    return all(own == wanted for own, wanted, extent in zip(gradient.stride(), parameter.stride(), parameter.shape,
                                                            strict=True) if extent != 1)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in one block without gaps, in whatever order of dimensions."""
    expected = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)
                                 if extent != 1):
        if stride != expected:
            return False
        expected *= extent
    return True


_PATH = re.compile(
    r"""\.?_modules\[['"]([^'"]+)['"]\]|\.?_(?:parameters|buffers)\[['"]([^'"]+)['"]\]|\.?([A-Za-z0-9_]+)"""
)


def path(source: str) -> str:
    """The path in the model of what Dynamo found in a source such as `L['self']._modules['h']._parameters['w']`."""
    inside = re.sub(r"^L\[['\"]\w+['\"]\]", "", source)
    parts = [next(part for part in found if part) for found in _PATH.findall(inside)]
    return ".".join(parts)


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    innermost = list(stack.values())[-1:]
    return path(innermost[0][0]) if innermost else ""


