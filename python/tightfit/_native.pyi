"""The compiled module. `tightfit.planning` says what its functions do; use those.

Invariant: what stands here is what `crates/python` exports.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal, final

__version__: str

@final
class Graph:
    """A training step as one graph of operator calls, verified when it was read."""

    @property
    def name(self) -> str:
        """The name that the graph has."""
    @property
    def nodes(self) -> int:
        """How many nodes compute: all but parameters, state, batch and views."""
    @property
    def static_bytes(self) -> int:
        """Bytes of parameters, optimizer state and batch."""
    def unplanned_peak(self, machine: str | None = None, *, threads: int | None = None) -> int:
        """The most bytes that the step holds as captured, with nothing recomputed."""

@final
class Held:
    """A step whose bytes held stay within a budget, checked, and what it costs."""

    @property
    def budget(self) -> int:
        """The budget in bytes; what it holds where as little as possible was asked for."""
    @property
    def peak(self) -> int:
        """The most bytes held at any time."""
    @property
    def seconds(self) -> float:
        """Predicted time of the step."""
    @property
    def unplanned_peak(self) -> int:
        """The most bytes held by the step as captured."""
    @property
    def unplanned_seconds(self) -> float:
        """Predicted time of the step as captured."""
    @property
    def bound_seconds(self) -> float | None:
        """The time that no plan within the budget beats; absent where nothing is proven."""
    @property
    def recomputed(self) -> int:
        """How many nodes run again, counting repetitions."""
    @property
    def document(self) -> str:
        """The plan as a graph: nodes in the plan's order, with what runs again as nodes of their own."""
    @property
    def moves(self) -> list[tuple[int, int, int, str]]:
        """What moves, in order: the node of the document before which it does, or their number; the storage there; that of
        the graph as it was given, whose copy in the tier it is; and `offload`, `release` or `prefetch`."""
    @property
    def below(self) -> int:
        """The most bytes of the tier that are needed at once."""
    @property
    def swapped(self) -> str:
        """What is away when, and in which free time, as a document."""

@final
class Fitted:
    """A step's schedule within a budget, checked, and what it costs."""

    @property
    def graph(self) -> str:
        """The graph's name."""
    @property
    def machine(self) -> str:
        """The machine that it is planned for."""
    @property
    def planner(self) -> str:
        """The planner that found the schedule."""
    @property
    def budget(self) -> int:
        """The whole budget in bytes."""
    @property
    def reserve(self) -> int:
        """The part of the budget that the engine's matrix products need beside the slab."""
    @property
    def peak(self) -> int:
        """The most bytes held at any time."""
    @property
    def slab(self) -> int:
        """Bytes of the slab in which every buffer has its address."""
    @property
    def seconds(self) -> float:
        """Predicted time of the step."""
    @property
    def unplanned_peak(self) -> int:
        """The most bytes held by the step as captured."""
    @property
    def unplanned_seconds(self) -> float:
        """Predicted time of the step as captured."""
    @property
    def overhead(self) -> float:
        """What the step takes more than as captured, as a share of that."""
    @property
    def bound_seconds(self) -> float | None:
        """The time that no schedule within the budget beats; `None` where nothing is proven."""
    @property
    def bound_order(self) -> Literal["any", "given"] | None:
        """Of which schedules the bound speaks: of those in any order, or in the order of this graph."""
    @property
    def gap(self) -> float | None:
        """What the schedule may lose to the best one, as a share of the time as captured."""
    @property
    def runs(self) -> tuple[str, ...]:
        """Names of nodes in the order in which they run; one that stands there again is recomputed."""
    @property
    def recomputed(self) -> tuple[str, ...]:
        """Names of the nodes that run again, in the order in which they do."""
    def explain(self) -> dict[str, Any]:
        """What runs again and what is swapped, with its cost and its saving, and with Capuchin its candidates and choices:
        what the program's `plan --explain --json` has of them."""
    def to_json(self) -> str:
        """The schedule as a document: tightfit-plan/1."""

@final
class Trace:
    """What a recorded step asked for."""

    @property
    def passes(self) -> int:
        """How many passes the step had."""
    @property
    def allocations(self) -> int:
        """How many allocations it made."""

@final
class Placement:
    """Where each allocation of a step lies, checked."""

    @property
    def slab(self) -> int:
        """Bytes of the slab that it needs."""
    @property
    def placed(self) -> int:
        """How many allocations lie in it."""
    @property
    def beside(self) -> int:
        """The most bytes that the step takes beside the slab."""
    @property
    def rises(self) -> list[int]:
        """For each pass the most bytes that it takes beside the slab, above those that are there when it begins."""
    @property
    def peak(self) -> int:
        """The most bytes that the step takes without a slab."""

@final
class Addresses:
    """The allocator of one device: the number of a device of CUDA, or -1 for the memory of this computer."""

    def __init__(self, device: int) -> None: ...
    def record(self) -> None:
        """A step begins that is to be recorded."""
    def replay(self, placement: Placement) -> None:
        """A step begins that is to be replayed."""
    def leave(self) -> Trace | None:
        """The step that was begun is over; what was recorded of it."""
    def open(self, stream: int) -> None:
        """A pass of the step begins on the calling thread and on this stream."""
    def close(self) -> None:
        """The pass has ended."""
    def stop(self) -> str | None:
        """The step is given up; why it was stopped, if the allocator stopped it."""
    def reserve(self, size: int) -> None:
        """Makes the slab as large as this, or lets it go."""
    def reset_peak(self) -> None:
        """The peak starts again from what is reserved now."""
    def counters(self) -> dict[str, int]:
        """What is reserved, and what was done so far."""

def lay_out(first: Trace, second: Trace) -> Placement | None:
    """Lays out two recordings of a step that agree; `None` where they do not."""

_Graph = Graph | str | os.PathLike[str] | bytes | dict[str, Any]
_Plan = Fitted | str | os.PathLike[str] | bytes | dict[str, Any]

def obstacle(graph: _Graph) -> tuple[list[str], str | None, str] | None:
    """What keeps the engine from executing a graph: operators that it lacks, or a node, and why; else `None`."""

def read_graph(source: _Graph) -> Graph: ...
def fit(
    graph: _Graph,
    budget: int | str,
    *,
    machine: str | None = None,
    threads: int | None = None,
    planner: str = "auto",
    deadline: float | str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
    roofline: bool = False,
    tier: str | None = None,
) -> Fitted: ...
def analyze(
    graph: _Graph,
    budget: int | str | None = None,
    *,
    module: str | None = None,
    depth: int | None = None,
    machine: str | None = None,
    threads: int | None = None,
) -> str: ...
def check(
    graph: _Graph,
    plan: _Plan,
    budget: int | str | None = None,
    *,
    machine: str | None = None,
    threads: int | None = None,
) -> str: ...
def pareto(
    graph: _Graph,
    *,
    points: int | None = None,
    machine: str | None = None,
    threads: int | None = None,
    planner: str = "auto",
    deadline: float | str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
) -> str: ...
def hold(
    graph: _Graph,
    budget: int | None,
    *,
    machine: str = "a100-80gb",
    planner: str = "auto",
    deadline: float | str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
    tier: tuple[int, float, float, float] | None = None,
    movable: Sequence[int] = (),
) -> Held: ...
def peak_with_moves(graph: _Graph, moves: Sequence[tuple[int, int, int, str]], machine: str) -> int: ...
def report(
    graph: _Graph,
    out: str | os.PathLike[str],
    *,
    plan: _Plan | None = None,
    points: int | None = None,
    machine: str | None = None,
    threads: int | None = None,
    planner: str = "auto",
    deadline: float | str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
) -> None: ...
def modules(
    graph: _Graph,
    *,
    machine: str | None = None,
    threads: int | None = None,
    ancestors: bool = False,
) -> str: ...
def sac(
    graph: _Graph,
    budget: int | str,
    *,
    world_size: int | None = None,
    units: Sequence[str] | None = None,
    sharded: Sequence[str] | None = None,
    gap: float | str | None = None,
    deadline: float | str | None = None,
    machine: str | None = None,
    threads: int | None = None,
) -> str: ...
def shard(
    graph: _Graph,
    budget: int | str,
    *,
    world_size: int,
    bandwidth: float | str,
    latency: float | str,
    variant: str = "ours",
    units: Sequence[str] | None = None,
    checkpoint: bool = False,
    host_bandwidth: float | str | None = None,
    host_latency: float | str | None = None,
    gap: float | str | None = None,
    deadline: float | str | None = None,
    machine: str | None = None,
    threads: int | None = None,
) -> str: ...
def stages(
    graph: _Graph,
    budget: int | str,
    *,
    devices: int,
    microbatches: int,
    bandwidth: float | str | None = None,
    latency: float | str | None = None,
    state: float | None = None,
    schedule: str | None = None,
    cut: Sequence[str] = (),
    machine: str | None = None,
    threads: int | None = None,
) -> str: ...
def planner(name: str) -> str:
    """The planner called so, by the name that it has; refuses other names, and says which there are."""

def run(arguments: Sequence[str]) -> int:
    """Runs the program with the arguments, its own name first, and returns its exit code. The program takes the process
    over: its signals, its standard output, and its end where nobody reads that."""

def starts_by(words: Sequence[str]) -> None:
    """Says how the program is started in a process of its own, where something is to be measured. The first word on it
    counts."""
