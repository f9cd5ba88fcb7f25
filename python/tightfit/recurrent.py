"""How recurrent layers (LSTM, GRU, RNN) are captured: as the plain operators that PyTorch's C++ composes them from.

Invariant: PyTorch's tables and switches are afterwards what they were before.

PyTorch 2.15 has two other ways, and neither shows what a step does. Its decomposition in Python drops the dropout
between layers (`_rnn_helper` asks `num_layers < i - 1`); its fused kernel for processors, `mkldnn_rnn_layer`, keeps a
buffer for the backward pass whose size only the kernel knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten

_PACKETS = (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu)
_LAYERS = [overload for packet in _PACKETS for overload in (packet.input, packet.data)]
_NAMES = frozenset(packet.__name__ for packet in _PACKETS)
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


class _Unfused(TorchFunctionMode):
    """Recurrent layers do not use the fused kernel. Others keep theirs: the layout of a convolution depends on it."""

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if getattr(func, "__name__", "") not in _NAMES:
            return func(*args, **(kwargs or {}))
        fused = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch._C._set_mkldnn_enabled(fused)


@contextlib.contextmanager
def composed() -> Iterator[None]:
    """Within it, recurrent layers are traced through C++."""
    kernels = [(layer, key, layer.py_kernels.pop(key)) for layer in _LAYERS for key in _KEYS if key in layer.py_kernels]
    _forget()
    try:
        with _Unfused():
            yield
    finally:
        for layer, key, kernel in kernels:
            layer.py_kernels[key] = kernel
        _forget()


def _forget() -> None:
    """Clears PyTorch's cache of which kernel serves which tensors."""
    for layer in _LAYERS:
        layer._dispatch_cache.clear()
