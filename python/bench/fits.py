"""Whether steps of twelve models fit the budgets that `tightfit.compile` was given, and have eager's bits.

Invariant: prints figures and judges only `peak ≤ budget` and equality of bits; every row is a fresh process, and
budgets are at fractions of the way from the smallest budget (the plan's own peak at `budget="min"`) to eager's measured
peak. Peaks are exact bytes of PyTorch's allocator, the first step included. Seconds of different rows come from
different processes: use `bench/torch_compile.py` to compare times.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

import measured  # noqa: E402
import zoo  # noqa: E402
from tables import head, mb, row  # noqa: E402

HEAD = ("model", "eager peak", "min", "share", "budget", "planned peak", "measured peak", "first step", "fits",
        "bits are eager's", "s/step", "÷ eager", "first call s")


def planned(run: dict[str, Any]) -> int:
    """The largest peak among the plans of a run; there is one for each shape."""
    return max(plan["peak"] for plan in run["plans"])


def refusal(run: dict[str, Any]) -> str:
    """The exception and its first line."""
    return ": ".join([run["error"], *run["message"].splitlines()[:1]])


def differences(run: dict[str, Any], eager: dict[str, Any]) -> str:
    """`yes`, or the number of tensors that differ and the first of them."""
    found = measured.differing(run, eager)
    return "yes" if not found else f"no: {len(found)}, first {found[0]}"


def model(name: str, options: argparse.Namespace) -> list[tuple[bool, bool]]:
    """Prints the rows of one model; returns for each budget whether it fitted, and whether the bits were equal."""
    settings = {name: getattr(options, name) for name in ("steps", "tiny", "optimizer", "threads")}
    eager = measured.measure(name, "eager", **settings)
    row(name, mb(eager["peak"]), "–", "eager", "–", "–", mb(eager["peak"]), mb(eager["first_peak"]), "–", "–",
        f"{eager['seconds']:.3f}", "1.000", f"{eager['first_seconds']:.2f}")
    if options.eager:
        return []
    least = measured.measure(name, "tightfit", budget="min", **{**settings, "steps": 2})
    if "error" in least:
        row(name, mb(eager["peak"]), refusal(least), *["–"] * 10)
        return [(False, False)] * len(options.shares)
    smallest, verdicts = min(plan["peak"] for plan in least["plans"]), []
    for share in options.shares:
        budget = smallest + int(share * (eager["peak"] - smallest))
        run = measured.measure(name, "tightfit", budget=budget, **settings)
        if "error" in run:
            row(name, mb(eager["peak"]), mb(smallest), share, mb(budget), refusal(run), *["–"] * 7)
            verdicts.append((False, False))
            continue
        fits, bits = run["peak"] <= budget, differences(run, eager)
        row(name, mb(eager["peak"]), mb(smallest), share, mb(budget), mb(planned(run)), mb(run["peak"]),
            mb(run["first_peak"]), "yes" if fits else f"no: {run['peak'] - budget} B over", bits,
            f"{run['seconds']:.3f}", f"{run['seconds'] / eager['seconds']:.3f}", f"{run['first_seconds']:.2f}")
        verdicts.append((fits, bits == "yes"))
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(zoo.TWELVE), help="all twelve, where none is named")
    parser.add_argument("--shares", type=lambda text: [float(share) for share in text.split(",")],
                        default=[0.75, 0.5, 0.25], help="where budgets lie between the smallest and eager's peak")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--optimizer", choices=["none", *measured.OPTIMIZERS], default="none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument("--eager", action="store_true", help="eager's rows only")
    options = parser.parse_args()
    print("Peaks in MB (10^6 bytes) of PyTorch's allocator, parameters, gradients and batch included.\n")
    head(HEAD)
    verdicts = [verdict for name in options.models for verdict in model(name, options)]
    if verdicts:
        fitted, equal = (sum(column) for column in zip(*verdicts, strict=True))
        print(f"\n{fitted} of {len(verdicts)} within the budget on every step; {equal} of {len(verdicts)} equal to "
              "eager in every bit of gradients, buffers and losses.")


if __name__ == "__main__":
    main()
