"""Ways to fit the loss of a language model, next to `tightfit.compile` and `tightfit.step` within the peak of each: eager,
checkpointing of each block, Inductor, Inductor's own chunks, and chunks by hand.

Invariant: prints figures, and judges tightfit only against points that compute eager's loss, up to 10⁻⁵ of it. Every row
is a process of its own that measures its peak in its first steps and then waits; eager and the rows of a group take turns,
so each time is paired with one of eager and one of the point that it is held to, from the same round. A step is the same
loop in every row (`chunked.py`): gradients are set to none, then forward pass, backward pass and update. The budget of
`tightfit.compile` is the most that the point holds in its forward and backward pass, and that of `tightfit.step` the most
of its whole step; each is compared with what it got. tightfit's first call counts, and that of the others, in which they
compile, does not. Ratios of processor seconds change less if other programs use the machine as well.

All rows of a run share a folder for what compilers keep, which is empty at first: the first row of tightfit's measures the
operators, and later ones read what it found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

import chunked  # noqa: E402
import measured  # noqa: E402
import stepped  # noqa: E402
import tables  # noqa: E402
import turns  # noqa: E402
from tables import mb, paired  # noqa: E402

HEAD = ("step", "budget MB", "peak MB", "with update MB", "s/step", "÷ eager", "÷ the point it is held to", "CPU ÷ it",
        "chunks", "bits are eager's", "first call s")
# What the process of a point is asked for, by the point's name.
POINTS: dict[str, dict[str, Any]] = {
    "eager": {"mode": "eager"},
    "checkpoint, per block": {"mode": "eager", "blocks": True},
    "Inductor": {"mode": "inductor"},
    **{f"Inductor, auto-chunker, {chunks}": {"mode": "inductor", "chunks": chunks} for chunks in (4, 8, 16)},
    **{f"fused by hand, {chunks}": {"mode": "fused", "chunks": chunks} for chunks in (8, 16, 64)},
    "recomputed by hand, 16": {"mode": "recomputed", "chunks": 16},
    "fused by hand, 16, and checkpoint, per block": {"mode": "fused", "chunks": 16, "blocks": True},
}
# Those that need no compiler of their own, which takes longer than all others.
TINY = ("eager", "fused by hand, 8", "recomputed by hand, 16")
# What tightfit's functions are held to: the most bytes of forward and backward pass, or of the whole step.
SPANS = {"compile": "passes", "step": "whole"}
# By how much a loss may differ from eager's, and how much longer than the point a step may take.
SAME, ALLOWED = 1e-5, 1.03


@dataclass
class Row(turns.Row):
    """A variant of the step."""

    budget: int | None = None
    chunks: int = 0

    @property
    def is_ours(self) -> bool:
        return self.worker.report["mode"] in SPANS

    def peak(self, span: str) -> int:
        """The most bytes of forward and backward pass (`passes`) or of the whole step (`whole`)."""
        return self.worker.report["peaks" if self.is_ours else "later_peaks"][span]

    def division(self) -> str:
        """The chunks that were chosen or asked for, or why there are none."""
        found = self.worker.report["division"]
        return f"{self.chunks}" if self.chunks and found in ("divided", "none") else found

    def computes(self, other: Row) -> bool:
        """Whether its losses are those of another row, up to rounding."""
        pairs = zip(self.worker.report["steps"], other.worker.report["steps"], strict=True)
        return all(abs(mine["loss"] - theirs["loss"]) <= SAME * abs(theirs["loss"]) for mine, theirs in pairs)

    def bits(self, other: Row) -> str:
        """Which of its results have another row's bits; gradients are seen by the update that they made."""
        found = stepped.differing(self.worker.report, other.worker.report)
        prefixes = {"loss": "step 1: loss", "gradients": ("step 1: tensors", "step 1: states")}
        equal = [what for what, prefix in prefixes.items() if not any(name.startswith(prefix) for name in found)]
        return ("only " * bool(equal) + ", ".join(equal) or "no") if found else "yes"


@dataclass
class Curve:
    """The points that one function of tightfit was held to, and those at which it was higher or slower."""

    points: int = 0
    lost: list[str] = field(default_factory=list)

    def add(self, row: Row, span: str) -> None:
        """Judges a row against its point."""
        self.points += 1
        if row.worker.failed:
            self.lost.append(f"{row.rival.label} (does not fit)")
            return
        higher, ratio = row.peak(span) - row.rival.peak(span), row.over(row.rival)
        said = [f"{mb(higher)} MB higher"] * (higher > 0) + [f"{ratio:.3f} × its time"] * (ratio > ALLOWED)
        if said:
            self.lost.append(f"{row.rival.label} ({', '.join(said)})")


class Bench:
    """The table. `eager` lives through all groups."""

    def __init__(self, options: argparse.Namespace, cache: str) -> None:
        self.options, self.cache = options, cache
        self.eager = self.start("eager", **POINTS["eager"])
        self.curves = {name: Curve() for name in SPANS}
        self.rows: list[dict[str, Any]] = []

    def start(self, label: str, rival: Row | None = None, **asked: Any) -> Row:
        """A variant whose first steps are done: the first one compiled it, the others showed its peak."""
        options = self.options
        given = {name: getattr(options, name) for name in ("steps", "threads", "tiny", "optimizer")}
        worker = measured.Served(chunked.__file__, cache=self.cache, **given, **asked)
        return Row(label, worker, rival, budget=asked.get("budget"), chunks=asked.get("chunks", 0))

    def group(self, name: str) -> list[Row]:
        """A point, and tightfit's rows that are held to it, if it computes the same."""
        point = self.eager if name == "eager" else self.start(name, **POINTS[name])
        if point.worker.failed or not point.computes(self.eager):
            return [point]
        ours = [self.start(f"tightfit.{mode} at the peak of: {name}", point, mode=mode, bits=self.options.bits,
                           budget=point.peak(span)) for mode, span in SPANS.items()]
        return [point, *ours]

    def show(self, row: Row) -> None:
        """Prints a row."""
        report = row.worker.report
        self.rows.append({"step": row.label, "seconds": row.seconds, **report})
        if row.worker.failed:
            tables.row(row.label, mb(row.budget), refusal(report), *["–"] * (len(HEAD) - 3))
            return
        held = ("–", "–") if row.computes(self.eager) else ("has another loss", "–")
        if row.rival is not None:
            held = f"{row.over(row.rival):.3f}", f"{paired(row.busy, row.rival.busy):.3f}"
        tables.row(row.label, mb(row.budget), mb(row.peak("passes")), mb(row.peak("whole")),
                   f"{statistics.median(row.seconds):.3f}", f"{row.over(self.eager):.3f}", *held, row.division(),
                   row.bits(self.eager), f"{report['first_seconds']:.1f}")

    def run(self) -> None:
        options, report = self.options, self.eager.worker.report
        sizes = ", ".join(f"{what} {size}" for what, size in vars(chunked.shape(options.tiny)).items())
        print(f"A GPT ({sizes}), {mb(report['parameters'])} MB of parameters, {options.optimizer}, {options.threads} threads, "
              f"medians of {options.rounds} rounds, torch {report['torch']}\n")
        tables.head(HEAD)
        names = options.only or (TINY if options.tiny else list(POINTS))
        for at in range(0, len(names), options.together):
            rows = [row for name in names[at : at + options.together] for row in self.group(name)]
            turns.take([self.eager, *(row for row in rows if row is not self.eager)], options.rounds)
            for row in rows:
                self.show(row)
                if row.rival is not None:
                    mode = row.worker.report["mode"]
                    self.curves[mode].add(row, SPANS[mode])
            close(row for row in rows if row is not self.eager)
        self.eager.worker.close()
        self.total()

    def total(self) -> None:
        """Prints how many points each function was held to, and at which it was worse."""
        print()
        for mode, curve in self.curves.items():
            print(f"- `tightfit.{mode}` was no higher, and at most {ALLOWED} × as slow, at {curve.points - len(curve.lost)} of "
                  f"{curve.points} points{'; not at: ' if curve.lost else ''}{'; '.join(curve.lost)}.")


def refusal(report: dict[str, Any]) -> str:
    """Why a row has no figures; of a budget, what would suffice for any step, also one that begins with gradients."""
    if "smallest" in report:
        return f"{report['error']}: needs {mb(report['needed'])} at least, and {mb(report['smallest'])} suffice"
    return turns.refusal(report)


def close(rows: Iterable[Row]) -> None:
    """Ends the processes of rows that were printed."""
    for row in rows:
        row.worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--only", action="append", choices=POINTS, metavar="POINT",
                        help=f"this point; may be repeated: {'; '.join(POINTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="in each process before the rounds, the first call included")
    parser.add_argument("--together", type=int, default=2, help="points whose processes take turns in one group")
    parser.add_argument("--optimizer", choices=stepped.OPTIMIZERS, default="adamw")
    parser.add_argument("--bits", choices=("equal", "any"), default="any", help="tightfit's option of that name")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests, and fewer points")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything that was seen goes there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tightfit-words-") as cache:
        bench = Bench(options, cache)
        bench.run()
    if options.json is not None:
        options.json.write_text(json.dumps(bench.rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
