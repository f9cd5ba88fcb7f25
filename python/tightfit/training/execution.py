"""One captured graph of a model, run within the budget: forward and backward pass as AOTAutograd calls them.

Invariant: before anything is computed, what the plan holds and what is held outside it are within the budget, or an
exception says what is too much. A gradient is added to a parameter's `.grad` inside the backward pass, unless it has to
go through autograd: to hooks of the parameter, `torch.autograd.grad`, or the mixed precision of data parallelism.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from .. import extents
from ..batch import listed
from ..devices import kind_of
from ..errors import BudgetExceeded, CompileError, InfeasibleBudget
from ..notices import noticed
from .addresses import Course, Slab, slab_of, too_large
from .away import Away
from .between import Between, with_later
from .code import Code, Sized
from .costs import costed
from .counting import Count, Tally, expired
from .dividing import WHOLE, Division
from .engine import waiting
from .joint import Joint, alike_only, document, is_tensor, largest, largest_in
from .ledger import Ledger, Moment, Pending, storages
from .loss import Loss
from .nest import NONE, Demand, Range
from .planned import Below, Held, apart, around, code, graph_peak, held, with_loss
from .refusal import Coming, refusal
from .searching import Search, brief, patiently, soon
from .settings import Offload, Placement, Settings, differentiated
from .survey import Survey
from .tier import Tier

# Bytes reserved for PyTorch's own allocations around a step: random states, views, tokens of a few bytes.
RESERVE = 64 << 10
# Bytes that no graph holds.
_MUCH = 1 << 50
_LOSS = "loss outside of the model"
_KEPT = "what the loss outside of the model keeps"


@dataclass(frozen=True)
class Plan:
    """A plan that can run: its figures, its functions, and what it expects: the gradients that exist when the step
    begins, and whether the caller holds the outputs during the backward pass. `beside` are the bytes outside its graph
    that it was made for."""

    held: Held
    code: Code
    accumulated: frozenset[int]
    holds_outputs: bool
    beside: int
    # The bytes that it leaves for a loss outside of the model, between forward and backward pass.
    between: int = 0
    # Whether another plan is made once the loss outside of the model is known.
    is_provisional: bool = False
    # Whether it leaves as much as it can between the passes, since what follows there was not known.
    is_narrow: bool = False
    # The budget that it was made for; `None` if it was `"min"`.
    budget: int | None = None
    # Bytes that others get between its passes and hold to the end, for which it has room.
    grown: int = 0
    # A search for a faster plan that takes its place.
    search: Search | None = field(default=None, compare=False)
    # How the step is divided, as `split` gives it.
    split: str = "off"
    # The addresses of its allocations.
    course: Course = field(default_factory=Course)

    @functools.cached_property
    def at_barrier(self) -> int:
        """The bytes that its graph holds between the passes, without a loss."""
        return at_barrier(self.held)

    @functools.cached_property
    def late(self) -> int:
        """The most bytes that its graph holds from then on."""
        return graph_peak(around(self.held.document, 0, _MUCH), self.held.moves) - _MUCH

    def peak(self, grown: int) -> int:
        """The most bytes that are held if others get this much between its passes."""
        if grown == self.grown:
            return self.held.peak
        alone = graph_peak(around(self.held.document, self.between, 0), self.held.moves)
        return max(alone, self.at_barrier + self.between + grown, self.late + grown)

    @property
    def saved(self) -> int:
        """The bytes that only it holds between forward and backward pass."""
        return self.code.saved_bytes


class Step:
    """A captured graph with its plans, one for each set of gradients that exist when a step begins."""

    # The most bytes that a step was measured to hold, if steps are measured.
    measured_peak: int | None = None
    # Updates a parameter by its gradient, if that is part of the graph.
    update: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    # Whether gradients outlive its steps.
    accumulates = True
    # Whether it also runs batches that are smaller than those of its graph.
    runs_smaller = True
    # Whether other steps may run between its forward and its backward pass, within the budget.
    nests = True
    # Returns the object that moves a parameter or its state, if those may be away.
    resident: Callable[[torch.Tensor, bool], Any] | None = None

    def __init__(self, joint: Joint, settings: Settings, ledger: Ledger, device: torch.device, name: str,
                 outside: int, outside_parameters: Sequence[Any] = ()) -> None:
        self.joint = joint
        self.settings = settings
        self.ledger = ledger
        self.device = device
        self.name = name
        # Bytes that PyTorch and its libraries hold around a step.
        self.reserve = RESERVE + kind_of(device).libraries()
        # Bytes of the model's tensors that this graph does not see.
        self.outside = outside
        # References to the parameters among them.
        self.outside_parameters = outside_parameters
        # By the gradients that exist, whether outputs are held, and how often the budget was changed.
        self.plans: dict[tuple[frozenset[int], bool, int], list[Plan]] = {}
        self.made: list[Plan] = []
        # For each plan, the same plan with nothing overwritten.
        self.apart: dict[int, tuple[Plan, Plan]] = {}
        gradients = [node.meta["val"].untyped_storage() for node in joint.tangents if is_tensor(node)]
        self.loss = Loss(differentiated(joint), sum({one._cdata: one.nbytes() for one in gradients}.values()),
                         settings.loss_memory, ledger, is_counted=settings.placement is not Placement.ADDRESSES)
        self._has_warned = False
        self.between = Between(ledger, nests=self.nests and self.joint.has_backward and settings.placement is not Placement.ADDRESSES)
        self._ranges: dict[tuple[frozenset[int], bool, int, str], Range] = {}
        # Whether the caller held the outputs during the last backward pass, and whether one was refused for that.
        self.holds_outputs: bool | None = None
        self.must_hold_outputs = False
        self.refused: dict[str, str] = {}
        # Whether its loss is in chunks, whose sizes do not vary.
        self.division = Division(settings.ways if not joint.sizes else (WHOLE,), device, name if joint.has_backward else "")
        # The calls of its graph whose integers follow from sizes.
        self._extents: Mapping[str, Mapping[str, Any]] = {}
        # The most bytes that an operator held while it was measured for a plan that is being made; whether this and what
        # was there exceeded the budget once.
        self.measuring = 0
        self.has_exceeded = False
        # Bytes of the budget that plans leave for the gaps between addresses.
        self.gaps = 0
        self.calls = 0
        # Seconds that were spent to make it, and its plans.
        self.spent = 0.0
        self._gradients = [index for index, gradient in enumerate(joint.gradients) if gradient is not None]
        self._accumulating = [index for index in self._gradients if joint.arguments[index].is_parameter]
        self._inputs = [index for index, argument in enumerate(joint.arguments) if argument.phase == "input"]
        # Parameters whose gradients this graph does not compute: existing ones stay.
        self._idle = [index for index, argument in enumerate(joint.arguments)
                      if argument.is_parameter and joint.gradients[index] is None]

    @property
    def budget(self) -> int | None:
        """The budget in bytes; `None` if it is `"min"`."""
        return self.ledger.budget.bytes

    @property
    def lost(self) -> float:
        """The seconds that its last plan takes more than no plan, if it has one."""
        return lost(self.made[-1]) if self.made else math.inf

    # Called by AOTAutograd.

    def forward(self, arguments: list[Any]) -> list[Any]:
        """The forward pass: empties `arguments`; returns the outputs, and what the backward pass starts from."""
        with Count.aside(self.device):
            return self._forward(arguments)

    def _forward(self, arguments: list[Any]) -> list[Any]:
        waiting_before = self.ledger.members.waiting()
        if not waiting_before:
            self.ledger.members.refresh()
        for earlier in waiting_before:
            earlier.note(len(waiting_before))
        parameters = {index: arguments[index] for index in self._accumulating}
        self._forget_others(parameters)
        self.ledger.find_unread(arguments[index] for index in self._inputs)
        idle = [arguments[index] for index in self._idle]
        awaits = self._awaits_gradients()
        there = {index: tensor for index, tensor in parameters.items() if tensor.grad is not None}
        accumulated = frozenset(index for index, tensor in there.items() if not awaits and not _has_hooks(tensor))
        others = self._others(None, idle, [there[index] for index in accumulated])
        if len(accumulated) < len(there):
            others["gradients that hooks wait for"] = self.ledger.size(
                tensor.grad for index, tensor in there.items() if index not in accumulated)
        try:
            plan = self._planned_between(accumulated, others, arguments, len(waiting_before))
        except InfeasibleBudget:
            if waiting_before and self.between.nests:
                self._expect(waiting_before, accumulated, arguments)
            raise
        if self.slab is not None:
            plan = self._begun(self.slab, plan, accumulated, others, arguments)
        if self.tier is not None:
            self.tier.room(plan.held.below, self.name)
        self.calls += 1
        demand, moments = self._enter(waiting_before, plan, arguments)
        if plan.code.backward is None:
            with self._window():
                outputs, _ = plan.code.forward(arguments)
            self.ledger.hand_out(outputs)
            return outputs
        given = {index: arguments[index] for index in plan.code.saved_arguments}
        known = [StorageWeakRef(argument.untyped_storage()) for index, argument in enumerate(arguments)
                 if isinstance(argument, torch.Tensor) and index not in parameters]
        given_storages = storages(arguments) if self.joint.sizes else frozenset()
        share = self._share(arguments)
        tally = self._tally(arguments) if self.loss.is_counted(self.calls, share) else None
        try:
            with self._window():
                outputs, saved = plan.code.forward(arguments)
        except BaseException:
            if tally is not None:
                tally.count.end_if_running()
            raise
        versions = {index: tensor._version for index, tensor in given.items()}
        pending = Pending(self, plan, saved, parameters, idle, given, versions, awaits, known=known,
                          share=share, size=self._size(saved, given_storages), depth=len(waiting_before), demand=demand,
                          moments=moments,
                          batch={given[index].untyped_storage()._cdata: given[index].untyped_storage().nbytes()
                                 for index in given if self.joint.arguments[index].phase == "input"},
                          beside=sum(others.values()) - others.get(_KEPT, 0), budget=self.budget)
        if tally is not None:
            self._counted_forward(pending, tally)
        if self.slab is not None:
            pending.begun = self.slab.call
            self.slab.awaits(pending)
        self.ledger.enter(pending, outputs)
        waiting.add(pending)
        token = torch.empty(0)
        token.tightfit = pending
        return [*outputs, token]

    def backward(self, arguments: list[Any]) -> list[Any]:
        """The backward pass of a token and tangents: empties `arguments`; returns a gradient for each argument of the
        graph, or `None` if there is none, or if it was added to the parameter's."""
        token, *tangents = arguments
        arguments.clear()
        pending: Pending | None = getattr(token, "tightfit", None)
        if pending is None:
            raise CompileError(f"a hook of saved tensors (torch.autograd.graph.saved_tensors_hooks) gave {self.name} another "
                               "tensor than the forward pass had saved; a plan keeps what it needs itself. Call the model "
                               "outside of such hooks, and leave them around the loss")
        plan: Plan = pending.plan
        if pending.saved is None:
            raise RuntimeError("this backward pass has run, and what it needs was let go; run the forward pass again, or "
                               "give retain_graph=True to the first backward pass")
        if self.slab is not None and torch._C._autograd._get_current_graph_task_keep_graph():
            raise CompileError("with addresses=True a backward pass runs once, since what it needs is written over; leave "
                               "retain_graph=True out")
        self._unchanged(pending)
        results: list[Any] = [None] * len(self.joint.gradients)
        returned, unasked = self._asked(pending)
        there = {index: None if index in returned else NOWHERE if index in unasked else tensor.grad
                 for index, tensor in pending.parameters.items()}
        is_batched = any(map(_is_batched, tangents))
        tally = pending.tally
        if tally is not None and tally.count.is_running and not is_batched:
            tally.released, tally.freed = pending.released(), expired(tally.earlier)
        held = self.ledger.held_outputs(pending)
        self.holds_outputs = held > 0
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        # Operators that overwrite have no batched form.
        runs = self._apart(plan) if keeps or is_batched else plan
        beside = {} if plan.holds_outputs else {"outputs of this call": held}
        if self.slab is not None:
            gone = frozenset(index for index in plan.accumulated if there[index] is None)
            if not self.slab.goes_on(pending.begun, gone, self.budget):
                beside["a slab that this step has no place in"] = self.slab.reserved
        self._room(pending, runs, there, beside, keeps=keeps)
        saved = pending.saved
        if keeps:
            saved = list(saved)
        else:
            # So a caller that still holds the loss does not keep alive what it was computed from.
            pending.saved, pending.given, pending.handed = None, {}, []
            waiting.discard(pending)
        gradients: dict[int, torch.Tensor | None] = {index: there[index] for index in plan.accumulated}
        with Count.backward(self.device, None if tally is None or is_batched else tally.count), self._window(pending):
            made = runs.code.backward(saved, tangents, gradients)
        for index in self._gradients:
            gradient = made.pop(index) if index in made else gradients.pop(index)
            if index in unasked:
                continue
            if index not in plan.accumulated and gradient._is_view():
                # Gradients must not be views, so that converting the model can replace their data.
                gradient = gradient.detach()
            if index not in pending.parameters or index in returned:
                results[index] = gradient
            elif there[index] is None:
                pending.parameters[index].grad = gradient
                self.ledger.made(pending.parameters[index])
            elif index not in plan.accumulated:
                there[index].add_(gradient)
            del gradient
        return results

    # Counting.

    def _size(self, saved: Sequence[Any], arguments: frozenset[int]) -> int | None:
        """The bytes that a forward pass saved of what it made, if its sizes may be smaller than the graph's."""
        if not self.joint.sizes:
            return None
        tensors = (item for item in saved if isinstance(item, torch.Tensor))
        block = kind_of(self.device).block
        made = {storage._cdata: block(storage.nbytes()) for storage in (tensor.untyped_storage() for tensor in tensors)}
        return sum(size for storage, size in made.items() if storage not in arguments)

    def _share(self, arguments: Sequence[Any]) -> float:
        """The elements of a call's batch, as a share of those in the graph, whose sizes may be larger."""
        batch = [index for index in self._inputs if is_tensor(self.joint.primals[index])] if self.joint.sizes else []
        here = sum(arguments[index].numel() for index in batch)
        return here / sum(self.joint.primals[index].meta["val"].numel() for index in batch) if here else 1.0

    def _tally(self, arguments: Sequence[Any]) -> Tally | None:
        """Begins to count a step with these arguments, if possible."""
        if (count := Count.begin(self.device)) is None:
            return None
        gradients = [argument.grad for argument in arguments if isinstance(argument, torch.Tensor) and argument.is_leaf]
        # An allocator's figures have all that is freed.
        earlier = [] if kind_of(self.device).statistics is not None else self.ledger.uncounted(gradients)
        return Tally(count, self._there(arguments), earlier)

    def _counted_forward(self, pending: Pending, tally: Tally) -> None:
        """Ends the count of the forward pass, and goes on to count the rest of the step, unless the CPU allocator in
        use reports nothing."""
        forward = tally.count.cut()
        if forward.peak == 0 and pending.plan.saved:
            tally.count.end()
            return
        tally.sections.append(forward)
        pending.tally = tally
        # Its backward pass may never come.
        weakref.finalize(pending, Count.end_if_running, tally.count).atexit = False

    def before_backward(self, pending: Pending, survey: Survey) -> None:
        """Called before the backward pass of a loss that was computed from the outputs of a call."""
        known = pending.storages | {storage.cdata for storage, *_ in self.ledger.outputs if not storage.expired()}
        self.loss.before_backward(pending, survey.on(self.device, known))

    def after_backward(self, pending: Pending) -> None:
        """Called when the backward pass has ended or failed: evaluates what was counted. Warns, once, if the step held
        more than the budget."""
        self.ledger.keep(pending.losses)
        self.ledger.scaled = pending.scaled
        pending.losses = []
        tally, pending.tally = pending.tally, None
        if tally is None or not tally.count.is_running:
            return
        sections = tally.count.end()
        self.ledger.count(pending)
        if len(sections) == 3:
            loss = sections[0] if tally.before is None else tally.before.then(sections[0])
            tally.sections += [loss, sections[1]]
            assumed = self.loss.memory.kept
            self.loss.counted(tally, loss, pending.share, is_nested=bool(pending.inner))
            self._know_loss()
            peak, at = tally.peak()
            # What a loss keeps is also held during the backward pass.
            learned = (0, peak, self.loss.memory.kept - assumed)[at]
            self._warn(pending.budget, peak, ("forward pass", _LOSS, "backward pass")[at], learned)

    def _warn(self, budget: int | None, peak: int, at: str, learned: int, *, verb: str = "held") -> None:
        """Warns, once, of a step that began with this budget and held this `peak`, as `verb` says, of which `learned` bytes
        are the loss's and known only now. Optimizer state that is still to come is part of it."""
        if budget is None or peak <= budget or self._has_warned:
            return
        self._has_warned = True
        more = "; please report this model"
        if peak - learned <= budget:
            declared = self.loss.declared
            instead = "" if declared is None else f", not the {declared:,} of loss_memory"
            more = (f". What this loss takes ({sum(astuple(self.loss.memory)):,} bytes besides the outputs' gradients{instead}) is "
                    "planned for from now on; with loss=… the loss is captured, and part of the first plan too")
        coming = self.ledger.coming()
        state = f" with {coming:,} of optimizer state that is still to come" if coming else ""
        warnings.warn(f"a step of {self.name} {verb} {peak:,} bytes{state}, {peak - budget:,} more than the budget of {budget:,}, in "
                      f"its {at}{more}", RuntimeWarning, stacklevel=2)

    @property
    def tier(self) -> Tier | None:
        """The tier to which its tensors may be moved, if any."""
        if not isinstance(self.settings.placement, Offload):
            return None
        if self.ledger.tier is None:
            self.ledger.tier = Tier(self.settings.placement.size, self.device)
        return self.ledger.tier

    # Addresses.

    @functools.cached_property
    def slab(self) -> Slab | None:
        """The slab that has its allocations, if addresses are planned; not to be used while the step is captured."""
        return slab_of(self.device) if self.settings.placement is Placement.ADDRESSES else None

    def _begun(self, slab: Slab, plan: Plan, accumulated: frozenset[int], others: Mapping[str, int],
               arguments: Sequence[Any]) -> Plan:
        """Begins a step with planned addresses. If those of a plan exceed the budget, another plan is made for that
        much less, and recorded in its turn."""
        budget = self.budget
        beside = self.outside + self.reserve + sum(others.values())
        passes = 2 if self.joint.has_backward else 1
        there = self.ledger.size(argument for argument in arguments if isinstance(argument, torch.Tensor))
        while excess := slab.begin(plan.course, passes, budget, plan.held.peak + beside, max(plan.held.peak - there, 0)):
            less = max(excess, budget // 256)
            self.gaps += less
            try:
                plan = self.plan(accumulated, others, arguments)
            except InfeasibleBudget:
                self.gaps -= less
                raise too_large(self.name, budget, excess) from None
        return plan

    def _window(self, pending: Pending | None = None) -> contextlib.AbstractContextManager[None]:
        """The context of a pass: of the forward pass that begins, or of the backward pass of `pending`."""
        if self.slab is None:
            return contextlib.nullcontext()
        if pending is None:
            return self.slab.window(self.slab.call, is_backward=False)
        return self.slab.window(pending.begun, is_backward=True)

    # Plans.

    def _planned_between(self, accumulated: frozenset[int], others: Mapping[str, int], arguments: Sequence[Any], depth: int) -> Plan:
        """The plan of a forward pass before whose backward pass other models of the budget may get gradients."""
        adds = bool(accumulated)
        grown = self.between.grown(depth, sum(arguments[index].nbytes for index in self._accumulating), adds=adds)
        try:
            return self.plan(accumulated, others, arguments, depth, grown)
        except InfeasibleBudget:
            if self.between.has_grown(depth, adds=adds) or not grown:
                raise
        # Nothing says yet that they come.
        return self.plan(accumulated, others, arguments, depth)

    def plan(self, accumulated: frozenset[int], others: Mapping[str, int], arguments: Sequence[Any], depth: int = 0,
             grown: int = 0) -> Plan:
        """The fastest plan that fits in addition to what else is held, and leaves enough for the steps between its
        passes where `depth` others wait, and for the bytes that have `grown` there; a new one, measured with the
        arguments, otherwise.

        Unless the caller freed the outputs before the last backward pass, a plan that allows them to be held is
        preferred. Raises `InfeasibleBudget`: less than its `needed` fits in neither case, and its `smallest` suffices
        in both.
        """
        beside = self.outside + self.reserve + sum(others.values())
        room = self.budget - self.gaps - beside if self.budget is not None else None
        goes = self.holds_outputs is False and not self.must_hold_outputs
        choices = [False] if goes or not self.joint.has_backward else [True, False]
        refused: list[InfeasibleBudget] = []
        for holds in choices:
            changes = self.ledger.members.changes
            for key in [key for key in self.plans if key[2] != changes]:
                del self.plans[key]
            plans = self.plans.setdefault((accumulated, holds, changes), [])
            plans[:] = [plan for plan in plans if not self._is_outdated(plan, depth)]
            if (plan := self._known(accumulated, holds, room, arguments, depth, grown)) is not None:
                return plan
            if not holds and self.settings.placement is not Placement.ADDRESSES:
                # What leaves nothing to gain also works if outputs go; where they have addresses, others do.
                plan = self._known(accumulated, True, room, arguments, depth, grown)
                if plan is not None and lost(plan) == 0:
                    return plan
            began = time.perf_counter()
            try:
                with noticed(f"planning {self.name} for a batch of {listed(self.batch())}"):
                    plan = self._planned(accumulated, holds, room, beside, arguments, depth, grown)
            except InfeasibleBudget as error:
                # Its traceback would keep this frame alive, and with it the forward pass that follows and its outputs.
                refused.append(error.with_traceback(None))
                continue
            finally:
                self.spent += time.perf_counter() - began
            self._warn_of_measuring(arguments, "The plan is within the budget")
            plans.append(plan)
            self.made.append(plan)
            plans.sort(key=lambda plan: plan.held.seconds)
            return plan
        # A plan for outputs that are held also works if they are not.
        for plan in self.plans.get((accumulated, True, self.ledger.members.changes), []):
            if room is not None and plan.peak(grown) <= room:
                return plan
        self._warn_of_measuring(arguments, "No plan is within the budget")
        raise self._refusal(refused[0], min(error.needed for error in refused), accumulated, others, arguments)

    def _known(self, accumulated: frozenset[int], holds: bool, room: int | None, arguments: Sequence[Any], depth: int,
               grown: int) -> Plan | None:
        """The fastest plan among those that were made which fits."""
        plans = self.plans.get((accumulated, holds, self.ledger.members.changes), [])
        leave = self._left(accumulated, holds, room, arguments, depth) if plans else 0
        for plan in list(plans):
            plan = self._improved(plan, plans, room)
            if room is None or (plan.peak(grown) <= room and (leave == 0 or plan.is_narrow or plan.at_barrier + leave <= room)):
                return plan
        return None

    @functools.cached_property
    def divides_alone(self) -> bool:
        """Whether a step that runs none but its own sizes can be divided where this one cannot."""
        ways = Division(self.settings.ways if self.joint.sizes else (WHOLE,), self.device)
        return ways.has_any(lambda: document(self.joint, self.name))

    def may_fit(self) -> bool:
        """Whether the budget has room for its largest call, which is run to be measured, with what the loop holds."""
        return self._excess(largest(self.joint)) <= 0

    def _excess(self, size: int) -> int:
        """The bytes by which a call of this size exceeds the budget, with what the loop holds."""
        others = sum(self.ledger.others().values()) + self.outside + self.reserve
        return 0 if self.budget is None else size + others - self.budget

    def _planned(self, accumulated: frozenset[int], holds: bool, room: int | None, beside: int,
                 arguments: Sequence[Any], depth: int = 0, grown: int = 0) -> Plan:
        """The best plan of the step as it is and in chunks."""
        division, whole = self.division, functools.partial(self._whole, accumulated, holds, arguments)
        plan = functools.partial(self._planned_so, accumulated, holds, room, beside, arguments, depth, grown)
        try:
            return division.best(plan, lost, whole, is_smallest=room is None, excess=lambda graph: self._excess(largest_in(graph)))
        finally:
            self.measuring, division.most = max(self.measuring, division.most), 0

    def _planned_so(self, accumulated: frozenset[int], holds: bool, room: int | None, beside: int,
                    arguments: Sequence[Any], depth: int, grown: int) -> Plan:
        """A plan of the step as it is divided now."""
        graph, search = self._search(accumulated, holds, arguments)
        between = self.loss.memory.between
        # If nothing is left of the budget, the refusal proves what would be needed.
        room = None if room is None else max(room, 1)

        def made(plan: Held, *, is_provisional: bool, is_narrow: bool = False, search: Search | None = None) -> Plan:
            if grown:
                plan = with_loss(plan, between, grown)
            return Plan(plan, self._code(plan), accumulated, holds, beside, between, is_provisional, is_narrow, self.budget, grown,
                        search=search)

        if room is not None and self.between.is_unknown(depth):
            narrow = made(self._range(accumulated, holds, arguments).narrow, is_provisional=True, is_narrow=True)
            if narrow.held.peak <= room:
                return narrow
        if grown:
            graph = around(graph, between, grown)
        if room is not None and self.loss.is_guess and graph_peak(graph) + between > room:
            # A loss that was never counted may take more than the guess. The smallest plan leaves the most for it.
            least = search(graph, None, brief(self.settings.deadline))
            if least.peak <= room:
                return made(least, is_provisional=True)
        leave = self._left(accumulated, holds, room, arguments, depth)
        is_provisional = not self.loss.is_known
        if leave - grown > between:
            try:
                found, better = self._found(search, around(graph, leave - grown), room)
                return made(with_loss(found, between), is_provisional=is_provisional, search=better)
            except InfeasibleBudget:
                narrow = made(self._range(accumulated, holds, arguments).narrow, is_provisional=is_provisional, is_narrow=True)
                if narrow.held.peak <= room:
                    # What follows is refused by itself if this leaves too little.
                    return narrow
        found, better = self._found(search, graph, room)
        return made(found, is_provisional=is_provisional, search=better)

    def _found(self, search: functools.partial[Held], graph: dict[str, Any], room: int | None) -> tuple[Held, Search | None]:
        """What is found soon, and the search that goes on while steps run if more time may find a faster plan."""
        deadline = self.settings.deadline
        # With addresses, the first steps of each plan are recorded.
        if room is None or self.slab is not None or self.settings.planner != "auto":
            return patiently(functools.partial(search, graph, room), room, deadline), None
        return soon(search, graph, room, deadline, self)

    def _improved(self, plan: Plan, plans: list[Plan], room: int | None) -> Plan:
        """A plan of these, or the faster one that was found meanwhile, which takes its place."""
        if plan.search is None or not plan.search.has_ended:
            return plan
        found, better = plan.search.found, replace(plan, search=None)
        if found is not None and found.seconds < plan.held.seconds:
            faster = with_loss(found, plan.between, plan.grown or None)
            faster = replace(better, held=faster, code=self._code(faster))
            if room is None or faster.peak(plan.grown) <= room:
                better = faster
        for known in (plans, self.made):
            known[:] = [better if other is plan else other for other in known]
        plans.sort(key=lambda one: one.held.seconds)
        return better

    def settle(self) -> None:
        """Waits for the searches that go on, and takes what they find."""
        for plans in self.plans.values():
            for plan in list(plans):
                if plan.search is not None:
                    plan.search.wait()
                    self._improved(plan, plans, None if self.budget is None else self.budget - self.gaps - plan.beside)

    # Steps between its passes.

    def _left(self, accumulated: frozenset[int], holds: bool, room: int | None, arguments: Sequence[Any], depth: int) -> int:
        """The bytes that it has to leave between its passes for other steps."""
        if room is None or not self.between.takes(depth):
            return 0
        return self.between.reserve(room, self._range(accumulated, holds, arguments).barrier, depth)

    def _range(self, accumulated: frozenset[int], holds: bool, arguments: Sequence[Any]) -> Range:
        """The memory between the least and the most that its plans need."""
        between = self.loss.memory.between
        key = accumulated, holds, between, self.division.now
        if key not in self._ranges:
            graph, search = self._search(accumulated, holds, arguments)
            seconds, most = brief(self.settings.deadline), graph_peak(graph)
            # With so much between the passes, only what is held there matters; with the difference of the least that is
            # held there and at any time, both do.
            held_there, least = at_barrier(search(around(graph, most), None, seconds)), search(graph, None, seconds).peak
            narrow = with_loss(search(around(graph, max(least - held_there, between)), None, seconds), between)
            whole = replace(narrow, document=graph, moves=())
            self._ranges[key] = Range(narrow, Demand(held_there, at_barrier(whole)), Demand(min(least, narrow.peak), most))
        return self._ranges[key]

    def _expect(self, waiting: Sequence[Pending], accumulated: frozenset[int], arguments: Sequence[Any]) -> None:
        """Called when it is refused while other passes wait: the next time, they leave room for it."""
        peak = self._range(accumulated, True, arguments).peak.less(self._known_to(waiting, accumulated, arguments))
        for pending, demand in zip(waiting, with_later(waiting, peak), strict=True):
            pending.step.between.expect(pending.depth, demand)

    def _known_to(self, waiting: Sequence[Pending], accumulated: frozenset[int], arguments: Sequence[Any]) -> int:
        """Bytes of what its plan counts and passes that wait know to be there."""
        made = {storage.cdata for pending in waiting for storage, _ in pending.outputs if not storage.expired()}
        there = [argument for index, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)
                 and (index not in self._inputs or argument.untyped_storage()._cdata in made)]
        return self.ledger.size([*there, *(arguments[index].grad for index in accumulated)])

    def _enter(self, waiting: Sequence[Pending], plan: Plan, arguments: Sequence[Any]) -> tuple[Demand, Sequence[Moment]]:
        """Tells the passes that wait what this one takes before their backward passes; returns what it holds between its
        own passes, in addition to what was there, and what it told."""
        if not waiting:
            return NONE, ()
        known = self._known_to(waiting, plan.accumulated, arguments)
        own = self._range(plan.accumulated, plan.holds_outputs, arguments) if self.between.nests else \
            Range(plan.held, Demand(), Demand(plan.held.peak, plan.held.unplanned_peak))
        return own.barrier.less(known), self.between.tell(waiting, own.peak.less(known))

    def _search(self, accumulated: frozenset[int], holds: bool,
                arguments: Sequence[Any]) -> tuple[dict[str, Any], functools.partial[Held]]:
        """The graph of a call with its costs, and the function that finds a plan of it or of one like it, given bytes and
        a deadline."""
        if self.slab is not None:
            self.slab.make_room()
        # What lies in the tier below another device cannot be used for measuring.
        given = () if self.resident is not None and not kind_of(self.device).is_processor else arguments
        graph = self._graph(accumulated, holds, arguments)
        self._extents = extents.found(graph)
        found = costed(graph, self.device, given)
        self._unmeasured(found.refused)
        self.measuring = max(self.measuring, found.most)
        below = None if self.tier is None else Below(self.tier.size, *self.tier.rates)
        planned = found.document if not self.joint.sizes else alike_only(found.document, self.joint)
        return planned, functools.partial(held, below=below, with_residents=self.resident is not None,
                                                 planner=self.settings.planner)

    def _unmeasured(self, refused: dict[str, str]) -> None:
        """Warns of calls that could not be measured, once."""
        if refused and not self.refused:
            names = ", ".join(sorted(refused)[:3]) + (", …" if len(refused) > 3 else "")
            warnings.warn(
                f"{len(refused)} operators of a step of {self.name} could not be measured ({names}), so what they take while they "
                f"run is not counted, and the budget may be exceeded: {next(iter(refused.values()))}. `unmeasured` of "
                "tightfit.plans(model) names them", RuntimeWarning, stacklevel=2,
            )
        self.refused = refused

    def _warn_of_measuring(self, arguments: Sequence[Any], answer: str) -> None:
        """Warns, once, that the budget was exceeded while operators were measured."""
        budget, most = self.budget, self.measuring
        there = self._there(arguments) - self.ledger.coming()
        held, self.measuring = there + most, 0
        if most and budget is not None and there <= budget < held and not self.has_exceeded:
            self.has_exceeded = True
            warnings.warn(
                f"measuring the operators of a step of {self.name} held {held:,} bytes, {held - budget:,} more than the budget of "
                f"{budget:,}, before the first step: one operator, its inputs, and chunks that its result is compared with take "
                f"{most:,} bytes when they are alone, where nothing is overwritten. {answer}. What was measured is kept, and a "
                "later start measures nothing",
                RuntimeWarning, stacklevel=2,
            )

    def _code(self, plan: Held, *, keeps: bool = False) -> Code:
        outputs = [None if is_tensor(output) else output for output in self.joint.outputs]
        constants = {str(node.target): getattr(self.joint.module, str(node.target))
                     for node in self.joint.module.graph.find_nodes(op="get_attr")}
        leave = None if self.tier is None else functools.partial(Away, self.tier)
        return code(plan, constants, outputs, self.update, leave, self.resident, keeps=keeps,
                    varying=Sized(self.joint.sizes, self._extents))

    def _apart(self, plan: Plan) -> Plan:
        """The same plan with nothing overwritten: the next backward pass finds what this one found."""
        if id(plan) not in self.apart:
            same = apart(plan.held)
            self.apart[id(plan)] = plan, replace(plan, held=same, code=self._code(same, keeps=True))
        return self.apart[id(plan)][1]

    def _is_outdated(self, plan: Plan, depth: int) -> bool:
        """Whether a plan was made before the loss, and what else is between the passes, was known as well as now, and
        another may be faster."""
        if not plan.is_provisional or not self.loss.is_known or self.between.is_unknown(depth) or (plan.held.recomputed == 0 and plan.held.below == 0):
            return False
        return self.budget is not None or plan.between < self.loss.memory.between

    def _know_loss(self) -> None:
        """Updates the peaks of plans to what is now known about the loss; what no longer fits is not run again, and keeps
        its figures."""
        between = self.loss.memory.between
        for plans in self.plans.values():
            for index, plan in enumerate(plans):
                if plan.between != between and self.loss.is_known:
                    plans[index] = now = _with(plan, between)
                    if self.budget is None or now.held.peak + now.beside <= self.budget:
                        self.made[:] = [now if made is plan else made for made in self.made]

    def _graph(self, accumulated: frozenset[int], holds: bool, arguments: Sequence[Any]) -> dict[str, Any]:
        """The graph that is planned for a call with these arguments, as it is divided now."""
        return self.division.graph(self._whole(accumulated, holds, arguments))

    def _whole(self, accumulated: frozenset[int], holds: bool, arguments: Sequence[Any]) -> dict[str, Any]:
        """The same without chunks."""
        return document(self.joint, self.name, accumulated=accumulated, between=self.loss.memory.between,
                        holds_outputs=holds)

    def _coming(self, arguments: Sequence[Any]) -> int:
        """Bytes of gradients that this graph does not compute, do not exist yet, and may appear in the loop."""
        idle = [*(arguments[index] for index in self._idle), *map(_referent, self.outside_parameters)]
        return sum(tensor.nbytes for tensor in idle if tensor is not None and tensor.requires_grad and tensor.grad is None)

    def _with_gradients(self, accumulated: frozenset[int], arguments: Sequence[Any]) -> tuple[int | None, int]:
        """For steps that begin with all gradients: the bytes known to suffice for the graph (`None` if all gradients
        that it adds to already exist), and the bytes of gradients outside the graph that do not exist yet."""
        awaits = self._awaits_gradients()
        beside = [index for index in self._accumulating if awaits or _has_hooks(arguments[index])]
        coming = sum(arguments[index].nbytes for index in beside if arguments[index].grad is None)
        added = frozenset(self._accumulating).difference(beside)
        if added == accumulated:
            return None, coming
        graph, search = self._search(added, self.holds_outputs is not False, arguments)
        return search(graph, None, self.settings.deadline).peak, coming

    @functools.cached_property
    def most_saved(self) -> int:
        """The bytes that a forward pass holds for its backward pass if nothing is recomputed."""
        return self._code(Held(0, 0.0, 0, 0.0, None, 0, document(self.joint, self.name))).saved_bytes

    def _refusal(self, error: InfeasibleBudget, needed: int, accumulated: frozenset[int], others: Mapping[str, int],
                 arguments: Sequence[Any]) -> InfeasibleBudget:
        """The same refusal in terms of the whole budget, of which the graph needs `needed` bytes. The budget that is
        said to suffice includes what is still to come, and what earlier calls would hold under a larger budget."""
        later, hooked = self._with_gradients(accumulated, arguments) if self.accumulates else (None, 0)
        waiting = [pending.step.most_saved for pending in self.ledger.members.waiting()]
        coming = self._coming(arguments)
        if self.ledger.members.is_shared:
            # Passes that wait leave room for others, whatever the budget.
            coming += self.ledger.absent()
        else:
            coming += max(sum(waiting) - sum(pending.held() for pending in self.ledger.pending), 0)
        return refusal(self, error, needed, others, Coming(coming, hooked, later, bool(accumulated), waiting))

    def batch(self) -> list[list[int]]:
        """The shapes of the batch."""
        given = zip(self.joint.primals, self.joint.arguments, strict=True)
        return [list(node.meta["val"].shape) for node, argument in given if argument.phase == "input" and is_tensor(node)]

    # Gradients.

    def _others(self, pending: Pending | None, idle: list[torch.Tensor], accumulated: list[torch.Tensor]) -> dict[str, int]:
        """What is held besides a call and its plan, in bytes by reason. `idle` are parameters whose gradients the graph
        does not compute, `accumulated` those whose existing gradients are part of the plan."""
        others = self._beside(pending, idle, accumulated)
        kept = self.loss.memory.kept
        return others | {_KEPT: kept} if kept else others

    def _there(self, arguments: Sequence[Any]) -> int:
        """Bytes that are held when a call with these arguments begins."""
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        gradients = [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
        beside = self._beside(None, [], [tensor for tensor in tensors if tensor.is_leaf])
        return self.outside + sum(beside.values()) + self.ledger.size(gradients) + self.ledger.size(tensors)

    def _beside(self, pending: Pending | None, idle: list[torch.Tensor], accumulated: list[torch.Tensor]) -> dict[str, int]:
        known = self.ledger.read if pending is None else pending.storages
        others = self.ledger.others(pending, accumulated, known)
        beside = [*idle, *(tensor for tensor in map(_referent, self.outside_parameters) if tensor is not None)]
        found = {"gradients that this call does not compute": self.ledger.size(tensor.grad for tensor in beside if tensor.grad is not None),
                 "what the loop holds since earlier calls": self.ledger.members.held_by_loop(pending)}
        return others | {reason: size for reason, size in found.items() if size}

    def _awaits_gradients(self) -> bool:
        """Whether data parallelism needs the gradients of the running forward pass to come from autograd.

        Its reducer runs after autograd's node of each parameter, and reads `.grad` there, however the gradient got in.
        Only its mixed precision replaces parameters before that.
        """
        if not torch.distributed.is_available():
            return False
        parallel = nn.parallel.DistributedDataParallel._get_active_ddp_module()
        if parallel is None:
            return False
        self.ledger.join(parallel)
        return parallel.mixed_precision is not None

    def _asked(self, pending: Pending) -> tuple[set[int], set[int]]:
        """The parameters whose gradients have to be returned to autograd, and those whose gradients were not requested.

        If gradients exist and one backward pass goes through several calls, autograd first sums what the calls
        contribute and then adds the sum to the existing gradient. The same has to happen here, since any other order
        rounds differently.
        """
        is_added = self.ledger.existed(pending.parameters.values())
        if pending.returns or (is_added and self.ledger.is_joined(pending)):
            return set(pending.parameters), set()
        returned, unasked = set(), set()
        nodes, arguments, runs = self.ledger.nodes, self.joint.arguments, torch._C._will_engine_execute_node
        for index, tensor in pending.parameters.items():
            if not tensor.requires_grad:
                unasked.add(index)
                continue
            found = nodes.get(arguments[index].name)
            try:
                # The known node may be out of date: a parameter that was moved has another one.
                if (found is None or not runs(found[1])) and not runs(self._node(index, tensor)):
                    unasked.add(index)
                elif _has_hooks(tensor):
                    returned.add(index)
            except RuntimeError:  # raised within torch.autograd.grad, which needs this gradient
                returned.add(index)
        return returned, unasked

    def _node(self, index: int, tensor: torch.Tensor) -> Any:
        """The node of autograd that accumulates a parameter's gradient; it is remembered."""
        node = torch.autograd.graph.get_gradient_edge(tensor).node
        self.ledger.nodes[self.joint.arguments[index].name] = tensor, node
        return node

    def _forget_others(self, parameters: Mapping[int, torch.Tensor]) -> None:
        """Forgets the nodes of parameters that were replaced, since nodes keep parameters alive."""
        nodes = self.ledger.nodes
        for index, tensor in parameters.items():
            name = self.joint.arguments[index].name
            if name in nodes and nodes[name][0] is not tensor:
                del nodes[name]

    def _room(self, pending: Pending, plan: Plan, there: Mapping[int, torch.Tensor | None], beside: Mapping[str, int], *,
              keeps: bool) -> None:
        """Refuses a backward pass if more is held than its plan was made for: `beside` are bytes that the plan assumes
        to be freed, by reason, and `keeps` says that what the pass starts from stays for another pass. Learns what came
        between the passes."""
        # A budget that was changed since holds from the next forward pass on.
        budget = pending.budget
        if budget is None:
            return
        others = self._others(pending, pending.idle, [pending.parameters[index] for index in plan.accumulated])
        gradients = {index: tensor.grad for index, tensor in pending.parameters.items() if tensor.grad is not None}
        since = [gradient for index, gradient in gradients.items() if index not in plan.accumulated]
        returned = [gradient for index, gradient in gradients.items() if index in plan.accumulated and there[index] is None]
        others["gradients that came since"] = self.ledger.size(since)
        others["gradients that are returned"] = sum(gradient.nbytes for gradient in returned)
        self.between.learn(pending, sum(others.values()) - others.get(_KEPT, 0))
        others |= beside
        others = {reason: size for reason, size in others.items() if size}
        if keeps:
            others["what retain_graph=True keeps"] = pending.held()
        beside_plan = self.outside + self.reserve + sum(others.values())
        now = _with(plan, self.loss.memory.between)
        total = now.held.peak + beside_plan
        if total > budget and plan.late + beside_plan <= budget:
            # That peak was before the backward pass.
            at_loss = plan.at_barrier + now.between + beside_plan
            if now is not plan and pending.tally is None and at_loss > budget:
                self._warn(budget, at_loss, _LOSS, at_loss, verb="may have held")
            return
        total = plan.late + beside_plan
        if total > budget:
            self.must_hold_outputs |= bool(beside.get("outputs of this call"))
            reasons = {**others, "parameters and buffers that this call does not use": self.outside, "reserve": self.reserve}
            listed = ", ".join(f"{size:,} of {reason}" for reason, size in reasons.items() if size)
            whole = ", which overwrites nothing" if keeps else ""
            advice = ["let outputs go before it"] if beside.get("outputs of this call") else []
            advice += ["run each backward pass right after its forward pass", *(["without retain_graph"] if keeps else [])]
            raise BudgetExceeded(
                f"this backward pass would hold {total:,} bytes, {total - budget:,} "
                f"more than the budget: in addition to the {plan.late:,} of its plan{whole}, there are {listed}. Nothing of it was computed. "
                f"{', '.join(advice).capitalize()}, or give budget={total} or more",
                budget=budget, needed=total,
            )

    def _unchanged(self, pending: Pending) -> None:
        """Refuses a backward pass that would read what was changed in place since its forward pass."""
        for index, tensor in pending.given.items():
            if tensor._version != (version := pending.versions[index]):
                raise _changed(f"{self.joint.arguments[index].name!r}", tensor, version, "change it after the backward pass")
        for tensor, version in pending.handed:
            if tensor._version != version:
                raise _changed(f"an output of {self.name}, of shape {list(tensor.shape)}", tensor, version,
                               "change a copy (output.detach().clone()), or change it after the backward pass")


def at_barrier(plan: Held) -> int:
    """The bytes that the graph of a plan holds between the passes, without a loss."""
    return graph_peak(around(plan.document, _MUCH, 0), plan.moves) - _MUCH


def _with(plan: Plan, between: int) -> Plan:
    """The plan with its peak for a loss that takes `between` bytes between forward and backward pass."""
    return plan if plan.between == between else replace(plan, held=with_loss(plan.held, between), between=between)


def lost(plan: Plan) -> float:
    """The seconds that a plan takes more than no plan."""
    return max(plan.held.seconds - plan.held.unplanned_seconds, 0.0)


def _changed(what: str, tensor: torch.Tensor, version: int, advice: str) -> RuntimeError:
    """The refusal of a backward pass that needs a tensor as it was at another version."""
    return RuntimeError(f"{what}, which this backward pass needs, was changed in place since its forward pass (it is at "
                        f"version {tensor._version}, expected {version}); {advice}")


def _has_hooks(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks) or bool(tensor._post_accumulate_grad_hooks)


def _is_batched(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor stands for several, as in torch.autograd.grad(is_grads_batched=True)."""
    return torch._C._functorch.is_batchedtensor(tensor) or torch._C._functorch.is_legacy_batchedtensor(tensor)


def _referent(reference: Any) -> Any:
    return reference()


class _Nowhere:
    """Takes the place of a gradient that was not requested: what is added to it is dropped."""

    def add_(self, gradient: torch.Tensor) -> _Nowhere:
        return self


NOWHERE = _Nowhere()
