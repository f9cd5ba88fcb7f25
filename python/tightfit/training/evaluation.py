"""Calls without gradients, which run eagerly where the budget leaves room.

Invariant: unless they are to run eagerly whatever they take, a call that is counted to hold more than is left, or a
smaller one of the same kind that was, does not run eagerly again. The first call of a kind is counted while it runs, and
later ones now and then.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..devices import kind_of
from .backend import Backend
from .between import with_later
from .counting import Count
from .execution import RESERVE
from .ledger import storages
from .nest import Demand, joined

_here = threading.local()

# The kind of a call: the types of its tensors, other arguments, and the mode of the model; and the extents of its
# tensors and other integers, up to a factor of two.
Kind = tuple[tuple[Any, ...], tuple[int, ...]]


@dataclass
class _Counted:
    """The largest counted call of a kind: the elements of the tensors that it was given, the bytes that it held in
    addition to what was there, and how many calls of the kind there were."""

    elements: tuple[int, ...]
    most: int
    calls: int = 0


class Evaluation:
    """The calls of one model without gradients, by kind. With `is_bounded`, those that do not fit are planned."""

    def __init__(self, backend: Backend, *, is_bounded: bool) -> None:
        self.backend = backend
        self.is_bounded = is_bounded
        self.counted: dict[Kind, _Counted] = {}
        # Bytes of parameters and buffers, and of all gradients that there may be, when a call was last counted.
        self.own = (0, 0)
        self.has_warned = False

    def run(self, call: Callable[[], Any], given: Any) -> tuple[bool, Any]:
        """Runs a call that was `given` these arguments, unless it has to be planned; returns whether it ran, and its
        result."""
        if getattr(_here, "is_counting", False):
            # It is part of a call that is counted.
            return True, self._handed_out(call())
        with Count.aside(self._device(_tensors(given))):
            return self._run(call, given)

    def _run(self, call: Callable[[], Any], given: Any) -> tuple[bool, Any]:
        """The same, for a call that is part of no other."""
        budget = self.backend.ledger.budget.bytes
        if budget is None:
            return True, self._handed_out(call())
        tensors = _tensors(given)
        kind = _kind(given, self.backend.model)
        elements = tuple(max(tensor.numel(), 1) for tensor in tensors)
        known = self.counted.get(kind)
        expected = self._similar(kind, elements) if known is None else known.most
        grown = 0 if known is None else math.ceil(known.most * max(_growth(elements, known.elements), 1) ** 2)
        free = self._free(budget, tensors, max(expected, grown))
        if self.is_bounded and (expected > free or free <= 0):
            return False, None
        if known is not None:
            known.calls += 1
            if grown <= free and known.calls & (known.calls - 1):
                self._note(known.most, tensors)
                return True, self._handed_out(call())
        return True, self._handed_out(self._counted(call, tensors, kind, elements))

    def _similar(self, kind: Kind, elements: tuple[int, ...]) -> int:
        """An estimate for a call of a kind that was not counted, from those that differ from it in extents alone, by a
        factor of two at most; 0 without any."""
        given = sum(elements)
        close = [found for other, found in self.counted.items() if other[0] == kind[0]
                 and _growth(elements, found.elements) <= 2 and _growth(found.elements, elements) <= 2]
        nearest = min(close, key=lambda found: abs(sum(found.elements) - given), default=None)
        return 0 if nearest is None else int(nearest.most * given / sum(nearest.elements))

    def _counted(self, call: Callable[[], Any], tensors: list[torch.Tensor], kind: Kind, elements: tuple[int, ...]) -> Any:
        """Runs a call, and counts what it holds. Warns, once, if it is too much."""
        budget, device = self.backend.ledger.budget.bytes, self._device(tensors)
        self.own = self._own(device)
        free = self._free(budget, tensors, budget)
        count = Count.begin(device)
        _here.is_counting = True
        try:
            result = call()
        finally:
            _here.is_counting = False
            sections = count.end() if count is not None and count.is_running else []
        peak = max((section.peak for section in sections), default=0)
        if sections:
            known = self.counted.setdefault(kind, _Counted(elements, peak, calls=1))
            known.elements, known.most = tuple(map(max, elements, known.elements)), max(peak, known.most)
            self._note(known.most, tensors)
        if peak > free and not self.has_warned:
            self.has_warned = True
            held = budget - free + peak
            later = ("Such calls are planned from now on, and refused where no plan fits. With evaluation=\"planned\" the first one "
                     "is planned, too, and with evaluation=\"eager\" all run eagerly" if self.is_bounded else
                     "With evaluation=\"planned\" they are planned")
            warnings.warn(
                f"a call of {self.backend.name} without gradients held {held:,} bytes, {held - budget:,} more than the budget of "
                f"{budget:,}: it ran eagerly. {later}. Smaller batches and zero_grad() before an evaluation leave more room",
                RuntimeWarning, stacklevel=4,
            )
        return result

    def _note(self, most: int, tensors: list[torch.Tensor]) -> None:
        """Tells the forward passes that wait for their backward passes what a call takes before them, with what it was
        given."""
        budget = self.backend.ledger.budget
        waiting = budget.members.waiting()
        if budget.members.is_shared:
            budget.members.give(tensors)
            made = {storage.cdata for pending in waiting for storage, _ in pending.outputs}
            most += self.backend.ledger.size(tensor for tensor in tensors if tensor.untyped_storage()._cdata not in made)
        for pending, demand in zip(waiting, with_later(waiting, Demand(most, most)), strict=True):
            pending.inner = joined(pending.inner, demand)

    def _handed_out(self, result: Any) -> Any:
        """The result of a call, once it is in the ledger: the caller may hold it during later calls."""
        self.backend.ledger.hand_out(_tensors(result))
        return result

    def _free(self, budget: int, tensors: list[torch.Tensor], wanted: int) -> int:
        """Bytes that the budget leaves for a call that was given these tensors. If `wanted` are there even with all
        gradients, existing ones are not looked for."""
        own, gradients = self.own
        given = self.backend.ledger.size(tensors)
        device = self._device(tensors)
        ledger = self.backend.ledger
        ledger.device = device
        beside = sum(ledger.others(known=storages(tensors)).values()) + ledger.members.held_by_loop(None)
        rest = budget - own - given - beside - RESERVE - kind_of(device).libraries()
        if wanted <= rest - gradients:
            return rest - gradients
        return rest - self.backend.ledger.size(
            parameter.grad for parameter in self.backend.model.parameters() if parameter.grad is not None)

    def _own(self, device: torch.device) -> tuple[int, int]:
        model, size = self.backend.model, self.backend.ledger.size
        there = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.device == device]
        return size(there), size(tensor for tensor in there if tensor.requires_grad)

    def _device(self, tensors: list[torch.Tensor]) -> torch.device:
        found = next(self.backend.model.parameters(), None)
        if found is None:
            found = next(iter(tensors), torch.empty(0))
        return found.device


def _growth(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The largest factor by which a tensor has more elements than another call's."""
    return max((mine / theirs for mine, theirs in zip(one, other, strict=True)), default=1.0)


def _tensors(items: Any) -> list[torch.Tensor]:
    return [item for item in pytree.tree_leaves(items) if type(item) is torch.Tensor and item.layout is torch.strided]


def _kind(given: Any, model: torch.nn.Module) -> Kind:
    """The kind of a call with these arguments."""
    parts: list[Any] = [model.training]
    extents: list[int] = []
    for item in pytree.tree_leaves(given):
        if isinstance(item, torch.Tensor):
            parts += [item.dtype, item.dim()]
            extents += (extent.bit_length() for extent in item.shape)
        elif isinstance(item, int) and not isinstance(item, bool):
            parts.append(int)
            extents.append(item.bit_length())
        else:
            parts.append(item if isinstance(item, bool | str | None) else type(item))
    return tuple(parts), tuple(extents)
