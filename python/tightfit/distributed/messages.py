"""Messages between two stages for releases of PyTorch, the first ones, that give every message a gradient.

Invariant: the next stage reads the numbers that the stage before made, bit for bit; a message without a gradient gets
one of zeros, which is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.pipelining import _utils

# Later releases record for each message whether it has a gradient.
EACH_HAS_A_GRADIENT = not hasattr(_utils, "_TensorMeta")

# Types that can have a gradient, by the bytes of an element.
_OF_BYTES = {2: torch.float16, 4: torch.float32, 8: torch.float64}


class Messages:
    """The messages from a stage to the next one, for values of these types."""

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        self._types = [None if value.requires_grad else value.dtype for value in values]

    def sent(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Values as they are sent."""
        return [value if dtype is None else _Sealed.apply(value, _anchor())
                for value, dtype in zip(values, self._types, strict=True)]

    def read(self, messages: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values of messages."""
        return [message if dtype is None else _opened(message.detach(), dtype)
                for message, dtype in zip(messages, self._types, strict=True)]

    def owing(self, values: Sequence[torch.Tensor], messages: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a stage made, wrapped so that differentiating it gives every message that it read a gradient."""
        sealed = [message for message, dtype in zip(messages, self._types, strict=True) if dtype is not None]
        return [_Owing.apply(value, *sealed) if value.requires_grad and sealed else value for value in values]


def _anchor() -> torch.Tensor:
    return torch.empty(0, requires_grad=True)


def _opened(message: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # Elements of one byte are numbers that fit into two.
    return message.to(dtype) if dtype.itemsize == 1 else message.view(dtype)


class _Sealed(torch.autograd.Function):
    """A value as a message, cut off from what it was computed from."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        value = value.detach()
        if value.dtype.itemsize == 1:
            return value.to(torch.float16)
        return value.view(value.dtype if value.is_floating_point() else _OF_BYTES[value.dtype.itemsize])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, torch.empty(0)


class _Owing(torch.autograd.Function):
    """The same value; its backward pass also gives the messages gradients of zeros."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *messages: torch.Tensor) -> torch.Tensor:
        ctx.like = [(message.shape, message.dtype, message.device) for message in messages]
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.like]
        return gradients[0], *zeros
