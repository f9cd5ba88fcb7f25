"""Compares `tightfit sac` with PyTorch's `sac_milp` on the same statistics of modules at the same budgets.

Invariant: PyTorch's program runs unchanged, and its decisions are evaluated by its own formulas in floating point;
nothing that its solver reports about them is used.

PyTorch rounds discard ratios to 4 digits, which may put a decision above the budget it was made for. So there are two
comparisons: one as printed, at the budget; and an exact one, of what its decision really recomputes against ours within
the bytes that it really takes.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from torch.distributed._tools import sac_ilp  # noqa: E402
from torch.distributed._tools.ilp_utils import Graph, get_peak_memory_runtime_baseline, parse_module_info  # noqa: E402

from tightfit import program  # noqa: E402

GIB = 2**30


@dataclass
class Point:
    """Both answers at one budget. Milliseconds are of recomputation; PyTorch's are `None` where it has no answer."""

    budget: int
    theirs: float | None  # as `sac_milp` returns it, rounded to 2 digits
    exact: float | None  # what its decision recomputes
    peak: int | None  # the bytes that its decision takes
    ours: float
    ours_at_peak: float | None  # within those bytes, or the budget if that is more
    gap: float | None
    their_seconds: float
    our_seconds: float


def recomputed(graph: Graph, decisions: dict[str, float]) -> float:
    """Milliseconds that these discard ratios recompute, by the constraints of `sac_milp`."""
    total = 0.0
    for fqn, ratio in decisions.items():
        node = graph.name2node[fqn]
        shares = [slope * ratio + intercept for slope, intercept in zip(node["slopes"], node["intercepts"], strict=True)]
        total += node["sac_runtime"] * max([0.0, *shares])
    return total


def peak(graph: Graph, decisions: dict[str, float]) -> int:
    """The largest m_i of `sac_milp` under these discard ratios, on one device."""
    discards = []
    for fqn, ratio in decisions.items():
        node = graph.name2node[fqn]
        made = max(node["sac_memory"], node["act_fw_per_module"])
        discards.append((node["pos_fw_post_order"], made * ratio - (made - node["act_fw_per_module"])))
    held = []
    for node in graph.nodes:
        freed = sum(bytes for position, bytes in discards if position < node["pos_fw_post_order"])
        activations = node["act_total"] + node["act_grad_per_module"] - freed
        held.append(graph.nodes[0]["param_per_module"] + node["grad_total"] + activations)
    return int(-(-max(held) // 1))


def statistics(path: Path) -> dict[str, Any]:
    """Statistics of a graph or of a file of statistics, as PyTorch's `aggregate_stats` has them."""
    return in_memory(program.run("modules", path, "--json")["module_info"])


def in_memory(info: dict[str, Any]) -> dict[str, Any]:
    """Statistics with curves as tables, as PyTorch has them in memory."""
    info = copy.deepcopy(info)
    for stats in info["mod_stats"]:
        stats["tradeoff_curve"] = OrderedDict(stats["tradeoff_curve"])
    return info


def on_disk(info: dict[str, Any]) -> str:
    """Statistics as a file that `tightfit` reads."""
    return json.dumps({"module_info": info})


def sac(path: Path, budget: int | str) -> dict[str, Any]:
    """The output of `tightfit sac`."""
    return program.run("sac", path, "--budget", str(budget), "--json")


def budgets(path: Path, points: int) -> list[int]:
    """Budgets evenly spaced between the smallest feasible one and the baseline, both excluded."""
    smallest = sac(path, "min")
    least, most = smallest["budget_bytes"], smallest["baseline_peak_bytes"]
    return [least + (most - least) * at // (points + 1) for at in range(1, points + 1)]


def compare(info: dict[str, Any], points: int, limit: float | None = None) -> list[Point]:
    """Both answers at `points` budgets. `limit` shortens the 180 seconds that PyTorch gives its solver."""
    compared = []
    with tempfile.TemporaryDirectory(prefix="tightfit-") as folder, _limited(limit):
        path = Path(folder) / "statistics.json"
        path.write_text(on_disk(info), encoding="utf-8")
        for budget in budgets(path, points):
            graph = parse_module_info(copy.deepcopy(info))
            start = time.perf_counter()
            decisions, theirs, claimed = sac_ilp.sac_milp(graph, budget / GIB)
            between = time.perf_counter()
            ours = sac(path, budget)
            end = time.perf_counter()
            point = Point(budget, None, None, None, ours["recompute_ms"], None, ours["gap"], between - start, end - between)
            if claimed != -1:
                point.theirs, point.exact, point.peak = theirs, recomputed(graph, decisions), peak(graph, decisions)
                within = max(budget, point.peak)
                point.ours_at_peak = point.ours if within == budget else sac(path, within)["recompute_ms"]
            compared.append(point)
    return compared


class _limited:
    """Gives PyTorch's solver less time than its 180 seconds."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit

    def __enter__(self) -> None:
        self.solver = sac_ilp.PULP_CBC_CMD
        if self.limit is not None:
            sac_ilp.PULP_CBC_CMD = functools.partial(_with_limit, self.solver, self.limit)

    def __exit__(self, *_: object) -> None:
        sac_ilp.PULP_CBC_CMD = self.solver


def _with_limit(solver: Any, limit: float, **options: Any) -> Any:
    return solver(**{**options, "timeLimit": limit})


def _ms(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("input", nargs="+", type=Path, help="graphs, steps, or statistics as JSON")
    parser.add_argument("--points", type=int, default=9, help="budgets between the smallest and the baseline")
    parser.add_argument("--limit", type=float, help="seconds for PyTorch's solver, instead of 180")
    arguments = parser.parse_args()
    for path in arguments.input:
        info = statistics(path)
        baseline, step = get_peak_memory_runtime_baseline(parse_module_info(copy.deepcopy(info)))
        print(f"{path.name}: {len(info['mod_stats'])} modules, baseline {baseline} bytes, {step:.3f} ms")
        print(f"{'budget':>14} {'sac_milp ms':>12} {'exact ms':>10} {'over by':>9} {'ours there':>11} {'ours ms':>10} {'gap':>6} "
              f"{'sac_milp s':>11} {'ours s':>7}")
        for point in compare(info, arguments.points, arguments.limit):
            over = "–" if point.peak is None else str(max(0, point.peak - point.budget))
            gap = "–" if point.gap is None else f"{point.gap:.2%}"
            slower = " slower" if point.exact is not None and point.ours_at_peak > point.exact * (1 + 1e-6) else ""
            print(f"{point.budget:>14} {_ms(point.theirs):>12} {_ms(point.exact):>10} {over:>9} {_ms(point.ours_at_peak):>11} "
                  f"{point.ours:>10.4f} {gap:>6} {point.their_seconds:>11.2f} {point.our_seconds:>7.2f}{slower}", flush=True)


if __name__ == "__main__":
    main()
