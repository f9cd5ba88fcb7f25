"""A model captured with one size as a symbol, again where another range of sizes begins.

Invariant: a size is run by a capture whose assumptions hold for it. What is captured with the size as a constant is for that
size alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import sympy
from torch.utils._sympy.functions import Mod

from ..errors import CompileError
from .backend import Backend
from .execution import Step
from .reading import reads_outside
from .varying import Varying

# The largest size that is asked for.
MOST = 1 << 24
# The most captures of one model.
_CAPTURES = 8


@dataclass
class Captured:
    """A graph in which `symbols` stand for one size; others that vary have `fixed` sizes. Without symbols it is the graph for
    the one size `at`. The backend keeps what was captured. Of the batch, the graph does not read `unread` bytes for each step
    along the axis, and others."""

    backend: Backend
    run: Varying | Step
    symbols: frozenset[sympy.Symbol]
    at: int = 0
    unread: tuple[int, int] = (0, 0)
    fixed: Mapping[sympy.Symbol, int] = field(default_factory=dict)

    @property
    def upper(self) -> int:
        """The largest size that it allows."""
        ranges = [self.run.environment.var_to_range[symbol].upper for symbol in self.symbols]
        return min((int(upper) if upper.is_Integer else MOST for upper in ranges), default=self.at)

    def known(self, size: int) -> dict[sympy.Symbol, int]:
        """The symbols at a size."""
        return {**self.fixed, **dict.fromkeys(self.symbols, size)}

    def allows(self, size: int) -> bool:
        """Whether what was assumed of the symbols holds for a size."""
        if not self.symbols:
            return size == self.at
        known = {symbol: sympy.Integer(each) for symbol, each in self.known(size).items()}
        ranges = self.run.environment.var_to_range
        return all(bool(ranges[symbol].lower <= each <= ranges[symbol].upper) for symbol, each in known.items()) and \
            all(guard.expr.xreplace(known) is not sympy.false for guard in self.run.environment.guards)

    def step(self, size: int) -> Step:
        """The step at a size that it allows."""
        return self.run.at(self.run.sizes_at(self.known(size))) if self.symbols else self.run

    def grid(self, given: int) -> int:
        """The number of which the model takes multiples, as far as its graph shows it, beginning with a size that it took."""
        found = 1
        for rest in {part for guard in self.run.environment.guards for part in guard.expr.atoms(sympy.Mod, Mod)}:
            (factor, of), divisor = rest.args[0].as_coeff_Mul(), rest.args[1]
            if of in self.symbols and divisor.is_Integer and factor.is_Integer:
                found = math.lcm(found, int(divisor) // math.gcd(int(factor), int(divisor)))
        return found if given % found == 0 else 1


class Captures:
    """The captures of a model: PyTorch chooses other operators from some sizes on, and there the next one begins, if more may be
    made."""

    def __init__(self, capture: Callable[[int], Captured] | None, first: Captured) -> None:
        self._capture = capture
        self._known = [first]
        # Sizes at which the model cannot be captured.
        self._failed: set[int] = set()

    def step(self, size: int) -> tuple[Step, int] | None:
        """The step at a size, and the bytes of the batch that it does not read there; `None` if there is none, as where
        positions have a table. Raises `TooMany` if that is not known."""
        while (found := next((one for one in self._known if one.allows(size)), None)) is None:
            at = self._border(size)
            # What lies between two sizes that fail is not tried.
            if self._capture is None or at in self._failed or min(self._failed, default=size) < size < max(self._failed, default=0):
                return None
            if len(self._known) + len(self._failed) >= _CAPTURES:
                raise TooMany
            try:
                self._known.append(self._capture(at))
            except CompileError:
                self._failed.add(at)
        try:
            step = found.step(size)
            return None if reads_outside(step.joint.module.graph) else (step, found.unread[0] * size + found.unread[1])
        except (CompileError, RuntimeError, ValueError, LookupError, TypeError):
            return None

    def _border(self, size: int) -> int:
        """The size to capture next on the way to this one."""
        uppers = [one.upper for one in self._known]
        return max(uppers) + 1 if max(uppers) < size and max(uppers) + 1 not in self._failed else size


class TooMany(Exception):
    """More captures than there may be would be needed to know."""
