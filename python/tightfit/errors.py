"""The package's exceptions.

Invariant: all of them are `TightfitError`s, and every message says what was found and what to do next.
"""

from __future__ import annotations


class TightfitError(Exception):
    """Base class of everything that this package refuses or fails at."""


class ExportError(TightfitError):
    """A model, batch or option that cannot be written as a training step."""


class ProgramError(ExportError):
    """The `tightfit` program is missing, or refused its input."""


class GraphFileError(TightfitError):
    """A file that is missing or holds no graph, or whose graph does not match what it is used with."""


class WeightsError(TightfitError):
    """Trained weights that are missing, damaged, or of another step."""


class PlanError(TightfitError):
    """A plan that cannot be read, is for another graph, or breaks a rule of the checker."""


class OptionError(TightfitError, ValueError):
    """A budget, machine, planner or other option that makes no sense."""


class InfeasibleBudget(TightfitError):
    """A budget that no plan fits. The message is the proof in sentences; the attributes are its figures, in bytes:

    - `budget`: the requested budget;
    - `needed`: no schedule whatever needs less (0 if nothing is proven);
    - `smallest`: the smallest budget that is known to be feasible; for loops, also of later steps that begin with
      gradients;
    - `binding`: the name of the node, or of the module if modules are planned, that holds the most at that budget;
      `None` if parameters, state and batch alone exceed the budget;
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
    """A call that would hold more than the budget, because of what else the loop holds; nothing was computed.

    `budget` and `needed` are bytes.
    """

    def __init__(self, message: str, *, budget: int = 0, needed: int = 0) -> None:
        super().__init__(message)
        self.budget = budget
        self.needed = needed


class AllocationError(TightfitError):
    """A step with planned addresses that requested different memory than when it was recorded, or found its addresses
    taken. It was stopped, and no tensor was overwritten; gradients that a backward pass had already added stay."""


class OffloadError(TightfitError):
    """A tier below the device that is too small, or whose memory the system refuses."""


class CompileError(TightfitError):
    """A model that cannot be compiled as one graph, or is already compiled in another way."""
