"""A step as CUDA runs it, captured without a GPU: the operators that PyTorch chooses there, in place of the processor's.

Invariant: PyTorch is afterwards what it was before; what is traced are fake tensors of the processor, so no driver is
asked for anything.

Most operators are the same on every device. Attention is not: which kernel takes a call is decided here by the rules of
PyTorch's C++ (aten/src/ATen/native/transformers/attention.cpp and cuda/sdp_utils.cpp beside it, in 2.15). cuDNN's
attention, which some GPUs prefer, holds what FlashAttention holds; its batch normalisation what the native one holds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_OWN = functional.scaled_dot_product_attention
# FlashAttention's kernels come for heads of these sizes.
_FLASH_MOST, _FLASH_MULTIPLE = 256, 8
# The memory-efficient kernel reads its bias in rows of so many elements.
_BIAS_MULTIPLE = 16


@contextlib.contextmanager
def chosen() -> Iterator[None]:
    """Within it, attention takes the operators that it takes on CUDA."""
    before = functional.scaled_dot_product_attention
    # A mode is not told of what a function calls that it was told of, as `multi_head_attention_forward` does.
    functional.scaled_dot_product_attention = _attention
    try:
        with _Chosen():
            yield
    finally:
        functional.scaled_dot_product_attention = before


def name_device(graph: fx.Graph) -> None:
    """Constants are made on the GPU, where the processor is named."""
    def renamed(item: Any) -> Any:
        return torch.device("cuda") if isinstance(item, torch.device) and item.type == "cpu" else item

    for node in graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = pytree.tree_map(renamed, (node.args, dict(node.kwargs)))


class _Chosen(TorchFunctionMode):
    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_attention if function is _OWN else function)(*args, **(kwargs or {}))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
               dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
               enable_gqa: bool = False) -> torch.Tensor:
    """Scaled dot product attention by the first kernel that takes the call: FlashAttention, the memory-efficient one, or
    else products one after the other."""
    tensors = (query, key, value)
    if query.device.type == "cuda":  # PyTorch chooses
        return _OWN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    is_fused = all(tensor.dim() == 4 and tensor.numel() > 0 and tensor.dtype == query.dtype for tensor in tensors)
    is_grouped = not query.shape[-3] == key.shape[-3] == value.shape[-3]
    size = query.shape[-1]
    factor = 1 / math.sqrt(size) if scale is None else scale
    if is_fused and _is_flash(query, key, value, attn_mask, is_causal) and (enable_gqa or not is_grouped):
        query, key, value = (_padded(tensor, _FLASH_MULTIPLE) for tensor in tensors)
        result = aten._scaled_dot_product_flash_attention.default(query, key, value, dropout_p, is_causal, False, scale=factor)
        return result[0][..., :size]
    is_learnt = attn_mask is not None and attn_mask.requires_grad
    if is_fused and query.dtype in (*_HALF, torch.float32) and not is_grouped and not is_learnt:
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        differentiates = any(tensor.requires_grad for tensor in tensors)
        result = aten._scaled_dot_product_efficient_attention.default(
            query, key, value, bias, differentiates, dropout_p, is_causal, scale=factor
        )
        return result[0]
    with sdpa_kernel(SDPBackend.MATH):
        return _OWN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _is_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool) -> bool:
    sizes = {tensor.shape[-1] for tensor in (query, key, value)}
    is_square = query.shape[-2] == key.shape[-2]
    return query.dtype in _HALF and mask is None and len(sizes) == 1 and max(sizes) <= _FLASH_MOST \
        and (is_square or not is_causal)


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """The last dimension as long as a kernel wants it."""
    missing = -tensor.shape[-1] % multiple
    return functional.pad(tensor, (0, missing)) if missing else tensor


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as the memory-efficient kernel takes it: added to the scores, for every head, its rows aligned."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    length = key.shape[-2]
    if -length % _BIAS_MULTIPLE:
        mask = _padded(mask, _BIAS_MULTIPLE)[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[-2], length)
