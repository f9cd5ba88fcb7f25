"""What an unplanned training step holds, and where its bytes come from: `tightfit.analyze`.

Invariant: every figure comes from the document that `tightfit analyze --json` prints; nothing is computed here, and
`torch` is loaded only if a model is given.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _native, notebook, planning
from .errors import OptionError
from .given import asked, flag

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Analysis", "analyze"]

# Number of tensors at the peak that are shown with the modules.
_SHOWN = 20

Row: TypeAlias = dict[str, Any]
# A column of a table: its heading, and the function that gives its cell for a row.
Column: TypeAlias = tuple[str, Callable[[Row], str]]


class Rows(list[Row]):
    """Rows of an analysis, displayed as a table."""

    def __init__(self, rows: Iterable[Row], title: str, columns: Sequence[Column]) -> None:
        super().__init__(rows)
        self._title, self._columns = title, columns

    def __str__(self) -> str:
        return notebook.lines(self._title, *self._cells())

    def _repr_html_(self) -> str:
        return notebook.table(self._title, *self._cells())

    def _first(self, count: int) -> Rows:
        title = f"{self._title}, the {count} largest of {len(self):,}" if count < len(self) else self._title
        return Rows(self[:count], title, self._columns)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        return [head for head, _ in self._columns], [[cell(row) for _, cell in self._columns] for row in self]


class Analysis:
    """What an unplanned step holds: by module, by operator, by node, and at the peak.

    `str()` and notebooks show the peak, the modules and what is alive at the peak; each of `modules`, `operators`,
    `nodes` and `live` is a list of dicts that is displayed as a table of its own. `peak` is the most bytes held at
    once, in module `peak_module`, while `peak_node` runs; `static_bytes` are the bytes of parameters, optimizer state
    and batch, and `seconds` the time of the step.

    Saved tensors are divided by where they are made: `fwd_in` outside the module or operator, `fwd_tmp` inside, and
    `fwd_out` inside and handed on. Checkpointing frees `fwd_tmp`. `bwd_tmp` is the most that temporaries of the
    backward pass take, `bwd_out` the gradients that leave. In the rows they are `row["alone"]["fwd_mem_in"]` and so on,
    and `row["share"]` has the row's share of the whole step; shares add up.
    """

    def __init__(self, document: dict[str, Any], graph: planning.Graph, on: dict[str, Any], *, is_measured: bool) -> None:
        self._document, self._graph, self._on, self._is_measured = document, graph, on, is_measured

    @property
    def name(self) -> str:
        """The name of the step; for a model, the name of its class."""
        return self._document["graph"]

    @property
    def peak(self) -> int:
        """The most bytes that are held at once."""
        return self._document["peak_bytes"]

    @property
    def peak_node(self) -> str | None:
        """The node that runs at the peak; absent if nothing runs."""
        return self._document["peak_node"]

    @property
    def peak_module(self) -> str | None:
        """The module of that node; empty for the model itself."""
        return self._document["peak_module"]

    @property
    def static_bytes(self) -> int:
        """Bytes of parameters, optimizer state and batch."""
        return self._document["static_bytes"]

    @property
    def seconds(self) -> float:
        """Time of the step."""
        return self._document["step_seconds"]

    @property
    def modules(self) -> Rows:
        """The modules, in the order of the forward pass, down to the requested depth."""
        figures = {row["module"]: row for row in self._document["dataflow"]["modules"]}
        return Rows((row | figures[row["module"]] for row in self._document["modules"]), "by module", _MODULES)

    @property
    def operators(self) -> Rows:
        """The operators of the forward pass, each with the backward nodes that differentiate it."""
        return Rows(self._document["operators"], "by operator", _OPERATORS)

    @property
    def nodes(self) -> Rows:
        """All nodes of the graph, those that do not run included: parameters, the batch, views."""
        return Rows(self._document["nodes"], "by node", _NODES)

    @property
    def live(self) -> Rows:
        """What is alive at the peak, the largest first."""
        return Rows(self._document["live"], "alive at the peak", _LIVE)

    def to_dict(self) -> dict[str, Any]:
        """The document that `tightfit analyze --json` prints."""
        return copy.deepcopy(self._document)

    def report(self, out: str | os.PathLike[str] = "report.html", *, points: int = 0) -> str:
        """Writes a page about the step, as `tightfit.report` does, and returns its path: memory over the step, what is
        alive when, bytes by module; with `points`, also the cost of this many budgets."""
        planning.report(self._graph, out=out, points=points, **self._on)
        return os.fspath(out)

    def __str__(self) -> str:
        return "\n\n".join([notebook.lines(self._title(), (), self._summary()), *map(str, self._tables())])

    def __repr__(self) -> str:
        return f"<tightfit.Analysis {self.name!r}: peak {notebook.bytes_(self.peak)}>"

    def _repr_html_(self) -> str:
        tables = [table._repr_html_() for table in self._tables()]
        return "".join([notebook.table(self._title(), (), self._summary()), *tables])

    def _tables(self) -> list[Rows]:
        return [self.modules, self.live._first(_SHOWN)]

    def _title(self) -> str:
        return f"{self.name}, measured" if self._is_measured else f"{self.name} on {self._document['machine']}"

    def _summary(self) -> list[tuple[str, str]]:
        rows = [
            ("peak", notebook.bytes_(self.peak)),
            ("at", self.peak_node or "–"),
            ("in module", _module(self.peak_module or "")),
            ("parameters, optimizer state and batch", notebook.bytes_(self.static_bytes)),
            ("time of a step", notebook.seconds(self.seconds)),
        ]
        budget = self._document["budget_bytes"]
        if budget is not None:
            over = self.peak + self._document["reserve_bytes"] - budget
            rows += [("budget", notebook.bytes_(budget)),
                     ("over it", notebook.bytes_(over) if over > 0 else "never")]
        return rows


def analyze(
    step: nn.Module | planning.GraphLike,
    batch: Any = None,
    *,
    budget: int | str | None = None,
    module: str | None = None,
    depth: int = 2,
    machine: str | None = None,
    threads: int | None = None,
    differentiable_outputs: bool = False,
    loss_memory: int | str | None = None,
) -> Analysis:
    """Shows the peak of a training step, what is alive there, and where its bytes come from: by module, by operator and
    by node, as `tightfit analyze` does.

    `step` is a model, with a `batch` as `capture_step` takes it, or a graph, without one. The step of a model is
    captured and not run; its calls are measured on the model's device, or predicted for `machine` if one is named,
    which models on the meta device require. A model's step has no optimizer; one that `tightfit.export` writes does.

    With a `budget`, rows are marked where the step exceeds it, instead of at the peak (`in_peak_interval` of nodes).
    `module` restricts the rows to that module and those in it, and `depth` is the number of levels of modules to show.
    """
    if batch is not None:
        from .training import studying  # needs torch

        step = studying.captured(step, batch, machine, differentiable_outputs=differentiable_outputs, loss_memory=loss_memory)
    elif not isinstance(step, (str, bytes, dict, os.PathLike, planning.Graph)):
        raise OptionError(f"{type(step).__name__} is no graph; give the batch that a model is to be analyzed on, too")
    elif flag(differentiable_outputs, "differentiable_outputs") or loss_memory is not None:
        raise OptionError("differentiable_outputs and loss_memory go with a model and its batch, not with a graph")
    graph = planning.read_graph(step)
    on: dict[str, Any] = {"machine": machine, "threads": threads}
    document = json.loads(asked(_native.analyze, graph, budget, module=module, depth=depth, **on))
    return Analysis(document, graph, on, is_measured=batch is not None and machine is None)


def _module(path: str) -> str:
    return path or "(root)"


def _bytes(name: str) -> Callable[[Row], str]:
    return lambda row: notebook.bytes_(row[name] or None)


def _seconds(name: str) -> Callable[[Row], str]:
    return lambda row: notebook.seconds(row[name] or None)


def _alone(name: str) -> Callable[[Row], str]:
    return lambda row: notebook.bytes_(row["alone"][name] or None)


def _flops(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row['alone'][name]:,}" if row["alone"][name] else "–"


_SAVED_AND_MADE: list[Column] = [
    ("fwd_in", _alone("fwd_mem_in")),
    ("fwd_tmp", _alone("fwd_mem_tmp")),
    ("fwd_out", _alone("fwd_mem_out")),
    ("bwd_tmp", _alone("bwd_mem_tmp")),
    ("bwd_out", _alone("bwd_mem_out")),
]
_TIMES: list[Column] = [("forward", _seconds("fwd_seconds")), ("backward", _seconds("bwd_seconds"))]
_MODULES: list[Column] = [
    ("module", lambda row: _module(row["module"])), ("parameters", _bytes("parameter_bytes")), *_SAVED_AND_MADE, *_TIMES,
]
_OPERATORS: list[Column] = [
    ("operator", lambda row: row["name"]),
    ("fwd_flop", _flops("fwd_flop")),
    ("bwd_flop", _flops("bwd_flop")),
    *_SAVED_AND_MADE,
    *_TIMES,
]
_NODES: list[Column] = [
    ("node", lambda row: row["name"]),
    ("pass", lambda row: row["pass"]),
    ("output", _bytes("output_bytes")),
    ("saved", _bytes("saved_bytes")),
    ("held", _bytes("active_bytes")),
    ("time", _seconds("seconds")),
    ("module", lambda row: _module(row["module"])),
]
_LIVE: list[Column] = [
    ("tensor", lambda row: row["name"]),
    ("phase", lambda row: row["phase"]),
    ("bytes", _bytes("bytes")),
    ("module", lambda row: _module(row["module"])),
]
