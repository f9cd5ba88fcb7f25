"""The compiled module. `tightfit.planning` says what its functions do; use those.

Invariant: these declarations are what `crates/python` exports.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

__version__: str

@final
class Graph:
    """A training step as one graph of operator calls, verified when it was read."""

    @property
    def name(self) -> str:
        """The graph's name."""
    @property
    def nodes(self) -> int:
        """Number of nodes that compute: all but parameters, state, batch and views."""
    @property
    def static_bytes(self) -> int:
        """Bytes of parameters, optimizer state and batch."""
    def unplanned_peak(self, machine: str | None = None, *, threads: int | None = None) -> int:
        """The most bytes that the step holds as captured, with nothing recomputed."""
    def at(self, *, batch: int | None = None, length: int | None = None) -> Graph:
        """The same step with a batch of another size: of `batch` samples, each of this `length`. Every shape, and every
        number in a call that follows from the batch's size, is another; seconds that were measured are left out. Raises
        `OptionError` where it is not known what the step would be, and says at which node."""
    def may_be_seen(self, along: str) -> bool:
        """Whether a second capture may tell what the step is at another `batch` or `length`."""
    def seen(self, other: Graph, along: str, grid: int) -> str | None:
        """What a graph file records of a second capture, at another `batch` or `length`, as JSON; `None` if a table of
        positions ends before that size. Raises `OptionError` that says what of it does not follow from this one."""
    def difference(self, other: Graph) -> str | None:
        """The first difference from another graph of the same step, node by node, in words; `None` if there is none.
        Names, origins and measured seconds do not count."""

def largest_size(given: int, attempt: Callable[[int, bool], tuple[str, int | None]], *, least: int, most: int, grid: int,
                 room: int) -> int | None:
    """The largest multiple of `grid` from `least` to `most` that fits into `room` bytes, beginning with `given`; `None` if
    none does. `attempt` says of a size that it `fits`, `exceeds` the room, is `open`, since no plan was found but there
    may be one, `barred` or `unknown`, and of the first three how many bytes are known to suffice. It takes more time if
    its second argument says so."""

@final
class Held:
    """A checked plan of a step that stays within a budget, and its cost."""

    @property
    def budget(self) -> int:
        """The budget in bytes; the peak of the plan if the smallest possible was requested."""
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
        """The time that no plan within the budget beats; absent if nothing is proven."""
    @property
    def recomputed(self) -> int:
        """Number of recomputations, repetitions included."""
    @property
    def document(self) -> str:
        """The plan as a graph: nodes in the plan's order, with each recomputation as a node of its own."""
    @property
    def moves(self) -> list[tuple[int, int, int, str]]:
        """The moves, in order: the index of the document's node before which it happens, or the number of nodes; the
        storage in the document; the storage in the original graph whose copy in the tier it is; and `offload`,
        `release` or `prefetch`."""
    @property
    def below(self) -> int:
        """The most bytes of the tier that are needed at once."""
    @property
    def swapped(self) -> str:
        """Which tensors are offloaded, when, and with how much free time, as a document."""

@final
class Fitted:
    """A step's schedule within a budget, checked, and what it costs."""

    @property
    def graph(self) -> str:
        """The graph's name."""
    @property
    def machine(self) -> str:
        """The machine that the step is planned for."""
    @property
    def planner(self) -> str:
        """The planner that found the schedule."""
    @property
    def budget(self) -> int:
        """The whole budget in bytes."""
    @property
    def reserve(self) -> int:
        """The part of the budget that the engine's matrix products need in addition to the slab."""
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
        """The extra time of the step over the captured one, as a share of the latter."""
    @property
    def bound_seconds(self) -> float | None:
        """The time that no schedule within the budget beats; `None` if nothing is proven."""
    @property
    def bound_order(self) -> Literal["any", "given"] | None:
        """Which schedules the bound covers: those in any order, or those in the order of this graph."""
    @property
    def gap(self) -> float | None:
        """How far the schedule may be from the best one, as a share of the time as captured."""
    @property
    def runs(self) -> tuple[str, ...]:
        """Names of nodes in the order in which they run; a name that appears again is recomputed."""
    @property
    def recomputed(self) -> tuple[str, ...]:
        """Names of the nodes that run again, in that order."""
    def explain(self) -> dict[str, Any]:
        """What is recomputed and what is swapped, with cost and saving; for Capuchin also its candidates and choices:
        the same as in the output of `plan --explain --json`."""
    def to_json(self) -> str:
        """The schedule as a document: tightfit-plan/1."""

@final
class Trace:
    """The allocations of a recorded step."""

    @property
    def passes(self) -> int:
        """Number of passes of the step."""
    @property
    def allocations(self) -> int:
        """Number of allocations of the step."""

@final
class Placement:
    """The checked address of each allocation of a step."""

    @property
    def slab(self) -> int:
        """Bytes of slab needed."""
    @property
    def placed(self) -> int:
        """Number of allocations in the slab."""
    @property
    def beside(self) -> int:
        """The most bytes that the step takes outside the slab."""
    @property
    def rises(self) -> list[int]:
        """For each pass, the most bytes outside the slab that it takes beyond those present when it begins."""
    @property
    def peak(self) -> int:
        """The most bytes that the step takes without a slab."""

@final
class Addresses:
    """The allocator of one device: the index of a CUDA device, or -1 for host memory."""

    def __init__(self, device: int) -> None: ...
    def record(self) -> None:
        """Begins a step that is to be recorded."""
    def replay(self, placement: Placement) -> None:
        """Begins a step that is to be replayed."""
    def leave(self) -> Trace | None:
        """Ends the current step; returns its recording, if any."""
    def open(self, stream: int) -> None:
        """Begins a pass of the step on the calling thread and on this stream."""
    def close(self) -> None:
        """Ends the pass."""
    def stop(self) -> str | None:
        """Abandons the step; returns why, if the allocator stopped it."""
    def reserve(self, size: int) -> None:
        """Resizes the slab to this size, or frees it."""
    def reset_peak(self) -> None:
        """Resets the peak to the bytes reserved now."""
    def counters(self) -> dict[str, int]:
        """Bytes reserved, and counts of what was done so far."""

def lay_out(first: Trace, second: Trace) -> Placement | None:
    """Lays out two recordings of a step that agree; `None` if they do not."""

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
def parts(text: str) -> str:
    """The parts of a step, such as `"8"` or `"8:totals"`, verified."""

def split_graph(graph: _Graph, parts: str) -> str:
    """The graph in parts, such as `"8"`, as text of JSON. Raises `OptionError` if nothing of it can be divided."""

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
    """The canonical name of a planner; an unknown name is refused with a list of the known ones."""

def size(text: str) -> int:
    """Bytes of a size such as `"6GiB"`, as the program reads it."""

def seconds(deadline: float | str) -> float:
    """Seconds of a deadline, a number or text such as `"500ms"`, as the program reads it."""

def run(arguments: Sequence[str]) -> int:
    """Runs the program with the arguments, its own name first, and returns its exit code. The program takes over the
    process: its signals, its standard output, and its exit if the reader of that output goes away."""

def starts_by(words: Sequence[str]) -> None:
    """Sets the command (its words) that starts the program in a separate process for measurements."""
