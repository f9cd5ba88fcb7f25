"""From a joint graph and a budget to the two functions that run it within that.

Invariant: what is generated was planned and checked by the compiled planner; the same graph, costs and budget give the
plan that was kept on disk, if there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import _native, cache
from ..errors import InfeasibleBudget
from ..given import asked
from . import roles
from .code import UNSIZED, Code, Sized, generate
from .joint import BARRIER
from .transfers import Move, Transfers, movable

# A machine that uses what the graph records; it predicts calls without seconds if no machine is named.
_MACHINE = "a100-80gb"
# Number of plans kept on disk, and of graphs of which is kept which plans there are.
_PLANS = 64


@dataclass(frozen=True)
class Swapped:
    """A tensor that leaves the device after one access and is back for the next one.

    `node` makes it, and it takes `bytes`. `last_access` and `next_access` are the nodes between which it is away, and
    after `in_trigger` it begins to return; each is `None` if there is none: at the start or the end of the step.
    `idle_seconds` pass between the two accesses. The transfer out takes `out_seconds` (`None` if the tier already has
    the tensor) and the one back `back_seconds`, which leave `free_seconds`; calls wait `stall_seconds` for them. All
    are predicted.
    """

    node: str
    module: str
    bytes: int
    last_access: str | None
    in_trigger: str | None
    next_access: str | None
    idle_seconds: float
    out_seconds: float | None
    back_seconds: float
    free_seconds: float
    stall_seconds: float


@dataclass(frozen=True)
class Held:
    """A plan: the most bytes that its graph holds, its predicted seconds, and what else is known about it."""

    peak: int
    seconds: float
    unplanned_peak: int
    unplanned_seconds: float
    bound_seconds: float | None
    recomputed: int
    document: dict[str, Any]
    # Its moves between the document's nodes, and the bytes of the tier that it needs.
    moves: Sequence[Move] = ()
    below: int = 0
    # The tensors that are away: for each, the fields of a `Swapped`.
    swapped: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Below:
    """A tier: its bytes, bytes per second there and back, and the latency of a transfer in seconds."""

    size: int
    out: float
    back: float
    latency: float


def held(document: Mapping[str, Any], budget: int | None, deadline: float | None,
         machine: str | None = None, below: Below | None = None, *, with_residents: bool = False,
         planner: str = "auto") -> Held:
    """The fastest plan of a graph that a planner finds within the budget or, without one, a plan that holds as few
    bytes as possible. Calls without seconds in the graph are predicted for the machine. With a tier `below` the device,
    what the step makes for itself may be away there, and `with_residents` also parameters and optimizer state.

    A plan of the same graph that is kept from before is the answer if it is better: a larger budget is never slower than
    a smaller one that was planned before it, and what fitted once is not refused later.

    Raises `InfeasibleBudget`.
    """
    machine = machine or _MACHINE
    text, graph, name = _question(document, budget, deadline, machine, below, planner, with_residents)
    if (found := _kept(name)) is not None:
        return found
    try:
        found = _searched(document, text, budget, deadline, machine, below, with_residents, planner)
    except InfeasibleBudget:
        found = _better(graph, budget, None)
        if found is None:
            raise
    else:
        found = _better(graph, budget, found) or found
    cache.keep(name, json.dumps(vars(found)), most=_PLANS)
    _note(graph, found, name)
    return found


def _searched(document: Mapping[str, Any], text: str, budget: int | None, deadline: float | None, machine: str,
              below: Below | None, with_residents: bool, planner: str) -> Held:
    """What the planner finds."""
    given = {} if below is None else {"tier": (below.size, below.out, below.back, below.latency),
                                        "movable": movable(document, with_residents=with_residents)}
    made = asked(_native.hold, text.encode(), budget, deadline=deadline, machine=machine, planner=planner, **given)
    facts = {key: getattr(made, key) for key in ("peak", "seconds", "unplanned_peak", "unplanned_seconds", "bound_seconds",
                                                 "recomputed", "moves", "below")}
    return Held(**facts, document=json.loads(made.document), swapped=json.loads(made.swapped))


def kept(document: Mapping[str, Any], budget: int | None, deadline: float | None, machine: str | None = None,
         below: Below | None = None, *, with_residents: bool = False, planner: str = "auto") -> Held | None:
    """What `held` found for this before, if it is on disk."""
    return _kept(_question(document, budget, deadline, machine or _MACHINE, below, planner, with_residents)[2])


def _question(document: Mapping[str, Any], budget: int | None, deadline: float | None, machine: str, below: Below | None,
              planner: str, with_residents: bool) -> tuple[str, str, str]:
    """A graph as text, and the names of two files: what is known of its plans, and the plan that is asked for."""
    text = json.dumps(document, sort_keys=True)
    graph = _digest(f"{_native.__version__} {machine} {below} {planner} {with_residents} {text}")
    return text, f"graphs/{graph}.json", f"plans/{_digest(f'{graph} {budget} {deadline}')}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _known(graph: str) -> list[tuple[int, float, str]]:
    """The peaks, seconds and files of the plans of a graph; none of them is better than another one in both figures."""
    try:
        return [(peak, seconds, name) for peak, seconds, name in json.loads(cache.read(graph) or "[]")]
    except (ValueError, TypeError):
        return []


def _better(graph: str, budget: int | None, found: Held | None) -> Held | None:
    """The best plan that is kept of a graph, if it is better than what was found: the fastest within the budget or,
    without one, the one with the lowest peak."""
    def rank(peak: int, seconds: float) -> tuple[float, float]:
        return (peak, seconds) if budget is None else (seconds, peak)

    within = [one for one in _known(graph) if budget is None or one[0] <= budget]
    for peak, seconds, name in sorted(within, key=lambda one: rank(one[0], one[1])):
        if found is not None and rank(peak, seconds) >= rank(found.peak, found.seconds):
            return None
        if (plan := _kept(name)) is not None:
            # Its own bound is that of another budget.
            return replace(plan, bound_seconds=None if found is None else found.bound_seconds)
    return None


def _note(graph: str, found: Held, name: str) -> None:
    """Adds a plan to what is known of its graph."""
    known = _known(graph)
    if not any(peak <= found.peak and seconds <= found.seconds for peak, seconds, _ in known):
        others = [one for one in known if one[0] < found.peak or one[1] < found.seconds]
        cache.keep(graph, json.dumps([*others, (found.peak, found.seconds, name)]), most=_PLANS)


def _kept(name: str) -> Held | None:
    text = cache.read(name)
    try:
        facts = None if text is None else json.loads(text)
        return None if facts is None else Held(**facts | {"moves": [tuple(move) for move in facts["moves"]], "swapped": facts["swapped"]})
    except (ValueError, TypeError, KeyError):
        return None


def apart(plan: Held) -> Held:
    """The same plan with nothing overwritten, as a graph that is kept for another backward pass needs it."""
    nodes = [{key: item for key, item in node.items() if key != "overwrites"} for node in plan.document["nodes"]]
    return _changed(plan, plan.document | {"nodes": nodes})


def with_loss(plan: Held, between: int, grown: int | None = None) -> Held:
    """The same plan with a loss that takes `between` bytes between forward and backward pass, and `grown` bytes that
    others get there (`None`: as many as before)."""
    return _changed(plan, around(plan.document, between, grown))


def around(document: Mapping[str, Any], between: int, grown: int | None = None) -> dict[str, Any]:
    """A graph between whose passes `between` bytes are taken, and `grown` bytes that stay until the end (`None`: as many
    as before)."""
    changed = dict(document)
    before, added = roles.grown_value(document), []
    if grown is None:
        before = None
    if before is not None:
        names = [name for name in document["output_names"] if name != roles.GROWN]
        changed |= {"output_names": names, "outputs": [value for value in document["outputs"] if value != before]}
    if grown:
        value = 1 + max(output["id"] for node in document["nodes"] for output in node["outputs"] if output is not None)
        added = [{"id": value, "shape": [grown], "dtype": "u8", "storage": len(document["storages"])}]
        changed |= {"storages": [*document["storages"], grown], "outputs": [*changed["outputs"], value],
                    "output_names": [*changed["output_names"], roles.GROWN]}

    def surrounded(node: Mapping[str, Any]) -> dict[str, Any]:
        return {**node, "workspace": between, "outputs": [*(output for output in node["outputs"] if output["id"] != before), *added]}

    changed["nodes"] = [surrounded(node) if node["op"] == BARRIER else node for node in document["nodes"]]
    return changed


def _changed(plan: Held, document: dict[str, Any]) -> Held:
    return replace(plan, peak=graph_peak(document, plan.moves), document=document)


def graph_peak(document: Mapping[str, Any], moves: Sequence[Move] = ()) -> int:
    """The peak of a graph in bytes, in the order in which it is written, with these moves."""
    graph = _native.read_graph(json.dumps(document).encode())
    return _native.peak_with_moves(graph, list(moves), _MACHINE)


def code(plan: Held, constants: Mapping[str, torch.Tensor], outputs: list[Any],
         update: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
         leave: Callable[[torch.Tensor], Any] | None = None, resident: Callable[[torch.Tensor, bool], Any] | None = None, *,
         keeps: bool = False, varying: Sized = UNSIZED) -> Code:
    """The functions of a plan; `update` runs its updates, `leave` begins to move a tensor to the tier, and `resident`
    returns the object that moves a parameter or its state. If the backward pass `keeps` its inputs, it may run
    again. `varying` are its extents."""
    transfers = Transfers(plan.document, plan.moves)
    return generate(plan.document, constants, outputs, update, transfers=transfers, leave=leave, resident=resident,
                    keeps=keeps, varying=varying)
