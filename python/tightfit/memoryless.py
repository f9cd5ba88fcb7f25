"""Prepares models and batches without memory, on the `meta` device or in a `FakeTensorMode`, for capture.

Invariant: the given model does not change, and nothing is allocated for tensors that had no memory.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


def is_memoryless(tensor: Any) -> bool:
    """Whether a tensor has no memory for its elements."""
    return isinstance(tensor, torch.Tensor) and (tensor.is_meta or isinstance(tensor, FakeTensor))


def made_fake(model: nn.Module, batch: Any) -> tuple[nn.Module, Any]:
    """The model and the batch with tensors that lack memory as fake tensors of one mode; unchanged if all have memory.

    Tensors of the `meta` device move to the device of the others, or to the CPU if there are none: there, operators
    have derivatives and behave as on an accelerator. The model is a copy, which shares tensors that have memory.
    """
    held = [value for module in model.modules() for value in vars(module).values()]
    own = [*model.parameters(), *model.buffers(), *(value for value in held if isinstance(value, torch.Tensor))]
    given = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if not any(map(is_memoryless, [*own, *given])):
        return model, batch
    devices = (tensor.device for tensor in [*own, *given] if tensor.device.type != "meta")
    device = next(devices, torch.device("cpu"))
    twins: dict[int, Any] = {id(tensor): tensor for tensor in own}  # tied weights stay tied
    # If the caller is in a fake mode, the capture uses that mode.
    with detect_fake_mode() or FakeTensorMode(allow_non_fake_inputs=True):
        for tensor in filter(is_memoryless, own):
            if twins[id(tensor)] is tensor:
                fake = _fake(tensor, device)
                is_parameter = isinstance(tensor, nn.Parameter)
                twins[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
        batch = pytree.tree_map(lambda leaf: _fake(leaf, device) if is_memoryless(leaf) else leaf, batch)
    # `deepcopy` takes what it finds here as already copied.
    return copy.deepcopy(model, twins) if any(map(is_memoryless, own)) else model, batch


def _fake(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    where = device if tensor.device.type == "meta" else tensor.device
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=where)
