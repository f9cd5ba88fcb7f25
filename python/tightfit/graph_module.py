"""`tightfit.to_fx`: a `tightfit-graph/1` file as a `torch.fx.GraphModule` that runs it with PyTorch's own operators.

Invariant: nodes run in the file's order, one call each, and nothing beyond the file's storages outlives a call; so a
caller that frees each tensor after its last use, as fx does, holds what the file says. Random numbers depend on the
step's seed and the node's seed slot alone, so a node that runs again draws what it drew before.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from . import calls, reading
from .batch import leaves
from .calls import OPTIMIZERS, TORCH_DTYPES
from .devices import kind_of
from .errors import GraphFileError, OptionError
from .given import flag, table
from .graph import FORMAT

META = "tightfit"


def to_fx(graph: str | Path | Mapping[str, Any], *, boxed: bool = False) -> fx.GraphModule:
    """The step of a graph file, or of a graph that was read before, as a callable module.

    Its arguments are the graph's placeholders in the file's order, then `learning_rate` (a float) and `step` (an int, 1
    for the first) if the graph has an optimizer; `arguments` assembles them from a model and a batch. Its results are
    the graph's outputs, which `module.meta["output_names"]` names: the loss, then the gradient of each parameter that
    has one, by the parameter's name. Buffers, and with an optimizer parameters and its state, are written in place.

    Each node's `meta["tightfit"]` holds its `name` in the file, its `phase` and `module`, and, if known, `parameter`,
    `recomputes` and `differentiates`. Call it without autograd (`torch.no_grad()`), or with tensors that are detached.
    Called as usual, the caller's references keep the batch to the end. With `boxed=True` the module is called with one
    list of all arguments, which it empties, so that the batch is freed after its last use, as the file says.

    A file is data: nothing in it becomes code, and an operator that reads or writes files is refused. But it may call
    any other operator that PyTorch has, those of extensions included.

    Raises `GraphFileError` if the file is not a graph, or calls an operator that this PyTorch does not have.
    """
    if not isinstance(graph, (str, Path, Mapping)):
        raise GraphFileError(f"a {type(graph).__name__} is no graph; give the file's path, or what was read from it")
    document = graph if isinstance(graph, Mapping) else _read(Path(graph))
    try:
        module = _Translation(document).run()
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError, RuntimeError) as error:
        raise GraphFileError(f"the graph is damaged: {type(error).__name__}: {error}; `tightfit analyze` says where") from error
    if flag(boxed, "boxed"):
        module.graph.set_codegen(_Boxed({node.target for node in module.graph.find_nodes(op="placeholder") if not node.users}))
        module.recompile()
    return module


def arguments(module: fx.GraphModule, model: nn.Module, batch: Any, *, state: dict[str, torch.Tensor] | None = None,
              constants: Mapping[str, torch.Tensor] | None = None, learning_rate: float | None = None,
              step: int | None = None) -> list[Any]:
    """The arguments for `to_fx(…)`: the model's own tensors, detached, and the batch's.

    `batch` is nested as it was for `export`. `state` is the optimizer's, by name: missing entries start at zero and are
    added to the dict, so the same dict serves all steps. `constants` are tensors of the graph that the model does not
    have, by their names in the graph: what `export` returns.

    Raises `GraphFileError` if model or batch are not those of the graph.
    """
    if not isinstance(module, fx.GraphModule):
        raise OptionError(f"{type(module).__name__} is no module that to_fx made; give what it returned")
    if not isinstance(model, nn.Module):
        raise OptionError(f"{type(model).__name__} is no torch.nn.Module; give the model itself")
    placeholders = module.graph.find_nodes(op="placeholder")
    if any(META not in node.meta for node in placeholders):
        raise GraphFileError("the module is none that to_fx made; its placeholders do not say what they are")
    tensors = {name: tensor.detach() for name, tensor in
               [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]}
    tensors |= table(constants, "constants")
    if state is None:
        state = {}
    elif not isinstance(state, dict):
        raise OptionError(f"state is of type {type(state).__name__}; give a dict, to which what is missing is added")
    given_leaves = iter(leaves(batch))
    given: list[Any] = []
    for node in placeholders:
        meta = node.meta[META]
        match meta["phase"]:
            case "run":
                value = {"learning_rate": learning_rate, "step": step}[meta["name"]]
                if value is None:
                    raise GraphFileError(f"the graph ends in an optimizer; give {meta['name']}=…")
                given.append(value)
                continue
            case "input":
                # The graph's batch is contiguous, because export made it so.
                tensor = next(given_leaves, None)
                tensor = None if tensor is None else tensor.contiguous()
                where = f"tensor {meta['name']!r} of the batch"
            case "state":
                if meta["parameter"] not in state:
                    state[meta["parameter"]] = torch.zeros(meta["shape"], dtype=meta["dtype"], device=_device(model))
                tensor = state[meta["parameter"]]
                where = f"state {meta['parameter']!r}"
            case "tangent":
                raise GraphFileError(f"the graph starts its backward pass from {meta['name']!r}; call the module yourself")
            case _:
                tensor = tensors.get(meta["parameter"])
                where = f"{meta['phase']} {meta['parameter']!r}"
        found = (list(tensor.shape), tensor.dtype) if isinstance(tensor, torch.Tensor) else None
        if found != (meta["shape"], meta["dtype"]):
            raise GraphFileError(f"{where} is {_described(found)}, but the graph's is {_described((meta['shape'], meta['dtype']))}")
        given.append(tensor)
    if next(given_leaves, None) is not None:
        raise GraphFileError("the batch has more tensors than the graph")
    return given


def _read(path: Path) -> Any:
    try:
        return reading.graph(path)
    except OSError as error:
        raise GraphFileError(f"{path}: {error.strerror or error}") from error
    except (GraphFileError, ValueError) as error:
        raise GraphFileError(f"{path}: {error}") from error


class _Boxed(fx.graph.CodeGen):
    """Code of a function of one list, which it empties, so that the caller's list does not keep the arguments alive.

    `unread` are the arguments that no node reads; they are not held at all.
    """

    def __init__(self, unread: set[str]) -> None:
        super().__init__()
        self.unread = unread

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        names = [variable.split(":")[0].split("=")[0].strip() for variable in free_vars if variable != "self"]
        taken = [f"    {'' if name in self.unread else f'{name} = '}arguments.pop(0)" for name in names]
        return "\n".join([f"def forward(self, arguments){maybe_return_annotation}:", *taken])


class _Translation:
    """The state of one translation: the fx node of each value."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise GraphFileError(f"not a {FORMAT} file")
        self.document = document
        self.graph = fx.Graph()
        self.values: dict[int, fx.Node] = {}
        self.taken: set[str] = set()
        self.seed: fx.Node | None = None
        self.run_time: tuple[fx.Node, ...] = ()

    def run(self) -> fx.GraphModule:
        nodes = self.document["nodes"]
        placeholders = [node for node in nodes if node["op"] == "placeholder"]
        for node in placeholders:
            self._placeholder(node)
        if any(node["op"] in OPTIMIZERS for node in nodes):
            self.run_time = tuple(self._given(name) for name in ("learning_rate", "step"))
        if any(node.get("random") for node in nodes):
            self.seed = self.graph.call_function(new_seed)
        for node in nodes:
            if node["op"] != "placeholder":
                self._call(node)
        self.graph.output(tuple(self._value(value) for value in self.document["outputs"]))
        self.graph.lint()
        module = fx.GraphModule(nn.Module(), self.graph, class_name="Step")
        names = self.document.get("output_names")
        module.meta["output_names"] = None if names is None else list(names)
        return module

    def _placeholder(self, node: Mapping[str, Any]) -> None:
        [value] = node["outputs"]
        made = self._argument(node["name"])
        made.meta[META] = self._about(node) | {"shape": list(value["shape"]), "dtype": TORCH_DTYPES[value["dtype"]]}
        self.values[value["id"]] = made

    def _given(self, name: str) -> fx.Node:
        made = self._argument(name)
        made.meta[META] = {"name": name, "phase": "run"}
        return made

    def _argument(self, name: str) -> fx.Node:
        """Adds a placeholder. Its name in the file may be invalid in Python, or clash with arguments of the run."""
        plain = "argument_" + re.sub(r"\W", "_", name, flags=re.ASCII)
        count = 0
        while (target := plain if count == 0 else f"{plain}_{count}") in self.taken:
            count += 1
        self.taken.add(target)
        return self.graph.placeholder(target)

    def _call(self, node: Mapping[str, Any]) -> None:
        args, kwargs = calls.arguments(node, self._value)
        if node["op"] in OPTIMIZERS:
            target, args = OPTIMIZERS[node["op"]], [*self.run_time, *args]
        elif node.get("random"):
            target, args = draw, [self.seed, _slot(node), _overload(node), *args]
        else:
            target = _overload(node)
        made = self.graph.create_node("call_function", target, tuple(args), kwargs, name=node["name"])
        made.meta[META] = self._about(node)
        outputs = node["outputs"]
        if node["op"] in OPTIMIZERS or len(outputs) > 1:
            for index, output in enumerate(outputs):
                if output is not None:
                    part = self.graph.call_function(operator.getitem, (made, index))
                    part.meta[META] = self._about(node)
                    self.values[output["id"]] = part
        elif outputs[0] is not None:
            self.values[outputs[0]["id"]] = made

    def _about(self, node: Mapping[str, Any]) -> dict[str, Any]:
        about = {"name": node["name"], "phase": node["phase"], "module": self.document["modules"][node.get("module", 0)]}
        return about | {key: node[key] for key in ("parameter", "recomputes", "differentiates") if key in node}

    def _value(self, value: int) -> fx.Node:
        if value not in self.values:
            raise GraphFileError(f"value {value} is read before it is produced")
        return self.values[value]


def _slot(node: Mapping[str, Any]) -> int | str:
    """What a random node's numbers depend on: its seed slot, or its name if it has none."""
    slot = node.get("seed_slot")
    if slot is None:
        return str(node["name"])
    if type(slot) is not int or not 0 <= slot < 2**32:
        raise GraphFileError(f"node {node['name']!r} has seed slot {slot!r}; it is a whole number below 2^32")
    return slot


def _overload(node: Mapping[str, Any]) -> Callable[..., Any]:
    found = calls.overload(node["op"])
    if found is None:
        raise GraphFileError(f"node {node['name']!r} calls {node['op']!r}, which PyTorch {torch.__version__} does not have")
    return found


def new_seed() -> int:
    """The seed of all random numbers of one step; drawn from PyTorch's own generator, which `manual_seed` sets."""
    return int(torch.randint(0, 2**62, ()))


def draw(seed: int, slot: int | str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call that draws random numbers: the same ones for the same seed and slot, whenever it runs."""
    devices = {item.device for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)}
    device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
    generator = kind_of(device).generator
    before = generator.get_state()
    # Slots are spread by multiples of the golden ratio (Weyl); a node without a slot uses its name.
    number = slot if isinstance(slot, int) else int.from_bytes(slot.encode()[-7:], "little")
    generator.manual_seed((seed + (number + 1) * 0x9E3779B97F4A7C15) % 2**63)
    try:
        return call(*args, **kwargs)
    finally:
        generator.set_state(before)


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _described(found: tuple[list[int], torch.dtype] | None) -> str:
    return "missing" if found is None else f"{found[1]} of shape {found[0]}"
