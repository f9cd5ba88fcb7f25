"""Rows of a bench, each a process of its own, that take turns. Invariant: every row does one step per round, in alternating
order, so each of its seconds is paired with one of every other row from the same round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import measured
from tables import paired


@dataclass
class Row:
    """A variant: its process, the row that it has to be no worse than, and the seconds of its rounds."""

    label: str
    worker: measured.Served
    rival: Row | None = None
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def over(self, other: Row) -> float:
        """The median of the ratios of seconds from the same round."""
        return paired(self.seconds, other.seconds)


def take(rows: Sequence[Row], rounds: int) -> None:
    """Some rounds of the rows that have not failed; seconds of earlier ones are dropped."""
    running = [row for row in rows if not row.worker.failed]
    for row in running:
        row.seconds.clear()
        row.busy.clear()
    for at in range(rounds):
        for row in running if at % 2 == 0 else reversed(running):
            step = row.worker.step()
            row.seconds.append(step["seconds"])
            row.busy.append(step["cpu_seconds"])


def refusal(report: dict) -> str:
    """The exception of a row that failed, and the first line of its message."""
    return ": ".join([report["error"], *report["message"].splitlines()[:1]])
