"""Reserved memory and throughput of GPT-2 medium and a Llama of a billion parameters in bfloat16 under
`tightfit.compile`, compared with eager, checkpointing of blocks, and torch.compile's memory budgets, also by Inductor.

Invariant: prints figures and judges only `reserved ≤ budget`. Every row is a process of its own that has the device to
itself, with random weights and no optimizer; processes do not take turns, since their memory would add up, so eager
runs first and last, and the difference between its two rows shows how the device's clock changed meanwhile. On CUDA,
bytes are those that the caching allocator took from the device (`torch.cuda.max_memory_reserved`), and next to them
those that it handed out; on a processor, which has no caching allocator, both are bytes of the counting allocator.

With `--offload` there are rows with a tier below the device, for budgets that recomputation alone does not meet.

Budgets are min + f · (eager's reserved peak − min), where min is the peak of the smallest plan; CUDA's allocator is
limited to the budget (PyTorch may let it reserve a few megabytes more). `tightfit` is judged including its first call,
in which it measures and plans; the others are shown without theirs, in which compilers try things out.
`--device cpu --tiny` runs the same code without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

import measured  # noqa: E402
import tables  # noqa: E402
import zoo  # noqa: E402
from tables import row  # noqa: E402

HEAD = ("model", "step", "budget MB", "of eager's reserved", "reserved MB", "of eager's", "first call's reserved MB",
        "allocated MB", "fits", "tokens/s", "÷ eager", "first call s", "planned MB")
COMPILERS = {"aot": "torch.compile, aot_eager_decomp_partition", "inductor": "torch.compile, Inductor"}


mb = functools.partial(tables.mb, digits=1)


class Bench:
    """The rows of one model."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.eager: dict[str, Any] = {}

    def measure(self, mode: str, **settings: Any) -> dict[str, Any]:
        """The first steps of a mode in a fresh process; a crash counts as a failure like others."""
        options = self.options
        given = {"steps": options.steps, "tiny": options.tiny, "threads": options.threads, "device": options.device,
                 "digests": False, **settings}
        try:
            return measured.measure(self.name, mode, **given)
        except RuntimeError as error:
            return {"mode": mode, "error": "process ended", "message": str(error).strip().splitlines()[-1]}

    def run(self) -> None:
        options = self.options
        self.eager = self.measure("eager")
        self.show("eager", self.eager)
        if "error" in self.eager:
            return
        self.show("checkpoint, per block", self.measure("blocks"))
        self.budgets()
        for mode, shares in (("aot", options.shares), ("inductor", options.inductor)):
            for share in shares:
                self.show(f"{COMPILERS[mode]}, memory budget {share:g}", self.measure(mode, share=share))
        self.show("eager, once more", self.measure("eager"))

    def budgets(self) -> None:
        """The rows of tightfit."""
        least = self.measure("tightfit", budget="min", more=self.options.more)
        self.show("tightfit, as little as possible", least)
        if "error" in least:
            return
        smallest = min(plan["peak"] for plan in least["plans"])
        for at in self.options.at:
            budget = smallest + int(at * (self.eager["later_reserved"] - smallest))
            self.within(f"tightfit, {at:.0%} of the way", budget, self.options.more)
        if self.options.offload:
            self.tier(smallest)

    def tier(self, smallest: int) -> None:
        """Rows with a tier below the device: the smallest possible, and a budget between that and what recomputation
        alone reaches."""
        more = json.dumps(json.loads(self.options.more) | {"offload": self.options.offload})
        below = self.measure("tightfit", budget="min", more=more)
        self.show(f"tightfit, a tier of {self.options.offload}, as little as possible", below)
        if "error" in below:
            return
        budget = (smallest + max(plan["peak"] for plan in below["plans"])) // 2
        self.within(f"tightfit, a tier of {self.options.offload}", budget, more)

    def within(self, label: str, budget: int, more: str) -> None:
        """The row of a budget with the allocator limited to it, and if that fails, another one without the limit."""
        given = {"budget": budget - self.options.margin, "more": more}
        limit = budget if self.options.device.startswith("cuda") else None
        run = self.measure("tightfit", limit=limit, **given)
        self.show(label, run, budget)
        if limit is not None and "error" in run:
            self.show(f"{label}, unlimited", self.measure("tightfit", **given), budget)

    def show(self, label: str, run: dict[str, Any], budget: int | None = None) -> None:
        """Prints a row. A budget applies to the first call as well."""
        whole = self.eager.get("later_reserved")
        share = f"{budget / whole:.1%}" if budget is not None else "–"
        if "error" in run:
            said = " ".join([f"{run['error']}:", *run["message"].splitlines()[:1]])
            row(self.name, label, mb(budget), share, said, *["–"] * (len(HEAD) - 5))
            return
        is_ours = run["mode"] == "tightfit"
        reserved = max(run["first_reserved"], run["later_reserved"]) if is_ours else run["later_reserved"]
        fits = "–" if budget is None else "yes" if reserved <= budget else f"no: {mb(reserved - budget)} MB over"
        plans = run.get("plans", [])
        row(self.name, label, mb(budget), share, mb(reserved), f"{reserved / whole:.1%}", mb(run["first_reserved"]),
             mb(run["peak"] if is_ours else run["later_peak"]), fits,
             f"{run['tokens'] / run['seconds']:,.0f}", f"{self.eager['seconds'] / run['seconds']:.3f}",
             f"{run['first_seconds']:.1f}", mb(max((plan["peak"] for plan in plans), default=None)))
        unmeasured = sorted({name for plan in plans for name in plan["unmeasured"]})
        if unmeasured:
            print(f"<!-- {self.name}, {label}: not measured were {', '.join(unmeasured)} -->", flush=True)


def shares(text: str) -> list[float]:
    """Parses numbers separated by commas."""
    return [float(share) for share in text.split(",") if share]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(".")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(zoo.MODELS)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--at", type=shares, default=[0.7, 0.5, 0.35],
                        help="where budgets lie between min and eager's peak")
    parser.add_argument("--margin", type=int, default=0,
                        help="bytes of each budget that tightfit is not told of, for what the caching allocator keeps")
    parser.add_argument("--shares", type=shares, default=[1.0, 0.5, 0.2, 0.0],
                        help="points of activation_memory_budget under aot_eager_decomp_partition")
    parser.add_argument("--inductor", type=shares, default=[1.0, 0.5, 0.2, 0.0], help="the same for Inductor")
    parser.add_argument("--steps", type=int, default=12, help="in each process, the first one included")
    parser.add_argument("--threads", type=int, default=2, help="of the processor")
    parser.add_argument("--more", default="{}", help="further options of tightfit.compile, as JSON")
    parser.add_argument("--offload", default="", help="rows with a tier below the device, of this many bytes")
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    options = parser.parse_args()
    # Not with `choices`: versions of Python differ in whether they accept an empty positional list.
    if unknown := set(options.models) - zoo.MODELS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}")
    # Blocks that cannot be split waste up to 1 MiB each; expandable segments can be split anywhere.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    about = measured.measure(next(iter(zoo.BFLOAT16)), "eager", tiny=True, steps=1, device=options.device,
                             digests=False)
    if "error" in about:
        raise SystemExit(f"nothing runs on {options.device}: {about['message']}")
    segments = f", {os.environ['PYTORCH_CUDA_ALLOC_CONF']}" if options.device.startswith("cuda") else ""
    print(f"{datetime.date.today().isoformat()}, {about['device']}, torch {about['torch']}, driver {about['driver']}"
          f"{segments}: `{shlex.join(['python', 'python/bench/gpu.py', *sys.argv[1:]])}`. MB are 10^6 bytes.\n")
    tables.head(HEAD)
    for name in options.models or zoo.BFLOAT16:
        Bench(name, options).run()


if __name__ == "__main__":
    main()
