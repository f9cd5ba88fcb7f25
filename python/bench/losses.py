"""Whether steps whose loss is computed outside of the model stay within the budget of `tightfit.compile`: forty loops
(`outside.py`) at three budgets each.

For each loop and budget it prints a row: what any plan holds that does not change the loss, in percent of the budget
(parameters, optimizer state, batch, outputs, and what the loss takes in eager); the most bytes that the first step and
the later ones held, and eager's; the same for all steps, including outputs and losses of earlier steps that the loop
still kept (a variable lives until it gets its next value); the share of the targets, which the model never sees; what
was refused, and whether any of the backward pass had been computed by then; warnings; and whether losses and gradients
have eager's bits. Totals follow.

Budgets are multiples of what suffices if the loss is captured as well: the peak of `tightfit.plan(…, "min")` for a
module that contains both. A loss that cannot be captured, or sees two calls of the model, is measured instead, in
eager, and passed as `loss_memory` to a plan for the model alone; this leaves out a forward pass that waits while
another call's backward pass runs. With accumulation, the gradients are added, since they exist from the beginning.

Invariant: bytes are those of PyTorch's allocator in the whole process between the call of the model and the end of the
backward pass: parameters, batch, gradients and optimizer state included. Not counted is what exists before and is none
of these: other networks, weights of a loss, gradients and optimizer state of parameters that are not the model's, and
outputs and losses of earlier steps, as long as they exist; anything else that stays in memory counts. Every run is a
fresh process that finds no measurements of others. Of what the package reports about itself, only the plans from which
budgets are derived and exceptions are used.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests"), str(ROOT / "python" / "bench")]

import allocator  # noqa: E402
import fresh  # noqa: E402
import measured  # noqa: E402
import outside  # noqa: E402
import zoo  # noqa: E402
from tables import head, mb, row  # noqa: E402

BUDGETS = (1.15, 1.4, 2.0)
STEPS = 6
# The step from which on `early` is no longer used.
SWITCH = 3
HEAD = ("loop", "suffices", "budget", "loss as it is %", "eager %", "step 1 %", "steps 2–6 %", "with kept %", "targets %", "refused",
        "warnings", "bits are eager's")


# In the measuring process.


class Run:
    """One run of a loop, in eager or within a budget: what it held in each turn, and the bits that it computed."""

    def __init__(self, case: outside.Case, budget: int | None, *, captured: bool = False, watched: bool = False) -> None:
        gc.collect()
        torch.manual_seed(0)
        self.case, self.captured, self.watched = case, captured and budget is not None, watched
        self.network, self.whole_loss = case.make()
        self.optimizer = _optimizer(case, self.network, self.whole_loss)
        own = {id(parameter) for parameter in self.network.parameters()}
        self.others = [parameter for parameter in _parameters(self.whole_loss) if id(parameter) not in own]
        # Bytes that exist and do not belong to the model.
        self.foreign = allocator.current() - _bytes(_state(self.network))
        if budget is not None:
            more = {"loss": self.whole_loss} if self.captured else {}
            # The tensors of a captured loss count.
            own = _bytes(_networks(self.whole_loss)) if self.captured else 0
            zoo.use_tightfit().compile(self.network, budget=budget + own, optimizer=self.optimizer, **more)
        self.turn = -1
        self.turns: list[dict[str, int]] = []
        self.running: dict[str, int] = {}
        # For the current turn: what was held in each part; its outputs; and outputs and losses of earlier turns.
        self.peaks: list[tuple[int, int]] = []
        self.made: list[tuple[StorageWeakRef, int]] = []
        self.earlier: list[tuple[StorageWeakRef, int]] = []
        self.records: list[dict[str, str | None]] = []
        self.phase = "besides the step"
        # For each call of the model, the most blocks that may be handed out by the time its backward pass begins.
        self.arrivals: list[int | None] = []
        torch.manual_seed(1)

    # Called by bodies.

    def batches(self) -> Iterator[outside.Batch]:
        for self.turn in range(STEPS * self.case.turns):
            yield _drawn(self.case, self.turn)

    def model(self, *inputs: torch.Tensor, **more: Any) -> Any:
        self.phase = "call"
        outputs = self.network(*inputs, **more)
        self.phase = "loss and backward"
        self._part()
        self.made += _storages(outputs)
        if self.watched:
            self._watch(outputs)
        return outputs

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        is_early = self.case.early is not None and self.turn < SWITCH
        value = (self.case.early if is_early else self.whole_loss)(outputs, targets)
        # The loss of the previous turn is freed only now.
        self._part()
        return value

    def loss_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        if self.captured:
            return self.model(*inputs, targets=targets)
        return self.loss(self.model(*inputs), targets)

    @contextlib.contextmanager
    def window(self, inputs: Any, targets: Any) -> Iterator[None]:
        foreign = self.foreign + _bytes(_grown(self.others, self.optimizer))
        own = _bytes([_state(self.network), _grown(self.network.parameters(), self.optimizer), inputs, targets])
        turn = {"kept": self._kept(), "targets": _bytes([inputs, targets]) - _bytes(inputs)}
        # Bytes that are unaccounted for.
        turn["other"] = allocator.current() - foreign - own - turn["kept"]
        del inputs, targets
        self.arrivals, self.peaks, self.running = [], [], turn
        allocator.reset_peak()
        try:
            yield
        finally:
            self._part()
            turn |= {"peak": max(peak for peak, _ in self.peaks) - foreign,
                     "held": max(peak - kept for peak, kept in self.peaks) - foreign}
        self.phase = "besides the step"
        self.turns.append(turn)

    def record(self, loss: torch.Tensor) -> None:
        gradients = {name: parameter.grad for name, parameter in self.network.named_parameters()}
        gradients |= {f"of the loss, {index}": parameter.grad for index, parameter in enumerate(self.others)}
        self.records.append({"loss": measured.digest(loss)} | {f"{name}.grad": measured.digest(gradient)
                                                              for name, gradient in gradients.items()})
        self.earlier += [*self.made, *_storages(loss)]
        self.made = []

    # Bytes.

    def _part(self) -> None:
        """Ends a part of a turn: notes what was held in it, and how much of that the loop kept from earlier turns."""
        self.peaks.append((allocator.peak(), self._kept()))
        allocator.reset_peak()

    def _kept(self) -> int:
        """Bytes of the outputs and losses of earlier turns that still exist."""
        self.earlier = [found for found in self.earlier if not found[0].expired()]
        return sum({storage.cdata: size for storage, size in self.earlier}.values())

    def steps(self, figure: str = "held") -> list[int]:
        """The most that each step held."""
        turns, size = [turn[figure] for turn in self.turns], self.case.turns
        return [max(turns[start:start + size]) for start in range(0, len(turns), size)]

    # Refusals.

    def _watch(self, outputs: Any) -> None:
        # AOTAutograd lays tangents out as the outputs are, before it calls the package.
        copies = sum(not output.is_contiguous() for output in _tensors(outputs))
        for node in _passes(outputs):
            index = len(self.arrivals)
            self.arrivals.append(None)

            def arrived(*_: Any, index: int = index) -> None:
                self.arrivals[index] = allocator.served() + copies

            node.register_prehook(arrived)

    def began(self) -> bool:
        """Whether an operator of the model's backward pass has run in this turn. Only known if `watched`."""
        there = [served for served in self.arrivals if served is not None]
        return len(there) > 1 or any(allocator.served() > served for served in there)


def _passes(outputs: Any) -> set[Any]:
    """Autograd's nodes that run the backward pass of a compiled model: outputs that are views have other nodes before
    it."""
    found, seen = set(), set()
    ahead = [output.grad_fn for output in _tensors(outputs) if output.grad_fn is not None]
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if "CompiledFunction" in node.name():
            found.add(node)
        else:
            ahead += [following for following, _ in node.next_functions if following is not None]
    return found


def _optimizer(case: outside.Case, network: nn.Module, loss: outside.Loss) -> torch.optim.Optimizer:
    parameters = [*network.parameters(), *(one for one in _parameters(loss) if one.requires_grad)]
    return measured.OPTIMIZERS[case.optimizer](parameters)


def _parameters(loss: Any) -> list[nn.Parameter]:
    return list(loss.parameters()) if isinstance(loss, nn.Module) else []


def _state(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _grown(parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> list[Any]:
    """The gradients of parameters, and their optimizer state."""
    return [(parameter.grad, dict(optimizer.state.get(parameter, {}))) for parameter in parameters]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storages(tree: Any) -> list[tuple[StorageWeakRef, int]]:
    """The storages of tensors, with their bytes, without holding them."""
    storages = [tensor.untyped_storage() for tensor in _tensors(tree)]
    return [(StorageWeakRef(storage), storage.nbytes()) for storage in storages]


def _bytes(tree: Any) -> int:
    """The bytes that tensors hold; a shared storage counts once."""
    storages = (tensor.untyped_storage() for tensor in _tensors(tree))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _drawn(case: outside.Case, turn: int) -> outside.Batch:
    """The batch of a turn. The default generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 + turn)
        return case.draw(turn // case.turns)


def ran(case: outside.Case, budget: int | None, **options: Any) -> tuple[Run, dict[str, Any]]:
    """A run of a loop, and what was observed."""
    torch._dynamo.reset()
    run = Run(case, budget, **options)
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            case.body(run)
        except Exception as error:  # noqa: BLE001: any exception is a result
            found = {"error": type(error).__name__, "message": str(error), "phase": run.phase, "stopped": run.running,
                     "began": run.began(), "watched": bool(run.arrivals), "step": len(run.turns) // case.turns + 1}
    ignored = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ResourceWarning)
    said = [f"{one.category.__name__}: {one.message}" for one in caught if not issubclass(one.category, ignored)]
    return run, found | {"steps": run.steps(), "with_kept": run.steps("peak"), "turns": run.turns,
                         "warnings": list(dict.fromkeys(said))}


def compared(case: outside.Case, budget: int, captured: bool) -> dict[str, Any]:
    """A loop in eager and within a budget."""
    run, eager = ran(case, None)
    wanted = run.records
    del run
    run, ours = ran(case, budget, captured=captured)
    bits = _differences(run.records, wanted)
    del run
    if bits != "yes":
        again, _ = ran(case, None)
        bits += "" if _differences(again.records, wanted) == "yes" else " (eager's differ, too)"
        del again
    if ours.get("phase") == "loss and backward":
        # Once more with hooks, which show how far it got.
        _, again = ran(case, budget, captured=captured, watched=True)
        ours["began"] = again["began"] if again.get("step") == ours["step"] and again["watched"] else None
    ours["warnings"] = [one for one in ours["warnings"] if one not in eager["warnings"]]
    return {"eager": eager, "ours": ours, "bits": bits}


def _differences(ours: list[dict[str, str | None]], theirs: list[dict[str, str | None]]) -> str:
    """`yes`, or the first difference, in the turns that both have."""
    found = [f"turn {turn}: {name}" for turn, (mine, other) in enumerate(zip(ours, theirs, strict=False), 1)
             for name in other if mine[name] != other[name]]
    return "yes" if not found else f"no: {len(found)}, first {found[0]}"


class Whole(nn.Module):
    """A model with its loss."""

    def __init__(self, model: nn.Module, loss: outside.Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: Any, targets: Any) -> torch.Tensor:
        return self.loss(self.model(*inputs), targets)


def sufficing(case: outside.Case) -> dict[str, Any]:
    """Bytes that suffice for a step, and how they were determined."""
    package = zoo.use_tightfit()
    model, loss = case.make()
    optimizer = _optimizer(case, model, loss)
    inputs, targets = _drawn(case, STEPS - 1)
    gradients = sum(one.nbytes for one in model.parameters()) if case.turns > 1 else 0
    beside = gradients + case.beside
    peak, outputs = _loss_alone(case, model, loss, inputs, targets)
    there = _bytes([_state(model), _kept_by(optimizer, model), inputs, targets]) + beside
    as_it_is = there + peak + _bytes(outputs)
    try:
        if case.pairs:
            raise package.CompileError("the model is called twice")
        with case.cast():
            # A loss outside of the model is not in chunks.
            plan = package.plan(Whole(model, loss), (inputs, targets), "min", optimizer=optimizer, split="off")
        return {"bytes": plan.peak - _bytes(_networks(loss)) + beside, "by": "captured", "as_it_is": as_it_is}
    except package.CompileError as error:
        torch._dynamo.reset()
        took = max(peak - sum(output.nbytes for output in _tensors(outputs[:1])), 0) + _bytes(outputs[1:])
        with case.cast():
            call = inputs[:1] if case.pairs else inputs
            plan = package.plan(model, call, "min", optimizer=optimizer, loss_memory=took)
        beside += _bytes([inputs[1:] if case.pairs else (), targets])
        return {"bytes": plan.peak + beside, "by": "measured", "why": str(error), "as_it_is": as_it_is}


def _networks(loss: Any) -> list[torch.Tensor]:
    """The tensors of a loss: parameters, weights, another network."""
    modules = [loss, *getattr(loss, "__dict__", {}).values()]
    return [tensor for module in modules if isinstance(module, nn.Module) for tensor in _state(module)]


def _loss_alone(case: outside.Case, model: nn.Module, loss: outside.Loss, inputs: Any,
                targets: Any) -> tuple[int, list[Any]]:
    """The most bytes that a loss takes in eager besides the outputs, and the outputs of each call of the model."""
    with torch.no_grad(), case.cast():
        outputs = [model(one) for one in inputs] if case.pairs else [model(*inputs)]
    for output in _tensors(outputs):
        output.requires_grad_(output.is_floating_point())
    before = allocator.current()
    allocator.reset_peak()
    with case.cast():
        value = loss(tuple(outputs) if case.pairs else outputs[0], targets)
    value.backward()
    return allocator.peak() - before, outputs


def _kept_by(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[Any]:
    """The state that an optimizer keeps for a model between steps. Leaves the model without gradients."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return _grown(model.parameters(), optimizer)


def _measure(options: argparse.Namespace) -> None:
    """Prints the results of one process, as JSON."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(options.threads)
    allocator.install()
    case = outside.LOOPS[options.only]
    with tempfile.TemporaryDirectory(prefix="tightfit-losses-") as folder:
        # Measurements of operators from other runs are not found here.
        os.environ["XDG_CACHE_HOME"] = folder
        found = sufficing(case) if options.bytes is None else compared(case, options.bytes, options.captured)
        print(json.dumps(found), file=out, flush=True)


# In the process that starts the measurements.


def asked(name: str, options: argparse.Namespace, count: int | None = None) -> dict[str, Any]:
    """The results of a fresh process for a loop: what suffices, or how it runs within this many bytes."""
    words = [str(Path(__file__).resolve()), "--measure", "--only", name, "--threads", str(options.threads)]
    words += [] if count is None else ["--bytes", str(count)]
    words += ["--captured"] if options.captured else []
    done = fresh.run(*words)
    if done.returncode != 0 or not done.stdout.strip():
        return {"failed": done.stderr.strip()[-4000:] or f"ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def studied(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one loop."""
    least = asked(name, options)
    if "failed" in least:
        return [{"loop": name, "share": share, **least} for share in options.budget]
    rows = []
    for share in options.budget:
        budget = int(share * least["bytes"])
        rows.append({"loop": name, "share": share, "suffices": least["bytes"], "by": least["by"],
                     "why": least.get("why"), "as_it_is": least["as_it_is"], "budget": budget, **asked(name, options, budget)})
    return rows


def over(found: dict[str, Any], *, first: bool, more: Callable[[dict[str, int]], int] = lambda _: 0) -> bool:
    """Whether the first step, or a later one, held more than the budget, `more` included."""
    size = len(found["eager"]["turns"]) // STEPS
    turns = found["ours"]["turns"]
    return any(turn["held"] + more(turn) > found["budget"] for turn in (turns[:size] if first else turns[size:]))


def refused(found: dict[str, Any]) -> str:
    """The exception, where it came from, what was held until then, and whether it came before anything of the backward
    pass was computed."""
    ours = found["ours"]
    if "error" not in ours:
        return "–"
    when = {True: "after operators of backward", False: "before backward", None: "unclear how far"}[ours["began"]]
    held = 100 * ours["stopped"].get("held", 0) / found["budget"]
    return f"{ours['error']}, step {ours['step']}, in {ours['phase']}, {when}, at {held:.1f} %"


def show(found: dict[str, Any]) -> None:
    """Prints a row."""
    if "failed" in found:
        why = found["failed"].splitlines()[-1][:120]
        row(found["loop"], "–", f"{found['share']}×", *["–"] * 6, f"failed: {why}", "–", "–")
        return
    ours, budget = found["ours"], found["budget"]

    def percent(sizes: Iterable[int]) -> str:
        most = max(sizes, default=None)
        return "–" if most is None else f"{100 * most / budget:.1f}"

    said = "; ".join(one if len(one) <= 60 else f"{one[:59]}…" for one in ours["warnings"]) or "–"
    first, later = ours["steps"][:1], ours["steps"][1:]
    row(found["loop"], f"{mb(found['suffices'])} {found['by']}", f"{mb(budget)} ({found['share']}×)",
        percent([found["as_it_is"]]), percent(found["eager"]["steps"][1:]), percent(first), percent(later), percent(ours["with_kept"]),
        percent(turn["targets"] for turn in ours["turns"]), refused(found), said, found["bits"])


def total(rows: list[dict[str, Any]]) -> None:
    """Prints the totals."""
    whole = [found for found in rows if "failed" not in found]
    first = [found for found in whole if over(found, first=True)]
    later = [found for found in whole if over(found, first=False)]
    stopped = [found for found in whole if "error" in found["ours"]]
    totals = {
        "over the budget from the second step on": later,
        "the same with what the loop kept from steps before":
            [found for found in whole if over(found, first=False, more=lambda turn: turn["peak"] - turn["held"])],
        "the same without the targets":
            [found for found in whole if over(found, first=False, more=lambda turn: -turn["targets"])],
        "over the budget in the first step": first,
        "the same without refusal or warning":
            [found for found in first if found["ours"].get("step") != 1 and not found["ours"]["warnings"]],
        "refused": stopped,
        "refused with a budget that the loss as it is fits into":
            [found for found in stopped if found["as_it_is"] <= found["budget"]],
        "refused in the second step or later": [found for found in stopped if found["ours"]["step"] > 1],
        "refused when more than the budget had been held":
            [found for found in stopped if found["ours"]["stopped"].get("held", 0) > found["budget"]],
        "refused after operators of the backward pass, or unclear":
            [found for found in stopped if found["ours"]["began"] is not False],
        "with other bits than eager": [found for found in whole if found["bits"] != "yes"],
    }
    count = len({found["loop"] for found in whole})
    print(f"\nOf {count} loops and {len(whole)} runs ({len(rows) - len(whole)} failed):\n")
    for what, which in totals.items():
        names = list(dict.fromkeys(found["loop"] for found in which))
        print(f"- {what}: {len(names)} loops, {len(which)} runs{': ' if names else ''}{', '.join(names)}")
    for share in sorted({found["share"] for found in whole}):
        runs, held, number = ([found for found in which if found["share"] == share] for which in (whole, later, stopped))
        print(f"- at {share}×: {len(number)} of {len(runs)} refused, {len(held)} over the budget from the second step on")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--only", action="append", choices=outside.LOOPS, metavar="NAME", help="this loop; may be repeated")
    parser.add_argument("--budget", action="append", type=float, help="this multiple of what suffices; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything that was seen goes there, too")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--captured", action="store_true",
                        help="give tightfit.compile the loss, and the model the targets in bodies that need no outputs")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        options.only = options.only[0]
        _measure(options)
        return
    options.budget = options.budget or list(BUDGETS)
    allocator.build()
    print("Bytes in MB (10^6) of PyTorch's allocator.\n")
    head(HEAD)
    rows: list[dict[str, Any]] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda name: studied(name, options), options.only or outside.LOOPS):
            rows += found
            for one in found:
                show(one)
    total(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
