"""Small tables of graphs and plans, as HTML for notebooks and as text.

Invariant: the HTML is only markup with inline style, and every text in it is escaped: names come from models and files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_LEFT, _RIGHT = "text-align:left", "text-align:right"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a title: the first column has labels, the others have figures."""
    def line(tag: str, cells: Sequence[str]) -> str:
        styles = [_LEFT, *[_RIGHT] * (len(cells) - 1)]
        return "".join(f'<{tag} style="{style}">{escape(cell)}</{tag}>'
                       for style, cell in zip(styles, cells, strict=True))

    heading = f"<thead><tr>{line('th', head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<table><caption style="{_LEFT}">{escape(title)}</caption>{heading}<tbody>{body}</tbody></table>'


def lines(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same table as text."""
    table = [*([head] if head else []), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    said = ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
            for row in table]
    return "\n".join(line.rstrip() for line in [title, *said])


def bytes_(count: int | None) -> str:
    """Bytes in readable form."""
    if count is None:
        return "–"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def seconds(time: float | None) -> str:
    """A time in readable form."""
    if time is None:
        return "–"
    return f"{time:.3f} s" if time >= 1 else f"{time * 1e3:.3f} ms"


def figures(plan: Any) -> list[tuple[str, str, str]]:
    """A plan's memory and time next to those of the captured step, as rows of a label and two figures."""
    gap = "nothing is proven" if plan.bound_seconds is None else \
        f"{max(plan.seconds - plan.bound_seconds, 0.0) / plan.unplanned_seconds:.2%}" if plan.unplanned_seconds else "–"
    again = plan.recomputed if isinstance(plan.recomputed, int) else len(plan.recomputed)
    measured = getattr(plan, "measured_peak", None)
    return [
        ("budget", bytes_(plan.budget) if plan.budget is not None else "as little as possible", ""),
        ("peak", bytes_(plan.peak), bytes_(plan.unplanned_peak)),
        *([("peak, as measured", bytes_(measured), "")] if measured is not None else []),
        ("time of a step", seconds(plan.seconds), seconds(plan.unplanned_seconds)),
        ("no plan takes less than", seconds(plan.bound_seconds), ""),
        ("gap to that", gap, ""),
        ("calls that run again", f"{again:,}", "0"),
        *([("chunks of rows", str(chunks), "")] if (chunks := getattr(plan, "split", None)) is not None else []),
    ]


HEAD = ("", "planned", "unplanned")


def fitted(plan: Any) -> str:
    """The table of a schedule that `tightfit.fit` found."""
    return table(f"{plan.graph} on {plan.machine}, by {plan.planner}", HEAD, figures(plan))


def graph(step: Any) -> str:
    """The table of a step that was read."""
    return table(step.name, (), [("calls", f"{step.nodes:,}"),
                                 ("parameters, optimizer state and batch", bytes_(step.static_bytes))])
