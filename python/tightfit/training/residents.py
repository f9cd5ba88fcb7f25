"""Residents, which outlive a step and may be away: parameters, and the optimizer's state of each.

Invariant: they stay the same objects. Between two steps, residents that are away can be read and written as usual, in
the tier's own memory, so code that inspects, saves or loads the model or the optimizer finds what the last step left;
while a step runs, each is on the device exactly when the plan has it there. When a step has ended or failed, all
transfers have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .tier import Slot, Tier


class _Item:
    """One tensor with its place in the tier, once it has one."""

    def __init__(self, tensor: torch.Tensor, tier: Tier) -> None:
        self.tensor = tensor
        self.tier = tier
        self.slot: Slot | None = None
        # Its stand-in on the device while it is away: the same in everything but memory.
        self.shell: torch.Tensor | None = None
        self.transfer: Any = None

    def leave(self) -> None:
        storage = self.tensor.untyped_storage()
        if self.slot is None or self.slot.bytes.numel() != storage.nbytes():
            self.slot = self.tier.take(storage.nbytes())
        self.transfer = self.tier.lanes.out(self.slot, storage)

    def release(self) -> None:
        self.wait()
        tensor = self.tensor
        if not self._is_shell():
            self.shell = tensor.data
        tensor.untyped_storage().resize_(0)

    def fetch(self) -> None:
        storage = self.tensor.untyped_storage()
        if storage.nbytes() == 0 and self.slot is not None:
            storage.resize_(self.slot.bytes.numel())
            self.transfer = self.tier.lanes.back(self.slot, storage)

    def wait(self) -> None:
        if self.transfer is not None:
            self.transfer.wait()
            self.transfer = None

    def hide(self) -> None:
        """If it is shown in the tier's memory, puts its shell in its place."""
        if self._is_shown():
            self.tensor.data = self.shell

    def show(self) -> None:
        """If it is away, makes the tensor refer to the tier's memory."""
        tensor = self.tensor
        if self.slot is not None and tensor.untyped_storage().nbytes() == 0:
            below = torch.empty(0, dtype=tensor.dtype)
            tensor.data = below.set_(self.slot.bytes.untyped_storage(), 0, tensor.shape, tensor.stride())

    def settle(self, *, below: bool, moves: bool) -> None:
        """Puts it where a step is to find it; if the step `moves` it, in memory that can be freed."""
        self.hide()
        is_away = self.tensor.untyped_storage().nbytes() == 0
        if below and not is_away:
            self.leave()
            self.wait()
            if not self._can_go():
                self._put(self._like())
            self.release()
        elif is_away and not below:
            self.fetch()
            self.wait()
        elif not below and moves and not self._can_go():
            self._put(self._like().copy_(self.tensor.data))
        if not below:
            self.slot = None

    def _can_go(self) -> bool:
        """Whether its memory is its own and can be freed; otherwise the other owner would keep it."""
        storage = self.tensor.untyped_storage()
        # Owners are the tensor, Python's object for the storage, and perhaps the shell.
        return storage.resizable() and torch._C._storage_Use_Count(storage._cdata) <= 2 + self._is_shell()

    def _put(self, made: torch.Tensor) -> None:
        self.tensor.data = made
        self.shell = None

    def _like(self) -> torch.Tensor:
        tensor = self.tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def _is_shell(self) -> bool:
        """Whether the shell has the tensor's own storage."""
        return self.shell is not None and self.shell.untyped_storage()._cdata == self.tensor.untyped_storage()._cdata

    def _is_shown(self) -> bool:
        # The user's code may have given the tensor other memory.
        return self.slot is not None and self.tensor.data_ptr() == self.slot.bytes.data_ptr()


class Resident:
    """Tensors that move together: a parameter, or what the optimizer keeps for one."""

    def __init__(self, tensors: Callable[[], Iterable[torch.Tensor]], tier: Tier) -> None:
        self._tensors = tensors
        self._tier = tier
        self._items: dict[int, _Item] = {}

    def _there(self) -> list[_Item]:
        """The tensors that exist now: an optimizer makes its state when it first needs it, and may be given another."""
        found = {}
        for tensor in self._tensors():
            item = self._items.get(id(tensor))
            found[id(tensor)] = item if item is not None else _Item(tensor, self._tier)
        self._items = found
        return list(found.values())

    # Called by a plan's code.

    def leave(self) -> None:
        """Begins to copy them to the tier."""
        for item in self._there():
            item.leave()

    def release(self) -> None:
        """Frees their memory on the device as soon as the copies are complete."""
        for item in self._there():
            item.release()

    def fetch(self) -> None:
        """Allocates memory on the device, and begins to copy them back."""
        for item in self._items.values():
            item.fetch()

    def arrive(self) -> None:
        """Work submitted to the device from here on finds them there."""
        for item in self._items.values():
            item.fetch()
            item.wait()

    # Between steps.

    def settle(self, *, below: bool, moves: bool = True) -> None:
        """Puts them where a step is to find them, away or on the device; and returns whether that moves them."""
        for item in self._there():
            item.settle(below=below, moves=moves)

    def wait(self) -> None:
        """Waits for transfers in progress."""
        for item in self._items.values():
            item.wait()

    def hide(self) -> None:
        """Puts them back on their device, though without memory."""
        for item in self._items.values():
            item.hide()

    def show(self) -> None:
        """Makes what is away readable."""
        for item in self._items.values():
            item.show()


class Residents:
    """All that may be away of one model and its optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, tier: Tier) -> None:
        self._optimizer = optimizer
        self.tier = tier
        self._known: dict[tuple[int, bool], Resident] = {}

    def of(self, parameter: torch.Tensor, *, is_state: bool) -> Resident:
        """A parameter, or its state."""
        key = id(parameter), is_state
        if key not in self._known:
            # The optimizer holds the parameter.
            tensors = (lambda: _state(self._optimizer, parameter)) if is_state else (lambda: [parameter])
            self._known[key] = Resident(tensors, self.tier)
        return self._known[key]

    def leave(self) -> None:
        """Moves everything away that the optimizer updates, and its state, as far as there is room: so as little as
        possible is held when the first step begins."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                state = _state(self._optimizer, parameter)
                size = parameter.nbytes + sum(item.nbytes for item in state)
                if _is_whole(parameter) and self.tier.used + size <= self.tier.size:
                    for is_state in (False, True):
                        self.of(parameter, is_state=is_state).settle(below=True)
        self.show()

    def begin(self, wanted: Mapping[Resident, bool]) -> None:
        """Called when a step begins; `wanted` says which residents it finds away. All others are on the device."""
        for below in (True, False):
            for resident in self._known.values():
                if wanted.get(resident, False) is below:
                    resident.settle(below=below, moves=resident in wanted)

    def hide(self) -> None:
        """Called before a step: puts all of them on their device again, though without memory."""
        for resident in self._known.values():
            resident.hide()

    def show(self) -> None:
        """Called after a step, or after a failed one: waits for all transfers, and makes all of them readable."""
        for resident in self._known.values():
            resident.wait()
        self.tier.lanes.finish()
        for resident in self._known.values():
            resident.show()


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills its storage, or would if it were not away."""
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() in (0, tensor.nbytes)


def _state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> list[torch.Tensor]:
    """What an optimizer keeps for each element of a parameter."""
    state = optimizer.state.get(parameter, {})
    return [item for item in state.values() if isinstance(item, torch.Tensor) and item.dim() > 0 and _is_whole(item)]
