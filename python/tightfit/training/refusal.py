"""The text of the refusal of a call.

Invariant: a budget that is named suffices, under the condition stated with it, for the call and for later ones of the
loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InfeasibleBudget
from .settings import too_few


@dataclass(frozen=True)
class Coming:
    """What later calls hold in addition to this one.

    `gradients` are bytes of gradients that the graph of the call does not compute, plus what earlier calls would hold
    in addition under a larger budget. `hooked` are bytes of gradients that hooks wait for, and `later` the bytes that
    suffice for the graph if a step begins with gradients; `None` if this one does, or none ever does. `waiting` has the
    bytes that each call that waits for its backward pass may hold.
    """

    gradients: int
    hooked: int
    later: int | None
    begins_with_gradients: bool
    waiting: Sequence[int]


def refusal(step: Any, error: InfeasibleBudget, needed: int, others: Mapping[str, int], coming: Coming) -> InfeasibleBudget:
    """The refusal of a graph in terms of the whole budget, of which the graph needs `needed`; `others` are held as
    well."""
    budget = step.budget
    beside = step.outside + step.reserve + sum(others.values())
    needed += beside
    beside += coming.gradients
    without = error.smallest + beside
    smallest = max(without, (coming.later or error.smallest) + beside + coming.hooked)
    reasons = {"parameters and buffers that this call does not use": step.outside, **others, "reserve": step.reserve}
    listed = ", ".join(f"{size:,} bytes of {reason}" for reason, size in reasons.items() if size)
    shapes = " and ".join(map(str, step.batch())) or "nothing"
    binding = f" The plan for that peaks {_place(error.binding)}." if error.binding else ""
    fewer = ""
    if smallest > without and not coming.begins_with_gradients:
        fewer = f" ({without} if every step begins without gradients: zero_grad() before the forward pass, no accumulation)"
    return InfeasibleBudget(
        f"{too_few(budget, needed)} a step of {step.name} on a batch of {shapes}: no schedule needs less than {needed:,}, and "
        f"{smallest:,} are known to suffice.{binding} In addition to the graph's own tensors this counts {listed}. Give "
        f"budget={smallest} or more{fewer}, or a smaller batch{_advice(step, others, coming)}",
        budget=budget or 0, needed=needed, smallest=smallest, binding=error.binding, live=error.live,
    )


def _advice(step: Any, others: Mapping[str, int], coming: Coming) -> str:
    """Advice on what else would help, and on what the figures do not count."""
    advice = []
    if "gradients that this call does not compute" in others:
        advice.append("Gradients of an earlier step count: call zero_grad() before")
    if coming.begins_with_gradients:
        advice.append("Gradients of an earlier step count: where they are not added to, call zero_grad() before the forward pass")
    if coming.waiting:
        advice.append("Run each backward pass right after its forward pass, and let go of losses and outputs of earlier calls: each "
                      f"further one takes up to {max(coming.waiting):,} bytes")
        if not step.ledger.members.is_shared:
            advice.append("Where several forward passes come before a backward pass, budget=tightfit.Budget(…) makes the first leave "
                          "room for the others")
    if step.ledger.members.is_shared:
        advice.append("The budget is shared, and this is one call: others of the loop may need more")
    if step.accumulates and step.joint.has_backward and "optimizer state" not in others:
        advice.append("An optimizer's state comes on top, unless optimizer=… says which")
    if step.loss.is_guess and step.joint.has_backward:
        advice.append("What a loss outside of the model takes is known after the first step; what is assumed until then, and "
                      "proven with it, may be too much or too little: loss_memory=… says it, and with loss=… it is captured, "
                      "and known from the start")
    elif step.division.has_others:
        advice.append("With bits=\"any\" other chunks of the loss are tried, too, which may need less and change last digits of the "
                      "gradients")
    return "".join(f". {sentence}" for sentence in advice)


def _place(node: str) -> str:
    """The place of a node in the step, for messages."""
    return "between the passes, where the loss is computed" if node == "barrier" else f"at {node!r}"
