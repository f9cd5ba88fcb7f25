"""Hooks into the start of autograd's engine: surveys the backward pass that is about to run.

Invariant: no backward pass is changed; one that no plan can run is refused.
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
from .ledger import Pending, losses
from .survey import Survey, survey

# The calls of all models that wait for their backward pass.
waiting: weakref.WeakSet[Pending] = weakref.WeakSet()
# The models that have plans.
_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_is_watched = False
# Bytes that a backward pass without a plan must hold before it gives a warning.
_SMALL = 64 << 10
# Number of backward passes without a plan that are all surveyed after a model was compiled; later ones less and less
# often.
_SURVEYED = 8
# Number of backward passes without a plan so far.
_others = 0


def watch(model: nn.Module | None = None) -> None:
    """Surveys backward passes from now on. One that bypasses the plans of `model` gives a warning."""
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
        calls = _before(outputs, creates=bool(creates))
        # Those that the pass reaches through a call.
        others = [pending for pending in waiting if pending.tally is not None and pending not in calls]
        try:
            return run(outputs, gradients, keeps, creates, *args, **kwargs)
        finally:
            for pending in [*calls, *(other for other in others if other.saved is None)]:
                pending.step.after_backward(pending)
            Count.settle()

    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = watched
    _give_way(torch.autograd.profiler, "_prepare_profiler")
    _give_way(torch.autograd.profiler, "_enable_profiler")


def unwatch(model: nn.Module) -> None:
    """Backward passes that bypass plans of this model give no warning from now on."""
    _models.discard(model)
    _warned.discard(model)


def _give_way(module: Any, name: str) -> None:
    """Makes counts end before another profiler begins: a thread has one profiler at a time."""
    begin = getattr(module, name)

    @functools.wraps(begin)
    def begun(*args: Any, **kwargs: Any) -> Any:
        Count.abandon()
        return begin(*args, **kwargs)

    setattr(module, name, begun)


def _before(roots: Sequence[Any], *, creates: bool) -> list[Pending]:
    """Runs before a backward pass from these roots with `create_graph` as in `creates`; returns the calls it will
    reach."""
    if not waiting and not _is_due():
        return []
    found = survey(roots)
    if found.pending and creates:
        raise CompileError(
            f"create_graph=True asks for gradients of gradients, and {found.pending[0].step.name} computes gradients by a plan, "
            "which autograd cannot differentiate once more. Leave create_graph=True out, or compute this term "
            "(a gradient penalty, a Hessian) with a model that was not compiled"
        )
    for pending in found.pending:
        pending.losses, pending.scaled = losses(roots), found.scaled
        pending.step.before_backward(pending, found)
    _warn_of_others(found)
    return found.pending


def _is_due() -> bool:
    """Whether to survey a backward pass although no call waits for one."""
    global _others
    _others += 1
    return (_others <= _SURVEYED or _others & (_others - 1) == 0) and len(_models) > len(_warned)


def _warn_of_others(found: Survey) -> None:
    """Warns, once, if gradients of a model are computed without a plan."""
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
                f"a backward pass computes gradients of {name}'s parameters, but no plan ran the forward pass, so nothing bounds its "
                f"memory. model.forward(…), a method or a part of {name} called alone, and torch.compile around the call all go "
                "around the plan; call the model itself, outside of torch.compile", RuntimeWarning, stacklevel=2,
            )


def _trained(pending: Pending) -> Iterable[torch.Tensor]:
    return [*pending.parameters.values(), *pending.idle]
