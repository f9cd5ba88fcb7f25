"""Peak and time of a step under `tightfit.compile`, next to eager, checkpointing and torch.compile's budgets.

Invariant: prints figures and only judges `tightfit` against the points of torch.compile that gave it its budgets. Every
row is a process of its own that measures its peak in its first steps and then waits; eager and the rows of a group take
turns, one step each per round, in both directions, so that each time is paired with one of eager from the same round.
Eager without the counting allocator is a row too: it shows the cost of counting. Seconds are of the clock; ratios of
processor seconds are printed next to them, because they change less if other programs use the machine as well.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

import measured  # noqa: E402
import tables  # noqa: E402
import turns  # noqa: E402
import zoo  # noqa: E402
from tables import mb, paired  # noqa: E402

HEAD = ("step", "budget MB", "first call's peak MB", "peak MB", "s/step", "÷ eager", "CPU ÷ eager",
        "÷ the point it is held to", "unlike eager", "first call s")


class Row(turns.Row):
    """A variant of the step of one model."""

    def peak(self) -> int | None:
        """The peak after the first call, in which torch.compile compiles; tightfit's first call counts, too."""
        report = self.worker.report
        return report.get("peak" if report["mode"] == "tightfit" else "later_peak")


@dataclass
class Tally:
    """Numbers of points: compared with torch.compile, where tightfit was no higher, and where it was no slower."""

    points: int = 0
    lower: int = 0
    faster: int = 0


class Bench:
    """The table of one model. `eager` lives through all groups."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.eager = self.start("eager", "eager")
        self.tally = Tally()

    def start(self, label: str, mode: str, rival: Row | None = None, **settings: object) -> Row:
        """A variant whose first steps are done: the first one compiled it, the others showed its peak."""
        options = {"steps": 4, "tiny": self.options.tiny, "threads": self.options.threads, **settings}
        return Row(label, measured.Worker(self.name, mode, **options), rival)

    def held(self, rival: Row) -> list[Row]:
        """tightfit within the peak of another row, if this tightfit has `compile`."""
        if rival.worker.failed or not hasattr(zoo.use_tightfit(), "compile"):
            return []
        return [self.start(f"tightfit at the peak of: {rival.label}", "tightfit", rival, budget=rival.peak())]

    def rounds(self, rows: list[Row]) -> None:
        """One group: its rows take turns with eager, then are printed, and their processes end."""
        turns.take([self.eager, *rows], self.options.rounds)
        for row in rows:
            self.show(row)
            row.worker.close()

    def show(self, row: Row) -> None:
        report = row.worker.report
        if row.worker.failed:
            tables.row(row.label, turns.refusal(report), *["–"] * 8)
            self.tally.points += row.rival is not None and row.rival.worker.report["mode"] == "aot"
            return
        unlike = len(measured.differing(report, self.eager.worker.report)) or "–"
        held = "–"
        if row.rival is not None:
            ratio = row.over(row.rival)
            held = f"{ratio:.3f}"
            if row.rival.worker.report["mode"] == "aot":
                self.tally.points += 1
                self.tally.lower += row.peak() <= row.rival.peak()
                self.tally.faster += ratio <= self.options.allowed
        budget = int(report["budget"]) if report["mode"] == "tightfit" else None
        seconds = statistics.median(row.seconds)
        tables.row(row.label, mb(budget), mb(report["first_peak"]), mb(row.peak()), f"{seconds:.3f}",
                   f"{row.over(self.eager):.3f}", f"{paired(row.busy, self.eager.busy):.3f}", held, unlike,
                   f"{report['first_seconds']:.1f}")

    def run(self) -> None:
        options = self.options
        report = self.eager.worker.report
        print(f"\n{self.name}: {mb(report['parameters'])} MB of parameters, {options.threads} threads, "
              f"medians of {options.rounds} rounds, torch {report['torch']}\n")
        tables.head(HEAD)
        checkpointed = self.start("checkpoint, per block", "checkpoint")
        uncounted = self.start("eager, bytes not counted", "eager", counted=False)
        self.rounds([uncounted, checkpointed, *self.held(checkpointed), *self.held(self.eager)])
        self.show(self.eager)
        for mode, shares in (("aot", options.shares), ("inductor", options.inductor)):
            for at in range(0, len(shares), options.together):
                points = [self.start(f"{mode}, memory budget {share:g}", mode, share=share)
                          for share in shares[at : at + options.together]]
                # Only the points without fusion run the same kernels and can be compared.
                rows = [row for point in points for row in ([point, *self.held(point)] if mode == "aot" else [point])]
                self.rounds(rows)
        self.eager.worker.close()
        tally = self.tally
        if tally.points:
            print(f"\n{self.name}: at {tally.points} points of activation_memory_budget tightfit's peak was no higher "
                  f"at {tally.lower}, and its time ≤ {options.allowed} × torch.compile's at {tally.faster}.")


def _shares(text: str) -> list[float]:
    return [float(share) for share in text.split(",") if share]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["gpt_small", "resnet50"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shares", type=_shares, default=[at / 10 for at in range(11)],
                        help="points of activation_memory_budget under aot_eager_decomp_partition")
    parser.add_argument("--inductor", type=_shares, default=[1.0, 0.5, 0.0],
                        help="the same for Inductor; 1 is its default")
    parser.add_argument("--together", type=int, default=3, help="points whose processes take turns in one group")
    parser.add_argument("--allowed", type=float, default=1.02, help="how much longer than the point a step may take")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    options = parser.parse_args()
    for name in options.models:
        Bench(name, options).run()


if __name__ == "__main__":
    main()
