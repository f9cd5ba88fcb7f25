"""Cuts a model into layers that run one after the other, at the points where a plan says that they begin.

Invariant: the layers together call every operator that the model calls, in its order and with its own parameters, in
training mode and in evaluation mode; values that depend only on batch and constants are computed in each layer that
reads them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ..errors import ExportError


class Entry(NamedTuple):
    """A call of a module, by the number of earlier calls of it."""

    module: str
    call: int


@dataclass(frozen=True)
class Calls:
    """What a layer does in one mode: `run` takes the layer's body and the input values. `reads` and `makes` are the
    names of the values that it takes and returns, `overwrites` those of the values that it takes and writes to, and
    `statistics` the buffers that it writes to."""

    run: Callable[..., tuple[Any, ...]]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    overwrites: frozenset[str]
    statistics: tuple[str, ...]


class Layer(nn.Module):
    """A sequence of operator calls in training mode, and one in evaluation mode; both read their parameters, buffers
    and constants from `body`, where parameters may be replaced later."""

    def __init__(self, body: fx.GraphModule, reads: Sequence[str], makes: Sequence[str]) -> None:
        super().__init__()
        self.body = body
        self.trained = self.evaluated = _calls(body, body.graph, _run, reads, makes)

    @property
    def calls(self) -> Calls:
        """The calls of the layer's current mode."""
        return self.trained if self.training else self.evaluated

    def forward(self, *values: Any) -> tuple[Any, ...]:
        return self.calls.run(self.body, *values)


def _run(body: fx.GraphModule, *values: Any) -> tuple[Any, ...]:
    return body(*values)


def _calls(body: nn.Module, graph: fx.Graph, run: Callable[..., tuple[Any, ...]], reads: Sequence[str],
           makes: Sequence[str]) -> Calls:
    roots = {root for node in graph.nodes for root in writes(node)}
    placeholders = (node for node in graph.nodes if node.op == "placeholder")
    overwrites = frozenset(name for name, node in zip(reads, placeholders, strict=True) if node in roots)
    written = {str(node.target) for node in graph.nodes if node.op == "get_attr" and node in roots}
    statistics = tuple(name for name, _ in body.named_buffers(remove_duplicate=False) if name in written)
    return Calls(run, tuple(reads), tuple(makes), overwrites, statistics)


@dataclass
class Answer:
    """What a model returns: values by their names, and constants, in a structure."""

    outputs: list[Any]
    structure: pytree.TreeSpec

    @property
    def names(self) -> list[str]:
        """The names of the values, each once."""
        return list(dict.fromkeys(output for output in self.outputs if isinstance(output, str)))

    def of(self, values: Sequence[torch.Tensor]) -> Any:
        """What the model returns if its values are these, in the order of their names."""
        named = dict(zip(self.names, values, strict=True))
        results = [named[output] if isinstance(output, str) else output for output in self.outputs]
        return pytree.tree_unflatten(results, self.structure)


@dataclass
class Cut:
    """A model as layers, the names of its inputs, flattened, each with an example, and what it returns: in training mode
    `answer`, and in evaluation mode `evaluated`, or else why its layers have only one mode."""

    layers: list[Layer]
    inputs: dict[str, torch.Tensor]
    answer: Answer
    evaluated: Answer | str = "the model was traced in one mode"


def cut(model: nn.Module, inputs: tuple[Any, ...], begins: Iterable[Entry]) -> Cut:
    """The layers of `model`, of which each but the first begins with one of the calls `begins`, in their order.

    Raises `ExportError` if PyTorch cannot trace the model, or if it has no such calls in this order.
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
    arguments = (node.name for node in nodes if node.op == "placeholder")
    # Anything that is not a tensor was traced as a constant.
    given = {name: value for name, value in zip(arguments, pytree.tree_leaves(inputs), strict=True)
             if isinstance(value, torch.Tensor)}
    return Cut(layers, given, Answer(results, program.call_spec.out_spec))


def add_evaluation(whole: Cut, model: nn.Module, inputs: tuple[Any, ...], begins: Iterable[Entry]) -> None:
    """Gives the layers of a model their calls in evaluation mode; if this is impossible, notes why."""
    if not any(module.training for module in model.modules()):
        whole.evaluated = whole.answer
        return
    try:
        with _evaluating(model):
            other = cut(model, inputs, begins)
        _check_places(whole, other)
    except ExportError as error:
        whole.evaluated = f"the pipeline cannot evaluate, only train: in evaluation mode, {error}"
        return
    for layer, evaluated in zip(whole.layers, other.layers, strict=True):
        _adopt(layer, evaluated)
    whole.evaluated = other.answer


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """All modules in evaluation mode, set without calling `eval()`, which a model may have overridden to do more."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _check_places(whole: Cut, other: Cut) -> None:
    """Checks that what training changes is read only by layers that have it in training mode, on their rank."""
    holders: dict[int, set[int]] = {}
    changed: set[int] = set()
    for number, layer in enumerate(whole.layers):
        for _, tensor in (*layer.body.named_parameters(), *layer.body.named_buffers()):
            holders.setdefault(id(tensor), set()).add(number)
        changed.update(map(id, layer.body.parameters()))
        changed.update(id(layer.body.get_buffer(name)) for name in layer.trained.statistics)
    for number, layer in enumerate(other.layers):
        for name, tensor in (*layer.body.named_parameters(), *layer.body.named_buffers()):
            if id(tensor) in changed and number not in holders[id(tensor)]:
                raise ExportError(
                    f"layer {number} reads {name!r}, which only other layers have in training mode; cut the model elsewhere"
                )


def _adopt(layer: Layer, other: Layer) -> None:
    """Gives a layer the calls of another one, which is the same layer in evaluation mode, and the values that only
    these read. Nothing else of the other one is kept: its own parameters would stay when the layer's are replaced."""
    graph = other.body.graph
    for node in graph.nodes:
        if node.op == "get_attr":
            node.target = _settled(layer.body, str(node.target), _attribute(other.body, node.target))
    code, now, then = graph.python_code("self"), layer.trained, other.trained
    if (code.src, then.reads, then.makes) != (layer.body.code, now.reads, now.makes):
        names = dict(code.globals)
        exec(code.src, names)
        layer.evaluated = _calls(layer.body, graph, names["forward"], then.reads, then.makes)


def _settled(body: nn.Module, path: str, value: Any) -> str:
    """The name of a value in `body`, added if nothing has it; constants of the two modes may share a name."""
    while True:
        try:
            there = _attribute(body, path)
        except AttributeError:
            _attach(body, path, value)
            return path
        if _is_same(there, value):
            return path
        path += "_evaluated"


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if any(not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter) or value.is_meta for value in (one, other)):
        return False
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


def _is_assertion(node: fx.Node) -> bool:
    """Whether a node only asserts properties of the traced values."""
    is_check = node.target is torch.ops.aten._assert_tensor_metadata.default
    return is_check or node.op == "call_module"


def _within(node: fx.Node) -> set[str]:
    """The modules whose calls a node belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    # There, a module that is called again has a number after its name.
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
            f"the plan cuts before call {call + 1} of {module!r}, and the model has no such call after the cut before; "
            "plan for this model and a batch of this size"
        )
    return found


def _anywhere(traced: fx.GraphModule, nodes: list[fx.Node]) -> set[fx.Node]:
    """Nodes that depend only on batch and constants: pure calls that read nothing trained or written."""
    written = {root for node in nodes for root in writes(node)}
    found: set[fx.Node] = set()
    for node in nodes:
        if node.op == "placeholder":
            found.add(node)
        elif node.op == "get_attr":
            if node not in written and not isinstance(_attribute(traced, node.target), nn.Parameter):
                found.add(node)
        elif node.op == "call_function" and node not in written:
            is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if not writes(node) and not is_random and all(read in found for read in node.all_input_nodes):
                found.add(node)
    return found


def writes(node: fx.Node) -> list[fx.Node]:
    """The nodes that a call writes to: the roots of the arguments that it writes."""
    # Batch norms update these, though their schemas do not say so.
    written = (value for argument, value in _arguments(node)
               if argument.is_write or argument.name in ("running_mean", "running_var"))
    return [_root(value) for value in written]


def _root(node: fx.Node) -> fx.Node:
    """The node that makes the memory that a value lies in."""
    while True:
        shown = [value for argument, value in _arguments(node) if argument.alias_info is not None]
        if node.target is operator.getitem:
            shown = node.all_input_nodes
        if not shown:
            return node
        node = shown[0]


def _arguments(node: fx.Node) -> list[tuple[Any, fx.Node]]:
    """The arguments of a call that are values, with what the schema of its operator says of them."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return []
    given = {**dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)), **node.kwargs}
    return [(argument, given[argument.name]) for argument in schema.arguments
            if isinstance(given.get(argument.name), fx.Node)]


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
        # The last layer makes what no other layer has to.
        makes[last if value in anywhere else of_layer.get(value, last)].add(value)
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
    # A shared parameter has one name, the one that the model lists.
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
