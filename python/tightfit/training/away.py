"""What is away: the storage of a tensor of which the device has nothing while a copy lies in the tier.

Invariant: a tensor that is away stays the same object, and so do its views; its storage has no memory. What comes back is
what left, bit for bit, and never what lay in the slot before.
"""

from __future__ import annotations

from typing import Any

import torch

from .tier import Slot, Tier


class Away:
    """A copy in the tier of what a tensor lies in, or lay in; and of what another does that was computed again. Whoever
    lets go of it lets go of the copy."""

    __slots__ = ("_lanes", "_size", "_slot", "_stays", "_transfer")

    def __init__(self, tier: Tier, tensor: torch.Tensor) -> None:
        """Begins to copy what a tensor lies in; it stays on the device."""
        storage = tensor.untyped_storage()
        self._size = storage.nbytes()
        self._lanes = tier.lanes
        self._transfer: Any = None
        # States of dropout that PyTorch keeps on the processor were never on the device.
        self._stays = storage.device.type != tier.device.type
        if not self._stays:
            self._slot: Slot = tier.take(self._size)
            self._transfer = self._lanes.out(self._slot, storage)

    def release(self, tensor: torch.Tensor) -> None:
        """Gives the memory on the device back as soon as the copy is there."""
        self._wait()
        if not self._stays:
            tensor.untyped_storage().resize_(0)

    def fetch(self, tensor: torch.Tensor) -> None:
        """Takes memory on the device, and begins to bring back what left."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self._size)
            self._transfer = self._lanes.back(self._slot, storage)

    def arrive(self, tensor: torch.Tensor) -> None:
        """What is told to the device from here on finds it there."""
        self.fetch(tensor)
        self._wait()

    def _wait(self) -> None:
        if self._transfer is not None:
            self._transfer.wait()
            self._transfer = None
