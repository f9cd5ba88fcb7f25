"""tightfit fits a training step into a budget of bytes.

Graph files are planned by compiled functions and need nothing but this package. Functions that take a PyTorch model
(`export`, `to_fx`, `module_info`) need `torch`, and load it on first use.

Invariant: importing this package has no side effects and loads no `torch`; everything public is named in `__all__`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import __version__
    from .analysis import Analysis, analyze
    from .errors import (
        AllocationError,
        BudgetExceeded,
        CompileError,
        ExportError,
        GraphFileError,
        InfeasibleBudget,
        OffloadError,
        OptionError,
        PlanError,
        ProgramError,
        TightfitError,
        WeightsError,
    )
    from .exporting import export
    from .graph_module import arguments, to_fx
    from .loading import load
    from .planning import Fitted, Graph, check, fit, modules, pareto, read_graph, report, sac, shard
    from .statistics import module_info
    from .training.bracketing import Tried
    from .training.budget import Budget
    from .training.compiling import PlanInfo, compile, plans, release
    from .training.planned import Swapped
    from .training.sizing import Largest, largest
    from .training.stepping import TrainingStep, step
    from .training.studying import capture_step, explain, plan

# The module that defines each public name. No module has the name of something it defines: loading it would hide that.
_DEFINED_IN = {
    "AllocationError": "errors",
    "Analysis": "analysis",
    "Budget": "training.budget",
    "BudgetExceeded": "errors",
    "CompileError": "errors",
    "ExportError": "errors",
    "Fitted": "planning",
    "Graph": "planning",
    "GraphFileError": "errors",
    "InfeasibleBudget": "errors",
    "Largest": "training.sizing",
    "OffloadError": "errors",
    "OptionError": "errors",
    "PlanError": "errors",
    "PlanInfo": "training.compiling",
    "ProgramError": "errors",
    "Swapped": "training.planned",
    "TightfitError": "errors",
    "TrainingStep": "training.stepping",
    "Tried": "training.bracketing",
    "WeightsError": "errors",
    "analyze": "analysis",
    "arguments": "graph_module",
    "capture_step": "training.studying",
    "check": "planning",
    "compile": "training.compiling",
    "explain": "training.studying",
    "export": "exporting",
    "fit": "planning",
    "largest": "training.sizing",
    "load": "loading",
    "module_info": "statistics",
    "modules": "planning",
    "pareto": "planning",
    "plan": "training.studying",
    "plans": "training.compiling",
    "read_graph": "planning",
    "release": "training.compiling",
    "report": "planning",
    "sac": "planning",
    "shard": "planning",
    "step": "training.stepping",
    "to_fx": "graph_module",
}

__all__ = [
    "AllocationError",
    "Analysis",
    "Budget",
    "BudgetExceeded",
    "CompileError",
    "ExportError",
    "Fitted",
    "Graph",
    "GraphFileError",
    "InfeasibleBudget",
    "Largest",
    "OffloadError",
    "OptionError",
    "PlanError",
    "PlanInfo",
    "ProgramError",
    "Swapped",
    "TightfitError",
    "TrainingStep",
    "Tried",
    "WeightsError",
    "analyze",
    "arguments",
    "capture_step",
    "check",
    "compile",
    "explain",
    "export",
    "fit",
    "largest",
    "load",
    "module_info",
    "modules",
    "pareto",
    "plan",
    "plans",
    "read_graph",
    "release",
    "report",
    "sac",
    "shard",
    "step",
    "to_fx",
]

# Packages that the extra `torch` installs.
_EXTRA = ("torch", "numpy", "safetensors")


def __getattr__(name: str) -> Any:
    """A public name, from the file that defines it."""
    if name == "__version__":
        return import_module("._native", __name__).__version__
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{_DEFINED_IN[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        advice = f"tightfit.{name} needs {error.name}, which is not installed; install tightfit[torch]"
        raise ModuleNotFoundError(advice, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
