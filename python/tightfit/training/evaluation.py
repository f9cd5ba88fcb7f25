"""Calls without gradients, which run eagerly where the budget leaves room.

Invariant: a call that is counted to hold more than is left, or a smaller one of the same kind that was, does not run
eagerly again. The first call of a kind is counted while it runs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .backend import Backend
from .counting import Count
from .costs import libraries
from .execution import RESERVE

# The kind of a call: data type and extents of each tensor, extents up to a factor of two.
Kind = tuple[tuple[torch.dtype, tuple[int, ...]], ...]


class Evaluation:
    """The calls of one model without gradients, by kind."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        # The most elements of a counted call of each kind, and the bytes that it held in addition to what was there.
        self.counted: dict[Kind, tuple[int, int]] = {}
        # Bytes of parameters and buffers, and of all gradients that there may be, when a call was last counted.
        self.own = (0, 0)
        self.has_warned = False

    def run(self, call: Callable[[], Any], given: Any) -> tuple[bool, Any]:
        """Runs a call that was `given` these arguments, unless it has to be planned; returns whether it ran, and its
        result."""
        Count.abandon()
        budget = self.backend.settings.budget
        if budget is None:
            return True, self._handed_out(call())
        tensors = _tensors(given)
        kind = tuple((tensor.dtype, tuple(extent.bit_length() for extent in tensor.shape)) for tensor in tensors)
        elements = sum(tensor.numel() for tensor in tensors)
        known, most = self.counted.get(kind, (0, 0))
        free = self._free(budget, tensors, _grown(most, elements, known))
        if most > free or free <= 0:
            return False, None
        if known and _grown(most, elements, known) <= free:
            return True, self._handed_out(call())
        return True, self._handed_out(self._counted(call, tensors, kind, elements))

    def _counted(self, call: Callable[[], Any], tensors: list[torch.Tensor], kind: Kind, elements: int) -> Any:
        """Runs a call, and counts what it holds. Warns, once, if it is too much."""
        budget, device = self.backend.settings.budget, self._device(tensors)
        self.own = self._own(device)
        free = self._free(budget, tensors, budget)
        count = Count.begin(device)
        try:
            result = call()
        finally:
            sections = count.end() if count is not None and count.is_running else []
        peak = max((section.peak for section in sections), default=0)
        self.counted[kind] = max(elements, 1), peak
        if peak > free and not self.has_warned:
            self.has_warned = True
            held = budget - free + peak
            warnings.warn(
                f"a call of {self.backend.name} without gradients held {held:,} bytes, {held - budget:,} more than the budget of "
                f"{budget:,}: it ran eagerly, as the first of its kind. Such calls are planned from now on; with evaluation=\"planned\" "
                "the first one is, too", RuntimeWarning, stacklevel=4,
            )
        return result

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
        rest = budget - own - given - sum(self.backend.ledger.others().values()) - RESERVE - libraries(device)
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


def _tensors(items: Any) -> list[torch.Tensor]:
    return [item for item in pytree.tree_leaves(items) if type(item) is torch.Tensor and item.layout is torch.strided]


def _grown(bytes_held: int, elements: int, known: int) -> int:
    """An estimate of what a call of this many elements holds, if one of `known` held this many bytes. Attention holds a
    matrix of length by length."""
    return math.ceil(bytes_held * max(elements / known, 1) ** 2) if known else 0
