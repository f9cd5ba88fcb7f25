"""cuDNN's batch normalization, captured as itself.

Invariant: while a step is captured, and only in the thread that captures it, what eager mode would run with cuDNN is
recorded as an operator that PyTorch runs with cuDNN; otherwise PyTorch is unchanged.

`cudnn_batch_norm` writes running statistics without declaring it, so when PyTorch traces it, it uses the native kernel
instead (torch/_decomp/decompositions.py), whose results differ by rounding. `_batch_norm_with_update` declares what it
writes, and uses cuDNN's kernel where eager mode would call `cudnn_batch_norm`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

aten = torch.ops.aten

_OPERATOR = aten.cudnn_batch_norm.default
_KEY = torch._C.DispatchKey.Autograd
_lock = threading.Lock()
_here = threading.local()


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """Within it, this thread's captures record cuDNN's batch normalization as cuDNN's."""
    _replace()
    before = getattr(_here, "is_capturing", False)
    _here.is_capturing = True
    try:
        yield
    finally:
        _here.is_capturing = before


def _replace() -> None:
    """Installs the choice in front of the function that PyTorch traces, once."""
    with _lock:
        native = _OPERATOR.py_kernels.get(_KEY)
        if native is not None and not getattr(native, "is_choice", False):
            _OPERATOR.py_kernels[_KEY] = _choice(native)
            _OPERATOR._dispatch_cache.clear()


def _choice(native: Callable[..., Any]) -> Callable[..., Any]:
    """cuDNN's kernel on a thread that captures a training step, otherwise `native`."""

    def normalized(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,  # noqa: A002: PyTorch's name
                   running_mean: torch.Tensor | None, running_var: torch.Tensor | None, training: bool,
                   exponential_average_factor: float, epsilon: float) -> tuple[torch.Tensor, ...]:
        # Without a device, it is unknown how much cuDNN saves for the backward pass.
        is_whole = getattr(_here, "is_capturing", False) and torch.cuda.is_available()
        if not (is_whole and training and running_mean is not None):
            return native(input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon)
        return aten._batch_norm_with_update.default(input, weight, bias, running_mean, running_var,
                                                    exponential_average_factor, epsilon)

    normalized.is_choice = True
    return normalized
