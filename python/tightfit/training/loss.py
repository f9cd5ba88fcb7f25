"""The memory of a loss outside of the model: first guessed, counted in the first steps, then planned for.

Invariant: what was counted once is planned for, and what is counted later only adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .counting import Counted, Tally, is_in_backward
from .ledger import Ledger, Pending
from .survey import Surveyed

# Number of forward passes without a count after which the guess stays: another profiler may be active, and some forward
# passes have no backward pass.
_TRIES = 3
# Bytes up to which a loss fits into the reserve, of which PyTorch itself takes a few kilobytes.
_SMALL = 32 << 10
# Factor applied to a loss that was seen to grow.
_GROWTH = 1.125
# Factor by which a batch is larger than those that were counted, so that it is counted, too.
_LARGER = 1.02


@dataclass(frozen=True)
class LossMemory:
    """Bytes that a loss outside of the model takes, besides the gradients of the model's outputs: `between` are freed
    before the backward pass of the model begins, and `kept` are held until it ends."""

    between: int
    kept: int = 0


class Loss:
    """What is known about the loss that follows one captured graph. The graph's differentiable `outputs` take this many
    bytes in 32 bits, their `gradients` this many in the graph, and `declared` is what the user says the loss takes
    between the passes. Without `is_counted`, what was declared or guessed stays."""

    def __init__(self, outputs: int, gradients: int, declared: int | None, ledger: Ledger, *, is_counted: bool = True) -> None:
        self.outputs = outputs
        self.gradients = gradients
        self.declared = declared
        self.ledger = ledger
        self._counted: LossMemory | None = None
        self._surveyed = 0
        self._tries = 0
        # The largest share of the graph's batch that was counted.
        self._share = 0.0
        self._is_never_counted = not is_counted
        self._is_stale = False

    @property
    def memory(self) -> LossMemory:
        """The figures to plan with."""
        if self._counted is not None:
            return self._counted
        if self.declared is not None:
            return LossMemory(self.declared)
        # Twice the outputs in 32 bits is what a softmax with cross-entropy takes; counts for other shapes are better.
        between, kept = self.ledger.shares or (2.0, 0.0)
        return LossMemory(int(between * self.outputs), int(kept * self.outputs))

    @property
    def is_known(self) -> bool:
        """Whether no first count will replace the figures."""
        return self._is_never_counted or self._counted is not None or self.outputs == 0 or self._tries >= _TRIES

    @property
    def is_guess(self) -> bool:
        """Whether the figures are neither counted nor declared."""
        return not self.is_known and self.declared is None and self.ledger.shares is None

    def is_counted(self, calls: int, share: float) -> bool:
        """Whether the step of forward pass number `calls`, with this share of the graph's batch, is counted: until the
        loss is known, then ever less often, and with each larger share: what losses take need not grow in proportion."""
        if self._is_never_counted:
            return False
        self._tries += self._counted is None
        return self._counted is None or self._is_stale or share > _LARGER * self._share or calls & (calls - 1) == 0

    def before_backward(self, pending: Pending, surveyed: Surveyed) -> None:
        """Called when the loss has been computed, with what its autograd graph holds."""
        held, tally = surveyed.held, pending.tally
        # At the sizes of the step's graph.
        grown = int(held / pending.share)
        if tally is not None and tally.count.is_running and not is_in_backward():
            tally.before, tally.surveyed = tally.count.cut(), held
            tally.targets = min(max(held - tally.before.net - pending.released(), 0), surveyed.given)
        elif grown > self._surveyed + _SMALL and (self._counted is not None or self._tries >= _TRIES):
            # This is not the loss that was counted. The next step is counted; until then, the loss's backward pass is
            # assumed to take as much again.
            self._surveyed = int(grown * _GROWTH)
            memory = self.memory
            self._counted = LossMemory(max(memory.between, 2 * self._surveyed), memory.kept)
            self._is_stale = True

    def counted(self, tally: Tally, section: Counted, share: float, *, is_nested: bool) -> None:
        """Called with the count from the end of the forward pass to the beginning of the model's backward pass, of a
        call whose batch is this share of the graph's. `is_nested` says that other steps ran in between, which may have
        made the gradients of the outputs, and were not counted."""
        self._share = max(self._share, share)
        gradients = 0 if is_nested else int(self.gradients * share)
        # Outputs that were freed in between do not make the loss smaller.
        kept = max(section.net + tally.released + tally.targets - gradients, 0)
        between = max(section.peak + tally.targets - gradients - kept, 0)
        self._learn(*(int(size / share) for size in (between, kept, tally.surveyed)))

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
