"""The package's exceptions.

Invariant: all of them are `TightfitError`s, and every message says what was found and what to do next.
"""

from __future__ import annotations


class TightfitError(Exception):
    """Whatever this package refuses, or fails at."""


class ExportError(TightfitError):
    """A model, batch or option that cannot be written as a training step."""


class ProgramError(ExportError):
    """The `tightfit` program is not there, or refused what it was given."""


class GraphFileError(TightfitError):
    """A file that is not there or holds no graph, or whose graph does not suit what it is used with."""


class WeightsError(TightfitError):
    """Trained weights that are not there, are damaged, or are of another step."""


class PlanError(TightfitError):
    """A plan that cannot be read, is for another graph, or breaks a rule of the checker."""


class OptionError(TightfitError, ValueError):
    """A budget, machine, planner or other option that makes no sense."""


class InfeasibleBudget(TightfitError):
    """A budget that no plan fits. The message is the proof in sentences; the attributes are its figures, in bytes:

    - `budget`: what was asked for;
    - `needed`: no schedule whatever needs less (0 where nothing is proven);
    - `smallest`: the smallest budget that is known to be feasible; for loops, of later steps that begin with gradients, too;
    - `binding`: the name of the node, or of the module where modules are planned, that holds the most at that budget;
      `None` where parameters, state and batch alone exceed the budget;
    - `live`: what is held there, as pairs of a name and bytes, the largest first.
    """

    def __init__(
        self,
        message: str,
        *,
        budget: int = 0,
        needed: int = 0,
        smallest: int = 0,
        binding: str | None = None,
        live: list[tuple[str, int]] | None = None,
    ) -> None:
        super().__init__(message)
        self.budget = budget
        self.needed = needed
        self.smallest = smallest
        self.binding = binding
        self.live = [] if live is None else live


class BudgetExceeded(TightfitError):
    """A call that would hold more than the budget, because of what the loop holds beside it; nothing was computed.

    `budget` and `needed` are bytes.
    """

    def __init__(self, message: str, *, budget: int = 0, needed: int = 0) -> None:
        super().__init__(message)
        self.budget = budget
        self.needed = needed


class AllocationError(TightfitError):
    """A step with planned addresses that asked for other memory than it did when it was recorded, or found its place
    taken. It was stopped, and no tensor was written over; gradients that a backward pass had added by then stay."""


class OffloadError(TightfitError):
    """A tier below the device that has too little room, or whose memory the system refuses."""


class CompileError(TightfitError):
    """A model that cannot be compiled as one graph, or was compiled otherwise already."""
