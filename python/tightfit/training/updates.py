"""The user's own optimizer, run for one parameter at a time, and what such an update costs.

Invariant: parameters, state and its keys are afterwards what `optimizer.step()` on all parameters leaves, bit for bit:
the same code ran with the same options. Only optimizers that treat each parameter independently, element by element,
are accepted, so the cost of an update is linear in the number of elements, and measuring two small parameters
determines it.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as hooks

from .. import cache
from ..devices import kind_of
from ..errors import OptionError
from ..graph import producer
from ..measure import undisturbed
from .joint import Update

# Optimizers that update each element of each parameter independently.
_KNOWN = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop")
# Numbers of elements of the two parameters that are tried, and number of times that an update is timed.
_FEW, _MANY, _TIMES = 1 << 8, 1 << 12, 3

_COMPILE = "use tightfit.compile, which leaves the update to your loop"


@dataclass(frozen=True)
class _Line:
    """The cost per element, and the constant cost per update."""

    slope: float
    start: float

    @staticmethod
    def through(few: float, many: float) -> _Line:
        slope = max(0.0, (many - few) / (_MANY - _FEW))
        return _Line(slope, max(0.0, few - slope * _FEW))

    def at(self, elements: int) -> float:
        return self.start + self.slope * elements


@dataclass(frozen=True)
class _Cost:
    """The cost of an update, by the number of elements."""

    workspace: _Line
    state: _Line
    seconds: _Line


class Updates:
    """An optimizer whose updates are run one parameter at a time."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        _check(optimizer)
        self.optimizer = optimizer
        self._one = _inner(type(optimizer))
        self._costs: dict[str, _Cost] = {}
        # The group of each parameter, by its identity, while a step runs.
        self._group_of: dict[int, Mapping[str, Any]] = {}
        self._groups: list[dict[str, Any]] = []

    def begin(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Begins a step that updates these parameters, by name. Raises `OptionError` if it may not."""
        optimizer = self.optimizer
        _check(optimizer)
        self._groups = optimizer.param_groups
        self._group_of = {id(tensor): group for group in self._groups for tensor in group["params"]}
        missing = [name for name, tensor in parameters.items() if id(tensor) not in self._group_of]
        if missing:
            raise OptionError(
                f"the optimizer does not hold {_listed(missing)}, which would get a gradient that nothing uses; add it "
                "to the optimizer, or freeze it with requires_grad_(False)"
            )
        if any(tensor.grad is not None for group in self._groups for tensor in group["params"]):
            raise OptionError(
                "a parameter has a gradient already, and this step would replace it, not add to it: an update comes "
                "as soon "
                f"as its gradient is there. Call optimizer.zero_grad() first; to accumulate gradients, {_COMPILE}"
            )
        hooked = [name for name, tensor in parameters.items()
                  if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None)]
        if hooked:
            raise OptionError(f"{_listed(hooked)} has a hook on its gradient, which would not be called; take it out, "
                              f"or {_COMPILE}")
        storages = {tensor.untyped_storage()._cdata for tensor in parameters.values()}
        if len(storages) < len(parameters):
            raise OptionError("two of the model's parameters share memory without being one parameter, so the update "
                              "of one "
                              f"would be seen by the other; tie them by assigning the same parameter, or {_COMPILE}")

    def run(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Updates one parameter, as `optimizer.step()` would, and returns it."""
        optimizer = self.optimizer
        parameter.grad = gradient
        optimizer.param_groups = [{**self._group_of[id(parameter)], "params": [parameter]}]
        try:
            self._one(optimizer)
        finally:
            optimizer.param_groups = self._groups
            parameter.grad = None
        return parameter

    def end(self) -> None:
        """Called when all updates of a step have run: runs the hooks of the optimizer's step."""
        optimizer = self.optimizer
        optimizer._opt_called = True  # what schedulers of the learning rate check
        told = chain(list(optimizer._optimizer_step_post_hooks.values()),
                     list(hooks._global_optimizer_post_hooks.values()))
        for hook in told:
            hook(optimizer, (optimizer,), {})

    # Costs.

    def signature(self) -> Hashable:
        """Everything about the options that decides what updates cost."""
        return tuple((len(group["params"]), _options(group)) for group in self.optimizer.param_groups)

    def update(self, parameter: torch.Tensor) -> Update:
        """The cost of the update of a parameter."""
        cost, elements = self._cost(parameter), parameter.numel()
        return Update(math.ceil(cost.workspace.at(elements)), max(round(cost.seconds.at(elements), 9), 1e-9))

    def state_bytes(self, parameters: Iterable[torch.Tensor], device: torch.device) -> int:
        """Bytes of state on a device: what exists, and what updates of these parameters will make."""
        states = self.optimizer.state
        total = {id(tensor): _state_bytes(state, device) for tensor, state in states.items()}
        for parameter in parameters:
            total[id(parameter)] = max(total.get(id(parameter), 0), self.state_bytes_of(parameter))
        return sum(total.values())

    def state_bytes_of(self, parameter: torch.Tensor) -> int:
        """Bytes of state that updates of a parameter make."""
        return math.ceil(self._cost(parameter).state.at(parameter.numel()))

    def _cost(self, parameter: torch.Tensor) -> _Cost:
        group = self._group_of[id(parameter)]
        key = repr((type(self.optimizer).__qualname__, _options(group), parameter.dtype, parameter.device.type))
        if key not in self._costs:
            # Measurements are kept from one start to the next, so that the same plan is made.
            self._costs = _kept() | self._costs
        if key not in self._costs:
            with undisturbed(parameter.device):
                few, many = (self._tried(parameter, group, elements) for elements in (_FEW, _MANY))
            self._costs[key] = _Cost(*(_Line.through(*pair) for pair in zip(few, many, strict=True)))
            cache.keep(_file(), json.dumps({name: asdict(cost) for name, cost in self._costs.items()}))
        return self._costs[key]

    def _tried(self, like: torch.Tensor, group: Mapping[str, Any], elements: int) -> tuple[int, int, float]:
        """Workspace, bytes of state and seconds of the update of a parameter made for the trial."""
        parameter = nn.Parameter(torch.ones(elements, dtype=like.dtype, device=like.device))
        probe = copy.copy(self.optimizer)
        probe.param_groups = [{**group, "params": [parameter]}]
        probe.state = defaultdict(dict)
        if _unwrapped(type(probe)) is _unwrapped(torch.optim.Adagrad):  # its constructor makes the state
            probe.state[parameter] = {
                name: torch.zeros_like(parameter) if name == "sum" else copy.deepcopy(item)
                for name, item in self.optimizer.state[like].items()
            }
        parameter.grad = torch.ones_like(parameter)
        before = _state_bytes(probe.state[parameter], like.device)
        kind = kind_of(like.device)
        first = kind.peak_of(lambda: self._one(probe))
        state = _state_bytes(probe.state[parameter], like.device)
        later = kind.peak_of(lambda: self._one(probe))
        seconds = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            self._one(probe)
            kind.synchronize()
            seconds.append(time.perf_counter() - began)
        return max(first - (state - before), later, 0), state, min(seconds)


def _file() -> str:
    return "costs/updates-" + re.sub(r"[^\w.]+", "-", f"{producer()} {torch.get_num_threads()}") + ".json"


def _kept() -> dict[str, _Cost]:
    try:
        found = json.loads(cache.read(_file()) or "{}")
        return {key: _Cost(**{name: _Line(**line) for name, line in cost.items()}) for key, cost in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # a file that was damaged is written again


def _check(optimizer: Any) -> None:
    """Refuses an optimizer whose updates cannot be made one by one."""
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(f"optimizer={kind} is no torch.optim.Optimizer; give the optimizer itself, not a class, a "
                          "name or what wraps it")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptionError("LBFGS asks for the loss several times in one step, and needs all gradients at once; "
                          f"{_COMPILE}")
    known = [_unwrapped(getattr(torch.optim, name)) for name in _KNOWN]
    if _unwrapped(type(optimizer)) not in known:
        raise OptionError(f"{kind} is not known to update each parameter by itself, so its updates cannot come early; "
                          f"use one of {', '.join(_KNOWN)}, or {_COMPILE}")
    patched = vars(optimizer).get("step")
    if patched is not None and not getattr(patched, "_wrapped_by_lr_sched", False):
        raise OptionError(f"the step of this {kind} was replaced, and the replacement would not run; {_COMPILE}")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise OptionError(f"differentiable=True keeps what {kind} computes, so no gradient can go early; leave it out")
    if optimizer._optimizer_step_pre_hooks or hooks._global_optimizer_pre_hooks:
        raise OptionError("a hook is registered that runs before the optimizer's step and may look at all gradients, "
                          "as those that clip do; updates come as soon as each gradient is there. Take the hook out, "
                          f"or {_COMPILE}")


def _inner(kind: type) -> Any:
    """An optimizer's step without the surrounding calls of hooks."""
    step = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _unwrapped(kind: type) -> Any:
    return inspect.unwrap(kind.step)


def _options(group: Mapping[str, Any]) -> Hashable:
    return tuple((name, _decides(item)) for name, item in sorted(group.items()) if name != "params")


def _decides(item: Any) -> Hashable:
    """The part of an option that decides which calls an update makes: of a number, whether it is zero."""
    if item is None or isinstance(item, (bool, str)):
        return item
    if isinstance(item, torch.Tensor):
        return item.dtype, item.device
    if isinstance(item, (tuple, list)):
        return tuple(map(_decides, item))
    return item != 0 if isinstance(item, (int, float)) else type(item).__name__


def _state_bytes(state: Mapping[str, Any], device: torch.device) -> int:
    return sum(item.untyped_storage().nbytes() for item in state.values()
               if isinstance(item, torch.Tensor) and item.device == device)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"
