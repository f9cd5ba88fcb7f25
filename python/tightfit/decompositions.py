"""Which operators a capture decomposes, and into what: Core ATen, with exceptions.

Invariant: an operator for which an entry returns `NotImplemented` stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

aten = torch.ops.aten

_attention = aten._scaled_dot_product_flash_attention_for_cpu
_attention_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward

# Operators kept whole although Core ATen decomposes them: each is one pass over memory instead of several.
KEPT_WHOLE = (
    aten._log_softmax,
    aten._log_softmax_backward_data,
    _attention,
    _attention_backward,
    aten._softmax,
    aten._softmax_backward_data,
    aten.addmm,
    aten.embedding_dense_backward,
    aten.gelu,
    aten.gelu_backward,
    aten.native_dropout,
    aten.native_dropout_backward,
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.nll_loss_backward,
    aten.nll_loss_forward,
)


def decompositions(executable: bool) -> dict[Any, Callable[..., Any]]:
    """The table of a capture; `executable` rewrites what the engine has no kernel for, if others can express it."""
    table = dict(core_aten_decompositions())
    for packet in KEPT_WHOLE:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    if executable:
        table[aten.constant_pad_nd.default] = _padded
        table[aten.copy.default] = _copied
        table[_attention.default] = _grouped_attention
        table[_attention_backward.default] = _grouped_attention_backward
    return table


def _padded(x: torch.Tensor, pad: list[int], value: float = 0) -> torch.Tensor:
    """Padding as a constant into which the tensor is written; negative widths cut the tensor."""
    widths = {x.dim() - 1 - index // 2: (pad[index], pad[index + 1]) for index in range(0, len(pad), 2)}
    for dim, (before, after) in widths.items():
        x = aten.slice.Tensor(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0))
    x = aten.clone.default(x) if max(pad, default=0) <= 0 else x
    for dim, (before, after) in widths.items():
        before, after, extent = max(before, 0), max(after, 0), x.shape[dim]
        if before or after:
            shape = [*x.shape[:dim], before + extent + after, *x.shape[dim + 1:]]
            whole = aten.full.default(shape, value, dtype=x.dtype, device=x.device)
            x = aten.slice_scatter.default(whole, x, dim, before, before + extent)
    return x


def _copied(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The result of an assignment to a whole tensor: the source in the tensor's type and shape."""
    source = aten.alias.default(source) if source.dtype == x.dtype else aten._to_copy.default(source, dtype=x.dtype)
    if source.shape == x.shape:
        return source
    # The assigned tensor has memory for each of its elements, so an expanded source is copied.
    return aten.clone.default(aten.expand.default(source, x.shape), memory_format=torch.contiguous_format)


def _grouped_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Several heads of queries for each head of keys (Ainslie et al. 2023): the keys are repeated."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return NotImplemented
    return _attention.default(query, _repeated(key, groups), _repeated(value, groups), *args, **kwargs)


def _grouped_attention_backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                *args: Any, **kwargs: Any) -> Any:
    """The gradient of a key is the sum of those of its repetitions."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return NotImplemented
    grads = _attention_backward.default(grad, query, _repeated(key, groups), _repeated(value, groups), *args, **kwargs)
    return grads[0], _summed(grads[1], groups), _summed(grads[2], groups)


def _repeated(x: torch.Tensor, groups: int) -> torch.Tensor:
    batch, heads, length, size = x.shape
    return x.unsqueeze(2).expand(batch, heads, groups, length, size).reshape(batch, heads * groups, length, size)


def _summed(x: torch.Tensor, groups: int) -> torch.Tensor:
    batch, heads, length, size = x.shape
    return x.reshape(batch, heads // groups, groups, length, size).sum(2)
