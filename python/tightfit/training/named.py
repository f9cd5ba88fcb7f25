"""The backend by its name: `torch.compile(model, backend="tightfit", options={"budget": "6GiB"})`.

Invariant: a budget is for the whole step, so a model that breaks into several graphs is refused; without options the
environment variable `TIGHTFIT_BUDGET` gives it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torch._dynamo.symbolic_convert import InstructionTranslator

from ..errors import CompileError, OptionError
from .backend import Backend
from .budget import Budget, budget_of
from .engine import watch
from .settings import Settings, settings

_OPTIONS = ("budget", "differentiable_outputs", "loss_memory", "deadline", "fused", "offload", "planner", "split",
            "bits")

# One backend for each compiled function, budget and settings.
_backends: dict[tuple[Any, Any, Settings], Backend] = {}


def tightfit(module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured. Of the model's tensors, only those that the graph uses are counted."""
    given = dict(options or {})
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise OptionError(f"there is no option {unknown[0]!r}; the options are {', '.join(_OPTIONS)}")
    budget = given.pop("budget", os.environ.get("TIGHTFIT_BUDGET"))
    if budget is None:
        raise OptionError('a budget is missing; give options={"budget": "6GiB"} to torch.compile, or set TIGHTFIT_BUDGET')
    code = InstructionTranslator.current_tx().f_code
    if code.co_name.startswith("torch_dynamo_resume_in"):
        raise CompileError(
            f"the model breaks into several graphs: one begins at {code.co_filename}:{code.co_firstlineno}, in "
            f"{code.co_name.removeprefix('torch_dynamo_resume_in_')}, and a budget is for the whole step; "
            "torch.compile(…, fullgraph=True) says what breaks it"
        )
    if isinstance(budget, Budget):
        raise OptionError("a Budget is for models that are known as a whole, and by its name the backend sees graphs alone; compile "
                          "them with tightfit.compile(model, budget=…), or give a number of bytes here")
    own = budget_of(budget)
    key = code, own.bytes, settings(**{"split": "auto", **given})
    if key not in _backends:
        watch()
        _backends[key] = Backend(key[2], own, None, code.co_qualname if hasattr(code, "co_qualname") else code.co_name)
    return _backends[key](module, examples)
