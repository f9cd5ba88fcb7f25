"""Takes a model apart into layers that run one after the other, where a plan says that they begin.

Invariant: the layers together call every operator that the model calls, in its order and with its own parameters; what
depends on the batch and on constants alone is computed in each layer that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ..errors import ExportError


class Entry(NamedTuple):
    """A call of a module: the one with so many earlier ones."""

    module: str
    call: int


class Layer(nn.Module):
    """A run of operator calls; `reads` and `makes` are the names of the values that it takes and returns."""

    def __init__(self, body: fx.GraphModule, reads: Sequence[str], makes: Sequence[str]) -> None:
        super().__init__()
        self.body = body
        self.reads, self.makes = tuple(reads), tuple(makes)

    def forward(self, *values: Any) -> tuple[Any, ...]:
        return self.body(*values)


@dataclass
class Cut:
    """A model as layers: the names of its inputs, flattened, and of its outputs, with how to put these together."""

    layers: list[Layer]
    inputs: list[str]
    outputs: list[Any]
    structure: pytree.TreeSpec


def cut(model: nn.Module, inputs: tuple[Any, ...], begins: Iterable[Entry]) -> Cut:
    """The layers of `model`, of which each but the first begins with one of the calls `begins`, in their order.

    Raises `ExportError` where PyTorch cannot trace the model, or where it has no such calls in this order.
    """
    try:
        program = torch.export.export(model, inputs, strict=False)
    except Exception as error:
        raise ExportError(
            f"PyTorch could not trace {type(model).__name__}: {type(error).__name__}: {error}; make its forward pass free of "
            "control flow that depends on data"
        ) from error
    traced = program.module(check_guards=False)
    nodes = [node for node in traced.graph.nodes if not _is_assertion(node)]
    of_layer = _layers(nodes, list(begins))
    anywhere = _anywhere(traced, nodes)
    output = nodes[-1]
    made = _values(nodes, of_layer, anywhere, output)
    layers = [
        _layer(traced, model, index, nodes, of_layer, anywhere, made) for index in range(max(of_layer.values()) + 1)
    ]
    results = [value.name if isinstance(value, fx.Node) else value for value in output.args[0]]
    arguments = [node.name for node in nodes if node.op == "placeholder"]
    return Cut(layers, arguments, results, program.call_spec.out_spec)


def _is_assertion(node: fx.Node) -> bool:
    """What only checks what was traced."""
    is_check = node.target is torch.ops.aten._assert_tensor_metadata.default
    return is_check or node.op == "call_module"


def _within(node: fx.Node) -> set[str]:
    """The modules whose calls a node belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    # A module that is called again has a number behind its name there.
    return {path.split("@")[0] for path, _ in stack.values()}


def _layers(nodes: list[fx.Node], begins: list[Entry]) -> dict[fx.Node, int]:
    """The layer of each call."""
    found: dict[fx.Node, int] = {}
    calls: dict[str, int] = {}
    inside: set[str] = set()
    layer = 0
    for node in nodes:
        if node.op != "call_function":
            continue
        around = _within(node)
        for module in around - inside:
            calls[module] = calls.get(module, -1) + 1
        if layer < len(begins):
            module, call = begins[layer]
            if module in around - inside and calls[module] == call:
                layer += 1
        inside = around
        found[node] = layer
    if layer < len(begins):
        module, call = begins[layer]
        raise ExportError(
            f"the plan cuts before call {call + 1} of {module!r}, and the model has no such call behind the cut before; "
            "plan for this model and a batch of this size"
        )
    return found


def _anywhere(traced: fx.GraphModule, nodes: list[fx.Node]) -> set[fx.Node]:
    """What depends on the batch and on constants alone: pure calls that read nothing that is trained or written."""
    written = {
        argument
        for node in nodes
        if node.op == "call_function" and _schema(node) is not None and _schema(node).is_mutable
        for argument in node.all_input_nodes
    }
    found: set[fx.Node] = set()
    for node in nodes:
        if node.op == "placeholder":
            found.add(node)
        elif node.op == "get_attr":
            if node not in written and not isinstance(_attribute(traced, node.target), nn.Parameter):
                found.add(node)
        elif node.op == "call_function" and node not in written:
            schema = _schema(node)
            is_pure = schema is None or not schema.is_mutable
            tags = getattr(node.target, "tags", ())
            is_random = torch.Tag.nondeterministic_seeded in tags
            if is_pure and not is_random and all(read in found for read in node.all_input_nodes):
                found.add(node)
    return found


def _schema(node: fx.Node) -> Any:
    return getattr(node.target, "_schema", None)


@dataclass
class _Made:
    """The values that layers make for later ones, and those that each reads, in the order of the program."""

    reads: dict[int, list[fx.Node]] = field(default_factory=dict)
    makes: dict[int, list[fx.Node]] = field(default_factory=dict)


def _values(nodes: list[fx.Node], of_layer: dict[fx.Node, int], anywhere: set[fx.Node], output: fx.Node) -> _Made:
    order = {node: place for place, node in enumerate(nodes)}
    read: dict[int, set[fx.Node]] = {layer: set() for layer in of_layer.values()}
    last = max(read)

    def needs(layer: int, value: fx.Node) -> None:
        if value.op == "get_attr":
            return
        if value in anywhere and value.op != "placeholder":
            for other in value.all_input_nodes:
                needs(layer, other)
        elif value.op == "placeholder" or of_layer[value] != layer:
            read[layer].add(value)

    for node, layer in of_layer.items():
        if node not in anywhere:
            for value in node.all_input_nodes:
                needs(layer, value)
    makes: dict[int, set[fx.Node]] = {layer: set() for layer in read}
    for value in {value for values in read.values() for value in values if value.op != "placeholder"}:
        makes[of_layer[value]].add(value)
    for value in output.all_input_nodes:
        if value.op == "placeholder":
            continue
        # The last layer makes what nobody else has to.
        makes[last if value in anywhere else of_layer[value]].add(value)
        if value in anywhere:
            for other in value.all_input_nodes:
                needs(last, other)

    def sort(values: set[fx.Node]) -> list[fx.Node]:
        return sorted(values, key=order.__getitem__)

    return _Made(
        {layer: sort(values) for layer, values in read.items()}, {layer: sort(values) for layer, values in makes.items()}
    )


def _layer(traced: fx.GraphModule, model: nn.Module, index: int, nodes: list[fx.Node], of_layer: dict[fx.Node, int],
           anywhere: set[fx.Node], made: _Made) -> Layer:
    graph, root = fx.Graph(), nn.Module()
    # One that is shared has one name, as the model lists it.
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    here: dict[fx.Node, fx.Node] = {}
    for value in made.reads[index]:
        here[value] = graph.placeholder(value.name)
        here[value].meta = dict(value.meta)

    def copied(node: fx.Node) -> fx.Node:
        if node not in here:
            here[node] = graph.node_copy(node, copied)
            if node.op == "get_attr":
                value = _attribute(traced, node.target)
                here[node].target = names.get(id(value), node.target)
                _attach(root, here[node].target, value)
        return here[node]

    for node in nodes:
        if of_layer.get(node) == index and node not in anywhere:
            copied(node)
    graph.output(tuple(copied(value) for value in made.makes[index]))
    body = fx.GraphModule(root, graph, class_name=f"{type(model).__name__}Layer{index}")
    return Layer(body, [value.name for value in made.reads[index]], [value.name for value in made.makes[index]])


def _attribute(module: nn.Module, path: Any) -> Any:
    found: Any = module
    for name in str(path).split("."):
        found = getattr(found, name)
    return found


def _attach(root: nn.Module, path: Any, value: Any) -> None:
    """Puts a parameter, a buffer or a constant under its own name."""
    *modules, name = str(path).split(".")
    place = root
    for module in modules:
        if not hasattr(place, module):
            place.add_module(module, nn.Module())
        place = getattr(place, module)
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        place.register_buffer(name, value)
    else:
        setattr(place, name, value)
