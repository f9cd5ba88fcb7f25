"""The bytes that compiled models may hold together.

Invariant: models know of each other through their budget alone: what one of them holds, the plans of the others leave
out.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .. import devices
from ..errors import OptionError
from ..given import size

# A part of a GPU's memory, or of what is free there, with or without a percentage, and less a size.
_OF_DEVICE = re.compile(r"(?:(?P<share>\d+(?:\.\d+)?)\s*%\s+of\s+)?(?P<of>device|free)(?:\s*-\s*(?P<less>\S.*))?")

# Bytes below which a tensor that a call was given does not count: the reserve covers it.
_SMALL = 4096

if TYPE_CHECKING:
    from .ledger import Ledger, Pending


class Budget:
    """The bytes that one or several compiled models may hold together on their device.

        budget = tightfit.Budget("20GiB")
        generator = tightfit.compile(generator, budget=budget)
        discriminator = tightfit.compile(discriminator, budget=budget)

    What the others hold counts in the steps of each: parameters, gradients, optimizer state, and what waits for a
    backward pass. Where steps nest, as if the loss of one model goes through another, they share what is left.

    `size` is an `int`, text such as `"20GiB"`, a part of the memory of the GPU that is current (`"80% of device"`,
    `"free"`, `"free - 2GiB"`), or `"min"` for plans that hold as little as the planner reaches.
    """

    def __init__(self, size: int | str) -> None:
        self._bytes = budget_bytes(size)
        self.members = Members(is_shared=True)

    @property
    def bytes(self) -> int | None:
        """The budget in bytes; `None` if it is `"min"`."""
        return self._bytes

    def held(self) -> int:
        """The bytes that its models hold now."""
        return sum(ledger.total() for ledger in self.members.ledgers)

    def set(self, size: int | str) -> None:
        """Changes the budget. It holds from the next forward pass of each model on."""
        before, self._bytes = self._bytes, budget_bytes(size)
        self.members.changes += self._bytes != before

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ("min" if self._bytes is None else self._bytes,)

    def __deepcopy__(self, memo: Any) -> Budget:
        # It is of the device, whose memory a copied model shares.
        return self

    def __repr__(self) -> str:
        given = '"min"' if self._bytes is None else f"{self._bytes:_}"
        return f"tightfit.Budget({given})"


class Members:
    """The models that have a budget, and their passes that wait. If it `is_shared`, other steps may take memory between the
    two passes of one."""

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
        # How often the budget was changed: plans that were made before may leave memory unused.
        self.changes = 0
        self._has_addresses = False
        self._given: list[tuple[StorageWeakRef, int]] = []
        self._passes: list[weakref.ref[Pending]] = []

    def admit(self, *, has_addresses: bool) -> None:
        """Notes another model. Raises `OptionError` if one has planned addresses and several share the budget."""
        if (has_addresses and len(self.ledgers)) or self._has_addresses:
            raise OptionError("with addresses=True a budget is for everything on the device, and cannot be shared; give each model a "
                              "budget of its own, or leave addresses=True out")
        self._has_addresses = has_addresses

    def give(self, tensors: Iterable[torch.Tensor]) -> None:
        """Notes what a call was given. What the loop holds of it also counts in the steps of other calls."""
        known = {storage.cdata for storage, _ in self._given}
        self._given = [found for found in self._given if not found[0].expired()]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            # Others are parts of something larger, such as a data set.
            if storage._cdata not in known and _SMALL <= storage.nbytes() <= tensor.nbytes:
                known.add(storage._cdata)
                self._given.append((StorageWeakRef(storage), storage.nbytes()))

    def given(self, known: frozenset[int]) -> int:
        """Bytes of what calls were given, and the loop still holds, besides the `known` storages."""
        return sum(size for storage, size in self._given if storage.cdata not in known and not storage.expired())

    def enter(self, pending: Pending) -> None:
        """Notes a forward pass whose backward pass may come."""
        self._passes.append(weakref.ref(pending))

    def refresh(self) -> None:
        """Called before a step that nests in none: models may have got other parameters."""
        for ledger in self.ledgers:
            ledger.parts = None

    def waiting(self) -> list[Pending]:
        """The forward passes whose backward pass may come, in the order in which they ran."""
        found = [(reference, pending) for reference in self._passes
                 if (pending := reference()) is not None and pending.saved is not None]
        self._passes = [reference for reference, _ in found]
        return [pending for _, pending in found]

    def held_by_loop(self, own: Pending | None) -> int:
        """Bytes that the loop is known to hold since forward passes that wait, when another one begins, or when the
        backward pass of `own` does."""
        waiting = self.waiting()
        earlier = waiting if own is None else [pending for pending in waiting if pending.depth < own.depth]
        depth = len(waiting) if own is None else own.depth
        # What is held since an earlier pass includes what is held since a later one.
        return max((pending.step.between.held_since.get((pending.depth, depth), 0) for pending in earlier), default=0)


def budget_of(given: Any) -> Budget:
    """A budget from the user's argument: a `Budget` that models share, or the bytes of one model."""
    if isinstance(given, Budget):
        return given
    budget = Budget(given)
    budget.members.is_shared = False
    return budget


def budget_bytes(given: Any) -> int | None:
    """A budget from the user's argument: an `int` of bytes, `"6GiB"`, `"2.5GB"`, a part of a GPU's memory, or `"min"`
    (`None`)."""
    if given == "min":
        return None
    if isinstance(given, str) and (found := _OF_DEVICE.fullmatch(given.strip())):
        return _of_device(given, found)
    if isinstance(given, str) and given.strip().endswith("%"):
        raise OptionError(f"budget={given!r} is a share, and what it is a share of is known only once the step was captured; "
                          "write an int of bytes, text such as \"6GiB\" or \"80% of device\", or \"min\" for the smallest")
    budget = size(given, "budget", or_else=", or \"min\"")
    if budget == 0:
        raise OptionError(f"budget={given!r} has no room for anything; write the bytes that a step may hold, or \"min\" for the smallest")
    return budget


def _of_device(given: str, found: re.Match[str]) -> int:
    """The bytes of the current GPU that a text such as `"80% of device"` or `"free - 2GiB"` asks for."""
    kind = devices.current()
    memory = None if kind is None else kind.memory()
    if memory is None:
        raise OptionError(f"budget={given!r} is a part of a GPU's memory, and PyTorch finds no GPU; write an int of bytes, or text "
                          "such as \"6GiB\"")
    # What PyTorch has taken from the device is free for the models, or held by them.
    whole = memory.total if found["of"] == "device" else memory.free + memory.reserved
    less = 0 if found["less"] is None else size(found["less"], "budget")
    budget = int(whole * float(found["share"] or 100) / 100) - less
    if not 0 < budget <= memory.total:
        raise OptionError(f"budget={given!r} is {budget:,} bytes, and the GPU has {memory.total:,}; ask for a part of these")
    return budget
