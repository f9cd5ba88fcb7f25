"""How recurrent layers (LSTM, GRU, RNN) are captured: as the plain operators that PyTorch's C++ composes them from.

Invariant: PyTorch's tables and switches are afterwards what they were before.

PyTorch 2.15 has two other ways, and neither shows what a step does. Its decomposition in Python drops the dropout
between layers (`_rnn_helper` asks `num_layers < i - 1`); its fused kernel for processors, `mkldnn_rnn_layer`, keeps a
buffer for the backward pass whose size only the kernel knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

aten = torch.ops.aten

_LAYERS = [
    overload for packet in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu) for overload in (packet.input, packet.data)
]
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


@contextlib.contextmanager
def composed() -> Iterator[None]:
    """Within it, recurrent layers are traced through C++."""
    kernels = [(layer, key, layer.py_kernels.pop(key)) for layer in _LAYERS for key in _KEYS if key in layer.py_kernels]
    fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    _forget()
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(fused)
        for layer, key, kernel in kernels:
            layer.py_kernels[key] = kernel
        _forget()


def _forget() -> None:
    """Clears PyTorch's cache of which kernel serves which tensors."""
    for layer in _LAYERS:
        layer._dispatch_cache.clear()
