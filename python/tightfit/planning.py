"""Planning of graph files: `read_graph`, `fit`, `check`, `pareto`, `modules`, `sac`, `shard`, `report`.

A graph is given as a path (of a tightfit-graph/1 file or of a step's folder), as the bytes of a graph file, as its JSON
in a `str` or a `dict`, or as a `Graph` that was read before. A budget is an `int` of bytes, or text: `"6GiB"`,
`"2.5GB"`, `"60%"` of the unplanned peak, `"min"`. A machine is `"cpu"` (this processor, with `threads` workers),
`"a100-80gb"` or `"h100-80gb"`; without one, the processor for a step's folder and an A100 for a graph.

While these functions work, other threads can run, and Ctrl-C ends a search cleanly and raises `KeyboardInterrupt`. They
raise `InfeasibleBudget`, `GraphFileError`, `PlanError` or `OptionError`, all of them `TightfitError`s.

Invariant: every figure is the compiled module's, and the same as the program `tightfit` prints; nothing is computed
here. Arguments of the wrong type are refused as options, like arguments with invalid values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, TypeAlias

from . import _native, notebook, program
from ._native import Fitted, Graph
from .given import asked, names

__all__ = ["Fitted", "Graph", "check", "fit", "modules", "pareto", "read_graph", "report", "sac", "shard"]

GraphLike: TypeAlias = "Graph | str | os.PathLike[str] | bytes | dict[str, Any]"
PlanLike: TypeAlias = "Fitted | str | os.PathLike[str] | bytes | dict[str, Any]"

# Measurements for the machine `"cpu"` are made in a separate process.
_native.starts_by(program.own())

# The method that notebooks call, for the compiled classes.
Fitted._repr_html_ = notebook.fitted  # type: ignore[attr-defined]
Graph._repr_html_ = notebook.graph  # type: ignore[attr-defined]


def read_graph(source: GraphLike) -> Graph:
    """Reads and verifies a graph once, for use by several plans."""
    return asked(_native.read_graph, source)


def fit(
    graph: GraphLike,
    budget: int | str,
    *,
    machine: str | None = None,
    threads: int | None = None,
    planner: str = "auto",
    deadline: float | str | None = None,
    iterations: int | None = None,
    seed: int = 1,
    roofline: bool = False,
    tier: str | None = None,
) -> Fitted:
    """Fits a step into a budget of bytes: the result of `tightfit plan`, as an object.

    The search ends after `deadline` seconds or `iterations` elementary steps; without either, after a second of processor
    time, at most four seconds. Without a deadline but with `iterations`, the same seed gives the same plan on every
    computer. `planner` is one by name, or `"auto"` for the best plan of all. With `roofline=True` a step's calls on the processor are predicted; otherwise they are measured once.
    Plans may move tensors to a `tier` below the device, such as `"pcie4"` or `"pcie4:64GiB"`; with `"cpu"` it is a
    folder, which is measured.
    """
    return asked(
        _native.fit, graph, budget, machine=machine, threads=threads, planner=planner, deadline=deadline,
        iterations=iterations, seed=seed, roofline=roofline, tier=tier,
    )


def check(
    graph: GraphLike,
    plan: PlanLike,
    budget: int | str | None = None,
    *,
    machine: str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Executes a plan (tightfit-plan/1, or what `fit` returned) abstractly, and says what it holds and takes, as
    `tightfit check --json` does. Without a budget it is checked against the one that it was made for.

    Raises `PlanError` if it breaks a rule.
    """
    return json.loads(asked(_native.check, graph, plan, budget, machine=machine, threads=threads))


def pareto(
    graph: GraphLike,
    *,
    points: int = 12,
    machine: str | None = None,
    threads: int | None = None,
    planner: str = "auto",
    deadline: float | str | None = None,
    iterations: int | None = None,
    seed: int = 1,
) -> list[dict[str, Any]]:
    """What each of several budgets costs, the largest first, as `tightfit pareto --split off --json` prints it. The
    limits of the search apply to each point."""
    return json.loads(
        asked(
            _native.pareto, graph, points=points, machine=machine, threads=threads, planner=planner, deadline=deadline,
            iterations=iterations, seed=seed,
        )
    )


def modules(
    graph: GraphLike,
    *,
    machine: str | None = None,
    threads: int | None = None,
    ancestors: bool = False,
) -> dict[str, Any]:
    """Statistics of every module of a step, as `tightfit modules --json` prints them. `graph` may also be such
    statistics, or those of PyTorch's tools. `module_info` has those of a PyTorch model."""
    return json.loads(asked(_native.modules, graph, machine=machine, threads=threads, ancestors=ancestors))


def sac(
    graph: GraphLike,
    budget: int | str,
    *,
    world_size: int = 1,
    units: Iterable[str] | None = None,
    sharded: Iterable[str] = (),
    gap: float = 0.0,
    deadline: float | str = 10.0,
    machine: str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Which modules to checkpoint under a budget, and how much each discards, as `tightfit sac --json` prints it.

    `units` are the only modules that may be checkpointed, `sharded` those that must not lie within a checkpointed
    module. The solver ends after `deadline` seconds, or when no plan can be better by more than the share `gap`.
    """
    return json.loads(
        asked(
            _native.sac, graph, budget, world_size=world_size, units=names(units), sharded=names(sharded), gap=gap,
            deadline=deadline, machine=machine, threads=threads,
        )
    )


def shard(
    graph: GraphLike,
    budget: int | str,
    *,
    world_size: int,
    bandwidth: float | str,
    latency: float | str,
    variant: str = "ours",
    units: Iterable[str] | None = None,
    checkpoint: bool = False,
    host_bandwidth: float | str | None = None,
    host_latency: float | str | None = None,
    gap: float = 0.0,
    deadline: float | str = 10.0,
    machine: str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Which modules gather their parameters separately when a model is sharded over `world_size` devices, as
    `tightfit shard --json` prints it.

    `bandwidth` is in bytes per second (or text, `"100GB/s"`), `latency` in seconds (or `"20us"`). With `checkpoint` one
    program also chooses what is recomputed; with `host_bandwidth` also which shards wait on the host.
    """
    return json.loads(
        asked(
            _native.shard, graph, budget, world_size=world_size, bandwidth=bandwidth, latency=latency, variant=variant,
            units=names(units), checkpoint=checkpoint, host_bandwidth=host_bandwidth, host_latency=host_latency, gap=gap, deadline=deadline,
            machine=machine, threads=threads,
        )
    )


def report(
    graph: GraphLike,
    *,
    out: str | os.PathLike[str],
    plan: PlanLike | None = None,
    points: int = 8,
    machine: str | None = None,
    threads: int | None = None,
    planner: str = "auto",
    deadline: float | str | None = None,
    iterations: int | None = None,
    seed: int = 1,
) -> None:
    """Writes a page of HTML to `out`: memory over time by role, the peak explained, modules, time by budget; and next
    to them the same for a plan. `points=0` leaves the budgets out, and plans nothing."""
    asked(
        _native.report, graph, out, plan=plan, points=points, machine=machine, threads=threads, planner=planner,
        deadline=deadline, iterations=iterations, seed=seed,
    )
