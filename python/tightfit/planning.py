"""Planning graphs that are files: `tightfit.fit` and its kin.

Invariant: pure arguments and results; every figure is the compiled module's.
"""

from __future__ import annotations

from ._native import Fitted, Graph, fit, read_graph

__all__ = ["Fitted", "Graph", "fit", "read_graph"]
