"""PyTorch's engine of autograd, seen from before it starts: what a backward pass will go through.

Invariant: nothing of a backward pass is changed; it is refused where no plan can run it, and its figures are noted.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import CompileError
from .counting import Count
from .ledger import Pending
from .survey import Survey, survey

# The calls that wait for their backward pass, of all models.
waiting: weakref.WeakSet[Pending] = weakref.WeakSet()
# The models that have plans.
_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_is_watched = False
# What a backward pass may hold that nobody is warned of, in bytes.
_SMALL = 64 << 10
# So many backward passes that went through no plan are looked at behind the last compilation, and then ever fewer.
_LOOKS = 8
# How many there were.
_others = 0


def watch(model: nn.Module | None = None) -> None:
    """Looks at each backward pass from now on; those that go round the plans of `model` are warned of."""
    global _is_watched, _others
    if model is not None:
        _models.add(model)
        _others = 0
    if _is_watched:
        return
    _is_watched = True
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def watched(outputs: Sequence[Any], gradients: Any, keeps: bool, creates: bool, *args: Any, **kwargs: Any) -> Any:
        _before(outputs, creates=bool(creates))
        try:
            return run(outputs, gradients, keeps, creates, *args, **kwargs)
        finally:
            Count.settle()

    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = watched


def _before(roots: Sequence[Any], *, creates: bool) -> None:
    """What happens before a backward pass from these roots, which `creates` a graph of itself."""
    if not waiting and not _is_due():
        return
    found = survey(roots)
    if found.pending and creates:
        raise CompileError(
            f"create_graph=True asks for gradients of gradients, and {found.pending[0].step.name} computes gradients by a plan, "
            "which autograd cannot differentiate once more. Leave create_graph=True out, or compute this term "
            "(a gradient penalty, a Hessian) with a model that was not compiled"
        )
    for pending in found.pending:
        pending.step.loss_is_complete(pending, found)
    _warn_of_others(found)


def _is_due() -> bool:
    """Whether a backward pass while no call waits is looked at."""
    global _others
    _others += 1
    return (_others <= _LOOKS or _others & (_others - 1) == 0) and len(_models) > len(_warned)


def _warn_of_others(found: Survey) -> None:
    """Warns, once, where gradients of a model are computed by no plan of it."""
    if sum(storage.size for storage in found.held.values()) < _SMALL:
        return  # a penalty on parameters
    planned = {id(tensor) for pending in found.pending for tensor in _trained(pending)}
    leaves = {id(leaf) for leaf in found.leaves} - planned
    for model in list(_models) if leaves else ():
        own = {id(parameter) for parameter in model.parameters()}
        if model not in _warned and own & leaves and not own & planned:
            _warned.add(model)
            name = type(model).__name__
            warnings.warn(
                f"a backward pass computes gradients of {name}'s parameters, and no plan ran the forward pass: nothing bounds "
                f"it. model.forward(…), a method or a part of {name} by itself, and a function around it that torch.compile "
                "compiles all go round the plan; call the model itself, outside of torch.compile", RuntimeWarning, stacklevel=2,
            )


def _trained(pending: Pending) -> Iterable[torch.Tensor]:
    return [*pending.parameters.values(), *pending.idle]
