"""The forward and the backward pass of a plan as two Python functions.

Invariant: calls are in the plan's order, one per line, and every tensor is freed after its last use; so the functions
hold what the plan's graph says. A call overwrites an input if the plan's graph says so. A recomputation draws the
random numbers of its first run, and leaves the generator in the state that it had before.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import calls, extents
from ..devices import kind_of
from ..errors import ExportError
from .binding import Way, quickest
from .inplace import PUT, overwriting, put, writing
from . import roles
from .joint import BARRIER, SHOWN, UPDATE
from .places import Place, places
from .roles import Kind, Role
from .transfers import Event, Transfers


@dataclass(frozen=True)
class Code:
    """The two functions.

    `forward(arguments)` empties the list of the graph's arguments and returns the outputs and the list of what the
    backward pass needs. `backward(saved, tangents, gradients)` empties the list `saved` and returns the gradients that
    are results, by the positions of their arguments. The others are added in place to the tensors that `gradients` has
    for them; where it has `None`, it gets the gradient.
    """

    forward: Callable[[list[Any]], tuple[list[Any], list[Any]]]
    backward: Callable[[list[Any], list[Any], dict[int, torch.Tensor | None]], dict[int, torch.Tensor]] | None
    source: str
    # The arguments among what is saved, by position, and the bytes of everything else that is saved.
    saved_arguments: tuple[int, ...]
    saved_bytes: int
    # The outputs that lie in saved memory, by position.
    saved_outputs: frozenset[int]
    # Residents that move: the position of the argument, whether it is the optimizer state of that, and whether the step
    # finds it away.
    residents: tuple[tuple[int, bool, bool], ...] = ()


@dataclass(frozen=True)
class Sized:
    """The extents of a graph whose sizes vary: the positions of the arguments that are sizes, and by name the calls
    whose integers follow from them."""

    arguments: tuple[int, ...] = ()
    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


UNSIZED = Sized()


def generate(document: Mapping[str, Any], constants: Mapping[str, torch.Tensor], outputs: list[Any],
             update: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None, *,
             transfers: Transfers | None = None, leave: Callable[[torch.Tensor], Any] | None = None,
             resident: Callable[[torch.Tensor, bool], Any] | None = None, keeps: bool = False,
             varying: Sized = UNSIZED) -> Code:
    """The functions of a planned graph. `outputs` are the forward pass's results: `None` stands for a tensor of the
    graph, and everything else for itself. `update` updates a parameter by its gradient and returns it, if that is part
    of the graph. `transfers` are the plan's moves, `leave` begins to move a tensor to the tier, and `resident` returns
    the object that moves a parameter or its state; if the backward pass `keeps` what it starts from, it leaves away
    what it found away. `varying` are the graph's extents."""
    return _Generator(document, constants, outputs, update, transfers, leave, resident, keeps, varying).run()


class _Generator:
    """The state of one generation: the names that constants and operators have in the functions."""

    def __init__(self, document: Mapping[str, Any], constants: Mapping[str, torch.Tensor], outputs: list[Any],
                 update: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
                 transfers: Transfers | None = None, leave: Callable[[torch.Tensor], Any] | None = None,
                 resident: Callable[[torch.Tensor, bool], Any] | None = None, keeps: bool = False,
                 varying: Sized = UNSIZED) -> None:
        self.varying = varying
        self.update = update
        self.transfers = Transfers(document, []) if transfers is None else transfers
        self.keeps = keeps
        self.document = document
        self.placed = places(document, self.transfers.moved)
        self.outputs = outputs
        self.constants = constants
        self.names: dict[str, Any] = {"state_of": _state_of, "now_of": _now_of, "go_back": _go_back, "go_on": _go_on,
                                      "add": _add, "leave": leave, "resident": resident}
        self.bound: dict[Any, str] = {}
        self.described = {value["id"]: value for node in document["nodes"] for value in node["outputs"] if value is not None}
        self.quickest: dict[Any, Way] = {}
        # Placeholders: arguments and gradients by position, constants by name.
        self.arguments = roles.placed(document, Kind.ARGUMENT)
        self.gradients = roles.placed(document, Kind.GRADIENT)
        self.of_constants = roles.constants(document)
        # Positions of arguments that share the storage of another one.
        self.shown = _shown(document["nodes"])
        # Values that leave the functions.
        self.returned = set(document["outputs"]) | {value for node in document["nodes"] if node["op"] == BARRIER
                                                    for value in node.get("inputs", [])}
        # States of parameters are not tensors of the generated code: the optimizer has them.
        states = {self.described[value]["storage"] for value in roles.placed(document, Kind.STATE).values()}
        self.unnamed = {_variable(value["id"]) for value in self.described.values() if value["storage"] in states}
        self.places = {node["name"]: index for index, node in enumerate(document["nodes"])}
        self.again = {node["recomputes"] for node in document["nodes"] if node.get("stream") and "recomputes" in node}

    def run(self) -> Code:
        nodes = self.document["nodes"]
        running = [node for node in nodes if node["op"] != "placeholder"]
        barrier = next(index for index, node in enumerate(running) if node["op"] == BARRIER)
        early, late = running[:barrier], running[barrier + 1:]
        owed = running[barrier]["args"][0]
        grown = roles.grown_value(self.document)
        tangents = [value["id"] for value in running[barrier]["outputs"] if value["id"] != grown]

        needed = _read(late)
        results = roles.results(self.document)
        needed |= set(results.values())
        made = {value["id"] for node in early for value in node["outputs"] if value is not None}
        saved = [_variable(value) for value in sorted(needed & (made | set(self.arguments.values())))]
        states = [_state(node) for node in early if node["name"] in self._draws_again(late)]
        states += [_away(copy) for copy in sorted(self.transfers.kept)]
        states += map(extents.name, self.varying.arguments)

        stored = {value["id"]: value["storage"] for node in nodes for value in node["outputs"] if value is not None}
        own = {value["storage"] for node in early for value in node["outputs"]
               if value is not None and _variable(value["id"]) in saved}
        shared = {index: stored[value["value"]] for index, value in enumerate(owed)
                  if value is not None and stored[value["value"]] in own}
        # A saved value that shares memory with an output is saved as a separate tensor, so that it is detectable
        # whether the caller still holds the output.
        apart = {_variable(value) for value in needed & made if stored[value] in shared.values()}
        shown = _shown(late)
        saved += map(_argument, shown)
        kept = [f"{name}.detach()" if name in apart else name for name in saved]
        border = self.places[running[barrier]["name"]]
        text = self._forward(early, owed, saved + states, kept + states, border)
        if tangents or late:
            text += "\n\n" + self._backward(late, tangents, saved + states, results)
        # Instead of an argument, a view of it may be saved.
        read = {storage for value, storage in stored.items() if _variable(value) in saved}
        arguments = [index for index, value in self.arguments.items() if stored[value] in read] + shown
        own -= {node["outputs"][0]["storage"] for node in nodes if node["op"] == "placeholder"} | self.transfers.away
        return self._compiled(text, tuple(arguments), sum(self.document["storages"][storage] for storage in own),
                              frozenset(shared))

    def _draws_again(self, late: list[Mapping[str, Any]]) -> set[str]:
        return {node["recomputes"] for node in late if node.get("stream") and "recomputes" in node}

    def _forward(self, early: list[Mapping[str, Any]], owed: list[Any], saved: list[str], returned: list[str],
                 border: int) -> str:
        outputs = []
        for constant, value in zip(self.outputs, owed, strict=True):
            outputs.append(self._constant(constant) if value is None else _variable(value["value"]))
        lines = ["def forward(arguments):"]
        used = _read(early) | {value["value"] for value in owed if value is not None}
        kept = {*outputs, *saved}
        lines += [f"{_variable(value)} = arguments[{index}]" for index, value in sorted(self.arguments.items())
                  if value in used or _variable(value) in kept]
        shown = {*_shown(early), *(index for index in self.shown if _argument(index) in kept)}
        lines += [f"{_argument(index)} = arguments[{index}]" for index in sorted(shown)]
        for copy, (role, _) in sorted(self.transfers.residents.items()):
            owner = _variable(self.arguments[role.index])
            lines.append(f"{_away(copy)} = resident({owner}, {role.kind is Kind.STATE})")
        lines += [f"{_away(copy)}.leave()" for copy in sorted(self.transfers.copied)]
        lines += [f"{extents.name(index)} = arguments[{index}]" for index in self.varying.arguments]
        lines.append("arguments.clear()")
        lines += self._constants(used)
        lines += self._body(early, kept)
        lines += self._moved(self.transfers.before(border))
        if border + 1 == self.transfers.end:
            lines += self._moved(self.transfers.before(border + 1))
        lines.append(f"return [{', '.join(outputs)}], [{', '.join(returned)}]")
        return "\n    ".join(lines)

    def _backward(self, late: list[Mapping[str, Any]], tangents: list[int], saved: list[str],
                  results: dict[int, int]) -> str:
        lines = ["def backward(saved, tangents, gradients):"]
        if saved:
            lines.append(f"{', '.join(saved)}, = saved")
        lines.append("saved.clear()")
        used = _read(late) | set(results.values())
        lines += [f"{_variable(value)} = tangents[{index}]" for index, value in enumerate(tangents) if value in used]
        lines += [f"{_variable(value)} = gradients[{index}]" for index, value in self.gradients.items()]
        lines += self._constants(used)
        lines += self._body(late, {_variable(value) for value in results.values()})
        lines += self._moved(self.transfers.before(self.transfers.end))
        pairs = ", ".join(f"{index}: {_variable(value)}" for index, value in sorted(results.items()))
        lines.append(f"return {{{pairs}}}")
        return "\n    ".join(lines)

    def _constants(self, used: set[int]) -> Iterator[str]:
        for name, value in self.of_constants.items():
            if value in used:
                yield f"{_variable(value)} = {self._bound(self.constants[name], 'tensor')}"

    def _body(self, nodes: list[Mapping[str, Any]], kept: set[str]) -> Iterator[str]:
        """The calls, each followed by the deletion of what it was the last to use."""
        last: dict[str, int] = {}
        for index, node in enumerate(nodes):
            for variable in map(_variable, _values(node)):
                if variable not in self.unnamed:
                    last[variable] = index
            if node.get("stream") and "recomputes" in node:
                last[_state_named(node["recomputes"])] = index
            elif node["name"] in self.again:
                last[_state(node)] = index
        dying: dict[int, list[str]] = {}
        for variable, index in last.items():
            if variable not in kept:
                dying.setdefault(index, []).append(variable)
        for index, node in enumerate(nodes):
            yield from self._moved(self.transfers.before(self.places[node["name"]]))
            if (role := Role.of(node)) is not None and role.kind is Kind.SUM:
                there, value = (_variable(item["value"]) for item in node["args"])
                total = _variable(node["outputs"][0]["id"])
                yield f"{total} = gradients[{role.index}] = add({there}, {value})"
            else:
                yield from self._call(node)
            if self.keeps:
                yield from self._moved(self.transfers.after(self.places[node["name"]]))
            if index in dying:
                yield f"del {', '.join(dying[index])}"

    def _moved(self, events: Iterable[Event]) -> Iterator[str]:
        """The lines for moves, by the handle of the storage."""
        for event in events:
            handle = _away(event.copy)
            if event.value is None:
                yield f"{handle}.{event.what}()"
                continue
            variable = _variable(event.value)
            if event.what == "leave":
                yield f"{handle} = leave({variable})"
            elif event.what != "forget":
                yield f"{handle}.{event.what}({variable})"
            elif not (self.keeps and event.copy in self.transfers.kept):
                yield f"del {handle}"

    def _call(self, node: Mapping[str, Any]) -> Iterator[str]:
        outputs = node["outputs"]
        if node["op"] == SHOWN:
            yield f"{_variable(outputs[0]['id'])} = {_argument(node['args'][1])}"
            return
        call = self._called(node)
        goes_back = node.get("stream") and "recomputes" in node
        if goes_back:
            state = _state_named(node["recomputes"])
            yield f"now = now_of({state})"
        elif node["name"] in self.again:
            # The random state before the first run.
            yield f"{_state(node)} = state_of({self._device(node)})"
        if node["op"] == UPDATE:
            outputs = outputs[:1]
        made = [_variable(output["id"]) if output is not None else "unread" for output in outputs]
        if len(outputs) == 1 and not _makes_list(node):
            target = "" if outputs[0] is None else f"{made[0]} = "
        else:
            target = "" if all(output is None for output in outputs) else f"{', '.join(made)}, = "
        if goes_back:
            # Even if the call fails, the generator must not repeat numbers that were already drawn.
            yield f"try: go_back({state}); {target}{call}"
            yield "finally: go_on(now); del now"
        else:
            yield f"{target}{call}"
        if len(outputs) > 1 and target and "unread" in made:
            yield "del unread"

    def _device(self, node: Mapping[str, Any]) -> str:
        """An expression for the device whose generator a call draws from: of a tensor it reads, or the call's."""
        read = node.get("inputs", [])
        if read:
            return f"{_variable(read[0])}.device"
        return self._constant(torch.device(node.get("kwargs", {}).get("device", "cpu")))

    def _called(self, node: Mapping[str, Any]) -> str:
        args, kwargs = calls.arguments(extents.restored(node, self.varying.calls), _Named)
        if node["name"] in self.placed.puts:
            return self._argument(args[0])
        if node["op"] == PUT and node.get("overwrites"):
            return f"{self._bound(put, 'put')}({', '.join(map(self._argument, args))})"
        overload, args, kwargs = self._overload(node, args, kwargs)
        way = self._quickest(overload, args, kwargs)
        parts = [self._argument(item) for item in way.given(args)]
        parts += [f"{name}={self._argument(item)}" for name, item in kwargs.items()]
        if way.method is not None:
            return f"{parts[0]}.{way.method}({', '.join(parts[1:])})"
        return f"{self._bound(way.function, 'op')}({', '.join(parts)})"

    def _overload(self, node: Mapping[str, Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """The operator of a call with its arguments; if the call overwrites one of them, the operator that does so."""
        if node["op"] == UPDATE and self.update is not None:
            return None, args[:2], kwargs
        name = node["op"]
        if name == "aten._unsafe_view.default" and self.returned.isdisjoint(_made(node)):
            # The same operation; only a caller that receives the result could tell the difference.
            name = "aten.view.default"
        overload = calls.overload(name)
        if overload is None:
            raise ExportError(f"PyTorch {torch.__version__} has no operator {name!r}; please report this model")
        if (place := self.placed.parts.get(node["name"])) is not None:
            found, keyword = writing(overload)
            return found, args, {**kwargs, keyword: place}
        if not node.get("overwrites"):
            return overload, args, kwargs
        [value] = node["overwrites"]
        how = overwriting(overload, args.index(_Named(value)))
        return how.overload, *how.call(args, kwargs)

    def _quickest(self, overload: torch._ops.OpOverload | None, args: Sequence[Any],
                  kwargs: Mapping[str, Any]) -> Way:
        """How an operator is called with arguments of these kinds; the update of a parameter is not an operator."""
        if overload is None:
            return Way(function=self.update)
        key = overload, self._kinds(args), self._kinds(list(kwargs.items()))
        if key not in self.quickest:
            self.quickest[key] = quickest(overload, self._like(args), self._like(kwargs))
        return self.quickest[key]

    def _kinds(self, item: Any) -> Any:
        """The part of an argument that decides which operator a call resolves to."""
        if isinstance(item, (list, tuple)):
            return tuple(self._kinds(one) for one in item)
        if isinstance(item, _Named):
            value = self.described[item.value]
            return "tensor", value["dtype"], len(value["shape"])
        if isinstance(item, Place):
            return self._kinds(_Named(item.whole))
        return item if isinstance(item, str) else type(item)

    def _like(self, item: Any) -> Any:
        """The same argument, its tensors without memory."""
        if isinstance(item, dict):
            return {key: self._like(one) for key, one in item.items()}
        if isinstance(item, list):
            return [self._like(one) for one in item]
        if isinstance(item, _Named):
            value = self.described[item.value]
            return torch.empty(value["shape"], dtype=calls.TORCH_DTYPES[value["dtype"]], device="meta")
        if isinstance(item, Place):
            return self._like(_Named(item.whole)).narrow(item.dim, item.first, item.count)
        return int(item) if isinstance(item, extents.Extent) else item

    def _argument(self, item: Any) -> str:
        if isinstance(item, _Named):
            return _variable(item.value)
        if isinstance(item, Place):
            return f"{_variable(item.whole)}.narrow({item.dim}, {item.first}, {item.count})"
        if isinstance(item, list):
            return f"[{', '.join(self._argument(one) for one in item)}]"
        return self._constant(item)

    def _constant(self, item: Any) -> str:
        if item is None or isinstance(item, (bool, int)):
            return repr(item)
        if isinstance(item, float) and abs(item) < float("inf"):
            return repr(item)
        return self._bound(item, "c")

    def _bound(self, item: Any, prefix: str) -> str:
        key = (type(item), repr(item)) if prefix == "c" else id(item)
        if key not in self.bound:
            self.bound[key] = f"{prefix}{len(self.bound)}"
            self.names[self.bound[key]] = item
        return self.bound[key]

    def _compiled(self, text: str, arguments: tuple[int, ...], size: int,
                  shared: frozenset[int]) -> Code:
        name = f"<tightfit {self.document['name']} {id(self):x}>"
        # Lets tracebacks show the line.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), self.names)  # noqa: S102
        residents = tuple((role.index, role.kind is Kind.STATE, is_away)
                          for role, is_away in self.transfers.residents.values())
        return Code(self.names["forward"], self.names.get("backward"), text, arguments, size, shared, residents)


@dataclass(frozen=True)
class _Named:
    """Stands for a value in a call's arguments."""

    value: int


def _variable(value: int) -> str:
    return f"v{value}"


def _argument(index: int) -> str:
    return f"argument_{index}"


def _shown(nodes: Iterable[Mapping[str, Any]]) -> list[int]:
    """The arguments, by position, that nodes show in the storage of another one."""
    return list(dict.fromkeys(node["args"][1] for node in nodes if node["op"] == SHOWN))


def _away(copy: int) -> str:
    return f"away{copy}"


def _state(node: Mapping[str, Any]) -> str:
    return _state_named(node["name"])


def _state_named(name: str) -> str:
    return f"state_{name}"


def _makes_list(node: Mapping[str, Any]) -> bool:
    """Whether a call returns a list of tensors, however many."""
    overload = calls.overload(node["op"])
    return overload is not None and any(isinstance(result.type, torch.ListType) for result in overload._schema.returns)


def _values(node: Mapping[str, Any]) -> list[int]:
    """What a call reads, and what it makes: both are deleted after it, if nothing uses them later."""
    return list(dict.fromkeys([*node.get("inputs", []), *_made(node)]))


def _made(node: Mapping[str, Any]) -> list[int]:
    return [output["id"] for output in node["outputs"] if output is not None]


def _read(nodes: list[Mapping[str, Any]]) -> set[int]:
    return {value for node in nodes for value in node.get("inputs", [])}


def _add(there: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    """Adds a gradient in place to an existing one; if there is none, copies it to memory of its own."""
    return gradient.clone() if there is None else there.add_(gradient)


def _state_of(device: torch.device) -> torch.Generator:
    """A copy of PyTorch's generator of a device in its present state."""
    return kind_of(device).generator.clone_state()


def _now_of(state: torch.Generator) -> torch.Generator:
    """A copy of the generator of a state's device in its present state."""
    return _state_of(state.device)


def _go_back(state: torch.Generator) -> None:
    """Resets the generator of a device to an earlier state."""
    kind_of(state.device).generator.set_state(state.get_state())


def _go_on(now: torch.Generator) -> None:
    """Returns the generator to the state that it had before the reset."""
    kind_of(now.device).generator.set_state(now.get_state())
