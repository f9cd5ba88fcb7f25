"""Tensors that are away: the device holds none of their storage while a copy lies in the tier.

Invariant: a tensor that is away stays the same object, and so do its views; its storage has no memory. What comes back
is what left, bit for bit, never earlier contents of the slot.
"""

from __future__ import annotations

from typing import Any

import torch

from .tier import Slot, Tier


class Away:
    """A copy in the tier of the storage of a tensor, or of the recomputed tensor that took its place. Freeing this
    object frees the copy."""

    __slots__ = ("_lanes", "_size", "_slot", "_stays", "_transfer")

    def __init__(self, tier: Tier, tensor: torch.Tensor) -> None:
        """Begins to copy a tensor's storage, which stays on the device."""
        storage = tensor.untyped_storage()
        self._size = storage.nbytes()
        self._lanes = tier.lanes
        self._transfer: Any = None
        # Dropout states that PyTorch keeps on the CPU were never on the device.
        self._stays = storage.device.type != tier.device.type
        if not self._stays:
            self._slot: Slot = tier.take(self._size)
            self._transfer = self._lanes.out(self._slot, storage)

    def release(self, tensor: torch.Tensor) -> None:
        """Frees the memory on the device as soon as the copy is complete."""
        self._wait()
        if not self._stays:
            tensor.untyped_storage().resize_(0)

    def fetch(self, tensor: torch.Tensor) -> None:
        """Allocates memory on the device, and begins to copy the contents back."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self._size)
            self._transfer = self._lanes.back(self._slot, storage)

    def arrive(self, tensor: torch.Tensor) -> None:
        """Work submitted to the device from here on finds the contents there."""
        self.fetch(tensor)
        self._wait()

    def _wait(self) -> None:
        if self._transfer is not None:
            self._transfer.wait()
            self._transfer = None
