"""What a loss outside of the model takes: guessed at first, counted in the first steps, and planned for from then on.

Invariant: what was counted once is planned for, and what is counted later only adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .counting import Counted
from .ledger import Ledger, Pending, Surveyed

# How many forward passes may go by before the guess is believed: nobody counts where another profiler is active, and
# some forward passes have no backward pass.
_TRIES = 3
# Less than this fits into the reserve, of which PyTorch itself takes a few kilobytes.
_SMALL = 32 << 10
# Of a loss that was seen to grow: so much more may come.
_GROWTH = 1.125


@dataclass(frozen=True)
class LossMemory:
    """Bytes that a loss outside of the model takes, besides the gradients of the model's outputs: `between` are given back
    before the backward pass of the model begins, and `kept` are there until it ends."""

    between: int
    kept: int = 0


class Loss:
    """What is known of the loss that follows one captured graph, whose differentiable `outputs` take so many bytes in 32
    bits. Their `gradients` take so many in the graph, and `declared` is what the user says that the loss takes between the
    passes. Where it is not `is_counted`, what is said or guessed stays."""

    def __init__(self, outputs: int, gradients: int, declared: int | None, ledger: Ledger, *, is_counted: bool = True) -> None:
        self.outputs = outputs
        self.gradients = gradients
        self.declared = declared
        self.ledger = ledger
        self._counted: LossMemory | None = None
        self._surveyed = 0
        self._tries = 0
        self._is_never_counted = not is_counted
        self._is_stale = False

    @property
    def memory(self) -> LossMemory:
        """The figures that a plan is made with."""
        if self._counted is not None:
            return self._counted
        if self.declared is not None:
            return LossMemory(self.declared)
        # Twice the outputs in 32 bits is what a softmax with cross-entropy takes; what was counted for other shapes is better.
        between, kept = self.ledger.shares or (2.0, 0.0)
        return LossMemory(int(between * self.outputs), int(kept * self.outputs))

    @property
    def is_known(self) -> bool:
        """Whether nothing better will be known soon."""
        return self._is_never_counted or self._counted is not None or self.outputs == 0 or self._tries >= _TRIES

    @property
    def is_guess(self) -> bool:
        """Whether the figures are nobody's: neither counted nor declared."""
        return not self.is_known and self.declared is None and self.ledger.shares is None

    def is_counted(self, calls: int) -> bool:
        """Whether the step of a forward pass is counted, of which there were so many: until the loss is known, and now and then."""
        if self._is_never_counted:
            return False
        self._tries += self._counted is None
        return self._counted is None or self._is_stale or calls & (calls - 1) == 0

    def complete(self, pending: Pending, surveyed: Surveyed) -> None:
        """Before a backward pass: what autograd's graph of the loss holds."""
        pending.surveyed, held = surveyed, surveyed.held
        if pending.count is not None and pending.count.is_running:
            pending.before = pending.count.cut()
            pending.targets = min(max(held - pending.before.net - pending.released(), 0), surveyed.given)
        elif held > self._surveyed + _SMALL and (self._counted is not None or self._tries >= _TRIES):
            # Another loss than the one that was counted. The next step is counted; until then its own backward pass is taken
            # to need as much once more.
            most = 2 * int(held * _GROWTH)
            memory = self.memory
            self._counted = LossMemory(max(memory.between, most), memory.kept)
            self._surveyed = int(held * _GROWTH)
            self._is_stale = True

    def begins(self, pending: Pending, tangents: Sequence[torch.Tensor | None]) -> Counted | None:
        """The backward pass of the model begins, with these gradients of its outputs: what was counted since the forward pass,
        if anything was."""
        count, before = pending.count, pending.before
        pending.before = None
        if count is None or not count.is_running:
            return None
        if any(map(is_batched, tangents)):
            count.end()
            return None
        counted = count.end() if before is None else before.then(count.end())
        there = pending.targets
        # Outputs that were let go in between are no more the loss's than before.
        kept = max(counted.net + pending.released() + there - self.gradients, 0)
        between = max(counted.peak + there - self.gradients - kept, 0)
        self._learn(between, kept, self._surveyed if before is None else pending.surveyed.held)
        return counted

    def _learn(self, between: int, kept: int, surveyed: int) -> None:
        found = LossMemory(*(size if size > _SMALL else 0 for size in (between, kept)))
        known = self._counted
        if known is not None:
            found = LossMemory(max(found.between, known.between), max(found.kept, known.kept))
        self._counted, self._is_stale = found, False
        self._surveyed = max(self._surveyed, surveyed)
        if self.outputs:
            share = found.between / self.outputs, found.kept / self.outputs
            most = self.ledger.shares or share
            self.ledger.shares = max(share[0], most[0]), max(share[1], most[1])


def is_batched(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor stands for several, as in torch.autograd.grad(is_grads_batched=True)."""
    return torch._C._functorch.is_batchedtensor(tensor) or torch._C._functorch.is_legacy_batchedtensor(tensor)
