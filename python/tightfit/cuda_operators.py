"""A step as CUDA runs it, captured without a GPU: with the operators that PyTorch chooses there.

Invariant: PyTorch is afterwards what it was before; the traced tensors are fake CPU tensors, so no driver is needed.

Most operators are the same on every device. Attention is not: which kernel takes a call is decided here by the rules of
PyTorch's C++ (aten/src/ATen/native/transformers/attention.cpp and cuda/sdp_utils.cpp next to it, in 2.15). cuDNN's
attention, which some GPUs prefer, holds what FlashAttention holds; its batch normalisation what the native one holds.
Recurrent layers, which are one call of cuDNN there, are decomposed as for the processor.
"""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.backends.cuda import flash_sdp_enabled, mem_efficient_sdp_enabled
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .errors import ExportError

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_OWN = functional.scaled_dot_product_attention
# FlashAttention has kernels for heads of at most this size, a multiple of this number.
_FLASH_MOST, _FLASH_MULTIPLE = 256, 8
# The memory-efficient kernel needs head sizes, and rows of its bias, that are multiples of this many elements.
_ALIGNED = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 4}
_BIAS_MULTIPLE = 16

AUTOCAST = "its types are chosen by rules that only a GPU follows: take it out, and give the model the type that it is to " \
    "compute in, as in model.to(torch.bfloat16)"

# State of this thread.
_here = threading.local()


@contextlib.contextmanager
def chosen() -> Iterator[None]:
    """Within it, attention on this thread uses the operators that it uses on CUDA. One thread at a time."""
    before = functional.scaled_dot_product_attention
    if before is _OWN:
        # A mode that intercepts a function such as `multi_head_attention_forward` does not see that function's inner
        # calls, so PyTorch's function is replaced. If the user replaced it, PyTorch's is called from there, and seen.
        functional.scaled_dot_product_attention = _attention_by_thread
    _here.is_capturing = True
    try:
        with _Chosen(), warnings.catch_warnings():
            # Without a GPU, PyTorch ignores autocast and only warns.
            warnings.filterwarnings("error", message=".*Disabling autocast")
            yield
    finally:
        _here.is_capturing = False
        functional.scaled_dot_product_attention = before


def name_device(graph: fx.Graph) -> None:
    """Makes constants on the GPU where the graph names the processor."""
    def renamed(item: Any) -> Any:
        return torch.device("cuda") if isinstance(item, torch.device) and item.type == "cpu" else item

    for node in graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = pytree.tree_map(renamed, (node.args, dict(node.kwargs)))


class _Chosen(TorchFunctionMode):
    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_autocast_enabled("cuda"):
            raise ExportError(f"the step runs under autocast on cuda; {AUTOCAST}")
        return (_attention if function is _OWN else function)(*args, **(kwargs or {}))


def _attention_by_thread(*args: Any, **kwargs: Any) -> torch.Tensor:
    """CUDA's kernels on the thread that captures; PyTorch's own function on all others."""
    return (_attention if getattr(_here, "is_capturing", False) else _OWN)(*args, **kwargs)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
               dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
               enable_gqa: bool = False) -> torch.Tensor:
    """Scaled dot product attention by the first kernel that accepts the call: FlashAttention, the memory-efficient one,
    or else separate matrix products."""
    given = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if query.device.type == "cuda":  # PyTorch chooses
        return _OWN(query, key, value, attn_mask, **given)
    _validate((query, key, value, attn_mask), given)
    size = query.shape[-1]
    factor = 1 / math.sqrt(size) if scale is None else scale
    if _is_flash(query, key, value, attn_mask, is_causal, enable_gqa):
        query, key, value = (_padded(tensor, _FLASH_MULTIPLE) for tensor in (query, key, value))
        result = aten._scaled_dot_product_flash_attention.default(query, key, value, dropout_p, is_causal, False, scale=factor)
        return result[0][..., :size]
    if _is_efficient(query, key, value):
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        differentiates = any(tensor.requires_grad for tensor in (query, key, value))
        result = aten._scaled_dot_product_efficient_attention.default(
            query, key, value, bias, differentiates, dropout_p, is_causal, scale=factor
        )
        return result[0]
    with sdpa_kernel(SDPBackend.MATH), torch._C.DisableTorchFunction():
        return _OWN(query, key, value, attn_mask, **given)


def _validate(tensors: tuple[torch.Tensor | None, ...], given: dict[str, Any]) -> None:
    """Raises what PyTorch raises for a call that it does not accept; nothing is traced."""
    if not 0 <= given["dropout_p"] <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {given['dropout_p']}")
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        meta = [None if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors]
        _OWN(*meta, **given)


def _are_alike(*tensors: torch.Tensor) -> bool:
    """Whether all have the same type and batch size, four dimensions, at least one element, and rows without gaps."""
    first = tensors[0]
    return all(
        tensor.dim() == 4 and tensor.numel() > 0 and tensor.dtype == first.dtype and tensor.shape[0] == first.shape[0]
        and tensor.stride(-1) == 1 for tensor in tensors
    ) and tensors[1].shape[1:3] == tensors[2].shape[1:3]


def _is_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool,
              enable_gqa: bool) -> bool:
    if not flash_sdp_enabled() or mask is not None or query.dtype not in _HALF or not _are_alike(query, key, value):
        return False
    sizes = {tensor.shape[-1] for tensor in (query, key, value)}
    heads, groups = query.shape[1], key.shape[1]
    is_square = query.shape[-2] == key.shape[-2]
    return len(sizes) == 1 and max(sizes) <= _FLASH_MOST and (is_square or not is_causal) \
        and (heads == groups or enable_gqa and heads % groups == 0)


def _is_efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    if not mem_efficient_sdp_enabled() or query.dtype not in _ALIGNED or not _are_alike(query, key, value):
        return False
    aligned = _ALIGNED[query.dtype]
    return query.shape[1] == key.shape[1] and query.shape[-1] % aligned == 0 and value.shape[-1] % aligned == 0


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """The tensor with its last dimension padded as a kernel needs it."""
    missing = -tensor.shape[-1] % multiple
    return functional.pad(tensor, (0, missing)) if missing else tensor


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as the memory-efficient kernel takes it: added to the scores, for every head, its rows aligned."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    length = key.shape[-2]
    mask = mask.expand(*mask.shape[:-1], length)
    if -length % _BIAS_MULTIPLE:
        mask = _padded(mask, _BIAS_MULTIPLE)[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[-2], length)
