"""Operators that PyTorch's tracing replaces by others, captured as themselves.

Invariant: while a step is captured, and only in the thread that captures it, the operators that eager mode would run are
recorded; otherwise PyTorch is unchanged.

`cudnn_batch_norm` writes running statistics without declaring it, so when PyTorch traces it, it uses the native kernel
instead (torch/_decomp/decompositions.py), whose results differ by rounding. `_batch_norm_with_update` declares what it
writes, and uses cuDNN's kernel where eager mode would call `cudnn_batch_norm`. Interpolation and a few others are
traced as many small operators, whose gradients are summed in another order, and which hold more.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..devices import cuda

aten = torch.ops.aten

_NORMALIZATION = aten.cudnn_batch_norm.default
_KEY = torch._C.DispatchKey.Autograd
# Families of operators with kernels of PyTorch's own in Python, for tracing alone.
_REPLACED = ("upsample_", "_upsample_", "hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward")
_KEYS = (_KEY, torch._C.DispatchKey.CompositeImplicitAutograd)
_lock = threading.Lock()
_here = threading.local()


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """Within it, this thread's captures record what eager mode runs."""
    with _lock:
        _replace()
    before = _is_capturing()
    _here.is_capturing = True
    try:
        yield
    finally:
        _here.is_capturing = before


def _is_capturing() -> bool:
    return getattr(_here, "is_capturing", False)


def _replace() -> None:
    """Installs the choices in front of the functions that PyTorch traces, once for each."""
    _choose(_NORMALIZATION, _KEY, _normalized)
    for operator in _replaced():
        for key in _KEYS:
            _choose(operator, key, functools.partial(_itself, operator))


@functools.cache
def _replaced() -> list[torch._ops.OpOverload]:
    packets = [getattr(aten, name) for name in dir(aten) if name.startswith(_REPLACED) and not name.endswith("backward")]
    return [getattr(packet, overload) for packet in packets if isinstance(packet, torch._ops.OpOverloadPacket)
            for overload in packet.overloads()]


def _choose(operator: torch._ops.OpOverload, key: torch._C.DispatchKey, choice: Callable[..., Callable[..., Any]]) -> None:
    """Installs a choice, given the kernel that PyTorch has for tracing an operator, if it has one."""
    native = operator.py_kernels.get(key)
    if native is not None and not getattr(native, "is_choice", False):
        chosen = choice(native)
        chosen.is_choice = True
        operator.py_kernels[key] = chosen
        operator._dispatch_cache.clear()


def _itself(operator: torch._ops.OpOverload, native: Callable[..., Any]) -> Callable[..., Any]:
    """The operator's own kernel on a thread that captures a training step, otherwise `native`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not _is_capturing():
            return native(*args, **kwargs)
        with torch._C._DisablePythonDispatcher():
            return operator(*args, **kwargs)

    return run


def _normalized(native: Callable[..., Any]) -> Callable[..., Any]:
    """cuDNN's kernel on a thread that captures a training step, otherwise `native`."""

    def normalized(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,  # noqa: A002: PyTorch's name
                   running_mean: torch.Tensor | None, running_var: torch.Tensor | None, training: bool,
                   exponential_average_factor: float, epsilon: float) -> tuple[torch.Tensor, ...]:
        # Without a device, it is unknown how much cuDNN saves for the backward pass.
        is_whole = _is_capturing() and cuda.is_available()
        if not (is_whole and training and running_mean is not None):
            return native(input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon)
        return aten._batch_norm_with_update.default(input, weight, bias, running_mean, running_var,
                                                    exponential_average_factor, epsilon)

    return normalized
