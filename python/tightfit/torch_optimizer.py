"""Describes an optimizer of `torch.optim` in the terms of a step: kind, options by parameter, learning rate.

Invariant: an accepted optimizer updates parameters as PyTorch's does, except for rounding; whatever the step cannot
express is refused, and the refusal says what to do.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from .errors import ExportError

_KNOWN = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adamw", torch.optim.SGD: "sgd"}
_OPTIONS = {"adamw": ("betas", "eps", "weight_decay"), "sgd": ("momentum", "weight_decay")}
# Options that change the update and that a step does not have, with the values accepted. `foreach`, `fused` and
# `capturable` only change how it is computed.
_PLAIN: dict[str, Any] = {"amsgrad": False, "maximize": False, "nesterov": False, "dampening": 0.0}
_BY_NAME = 'give optimizer="adamw", "sgd" or a dict of one\'s options'


@dataclass(frozen=True)
class Described:
    """An optimizer's kind, the options of its first group, its learning rate, and each parameter's options by name."""

    kind: str
    options: dict[str, Any]
    learning_rate: float
    groups: dict[str, dict[str, Any]]


def described(optimizer: Any, model: nn.Module, learning_rate: float | None, *, execute: bool) -> Described:
    """The description of an optimizer, or of an optimizer class with its defaults.

    `learning_rate` replaces the optimizer's own. Without `execute` the step is planned and never run: no learning rate
    and no state is part of its graph.
    """
    if inspect.isclass(optimizer) and optimizer in _KNOWN:
        optimizer = optimizer([nn.Parameter(torch.zeros(1))])
        group = optimizer.param_groups[0]
        return Described(_KNOWN[type(optimizer)], _options(optimizer, group), float(group["lr"]), {})
    if isinstance(optimizer, lr_scheduler.LRScheduler):
        raise ExportError(
            f"{type(optimizer).__name__} is a schedule of learning rates and no optimizer, and an exported step has "
            "one learning rate: give the optimizer and learning_rate=…; a schedule is followed by training in "
            "pieces, each with its own rate: `tightfit train STEP --lr RATE --steps N --resume FILE --save FILE`"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        what = optimizer.__name__ if inspect.isclass(optimizer) else type(optimizer).__name__
        raise ExportError(f"optimizer is {what}, with which no step can end; {_BY_NAME}, an optimizer of torch.optim "
                          "(AdamW, Adam, SGD), or None for a graph to plan with that ends in gradients")
    _check_kind(optimizer)
    if execute:
        _check_run(optimizer, learning_rate)
    first = optimizer.param_groups[0]
    return Described(_KNOWN[type(optimizer)], _options(optimizer, first), float(first["lr"]),
                     _by_parameter(optimizer, model))


def _check_kind(optimizer: torch.optim.Optimizer) -> None:
    """Refuses updates that are computed differently from the engine's."""
    name = type(optimizer).__name__
    if type(optimizer) not in _KNOWN:
        raise ExportError(f"the engine has no {name}; use torch.optim.AdamW or SGD, or export with execute=False and "
                          "optimizer=None, a graph to plan with that ends in gradients")
    for group in optimizer.param_groups:
        for option, plain in _PLAIN.items():
            # Dampening only affects momentum.
            idle = option == "dampening" and not group.get("momentum")
            if group.get(option, plain) != plain and not idle:
                raise ExportError(f"{name} has {option}={group[option]!r}, which the engine does not have; build it "
                                  f"with {option}={plain!r}")
        # Adam is a base of AdamW since PyTorch 2.6; before, only Adam's name told them apart.
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is not torch.optim.Adam)
        if group["weight_decay"] and not decoupled:
            raise ExportError(f"{name} adds its weight decay to the gradient, which the engine does not; use "
                              "torch.optim.AdamW, or weight_decay=0")


def _check_run(optimizer: torch.optim.Optimizer, learning_rate: float | None) -> None:
    """Refuses settings that an engine that starts from scratch, with one learning rate, could not continue with."""
    if optimizer.state:
        raise ExportError(f"this {type(optimizer).__name__} has made updates already, and its state would be lost, "
                          f"since a step starts with a state of zero; give a fresh optimizer, or {_BY_NAME}")
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1:
        raise ExportError(f"the optimizer's groups have {len(rates)} learning rates, and a step has one for all of its "
                          "parameters; give all groups the same")
    if learning_rate is None and any("initial_lr" in group for group in optimizer.param_groups):
        raise ExportError("a schedule changes the learning rate of this optimizer, and an exported step has one; say "
                          "which with learning_rate=…")


def _by_parameter(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    """The options of each parameter; every trained one has to be in a group, and groups may hold no others than the
    model's."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise ExportError(f"the optimizer holds a parameter of shape {list(parameter.shape)} that is none of "
                                  "the model's; build it again from model.parameters()")
            found[names[id(parameter)]] = _options(optimizer, group)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in found:
            raise ExportError(f"{name!r} requires a gradient, and the optimizer does not hold it; add it to a group, "
                              "or freeze it with requires_grad_(False)")
    return found


def _options(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """The options of a group that are part of the graph."""
    return {option: [float(beta) for beta in group[option]] if option == "betas" else float(group[option])
            for option in _OPTIONS[_KNOWN[type(optimizer)]]}
