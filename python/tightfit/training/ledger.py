"""What a model's training holds beside what the plan of one call knows.

Invariant: nothing is kept alive by being counted here; what the user's code let go counts no more.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

# Results of a call that are smaller than this are held by the reserve.
_SMALL = 4096


@dataclass(eq=False)
class Pending:
    """A forward pass whose backward pass has not come: what it saved, and how it is to go on."""

    plan: Any
    saved: list[Any] | None
    arguments: list[torch.Tensor]
    versions: list[int]
    returns: bool
    bytes: int = 0

    def held(self) -> int:
        """Bytes that only its saved tensors hold."""
        return 0 if self.saved is None else self.bytes


@dataclass
class Ledger:
    """The bytes of one model's training, by who holds them."""

    pending: weakref.WeakSet[Pending] = field(default_factory=weakref.WeakSet)
    outputs: list[tuple[StorageWeakRef, int]] = field(default_factory=list)
    # Bytes of optimizer state on the model's device: what is there, or what is reserved for it.
    state: int = 0

    def enter(self, pending: Pending) -> None:
        """A forward pass saved something."""
        self.pending.add(pending)

    def hand_out(self, outputs: Iterable[Any]) -> None:
        """A forward pass gave these to its caller."""
        for output in outputs:
            if isinstance(output, torch.Tensor):
                storage = output.untyped_storage()
                if (size := storage.nbytes()) >= _SMALL:
                    self.outputs.append((StorageWeakRef(storage), size))

    def others(self, own: Pending | None = None) -> dict[str, int]:
        """What is held beside a call and what it works on, by reason; `own` is the call's own forward pass."""
        self.outputs = [(storage, size) for storage, size in self.outputs if not storage.expired()]
        found = {"optimizer state": self.state}
        found["forward passes whose backward pass has not come"] = sum(
            other.held() for other in self.pending if other is not own
        )
        if own is None:
            found["outputs of earlier calls"] = sum(size for _, size in self.outputs)
        return {reason: size for reason, size in found.items() if size}
