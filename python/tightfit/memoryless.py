"""Models and batches without memory behind them, on the `meta` device or in a `FakeTensorMode`, made ready to capture.

Invariant: nothing of the model given changes, and nothing is allocated for what had no memory.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


def is_memoryless(tensor: Any) -> bool:
    """Whether a tensor has no elements in any memory."""
    return isinstance(tensor, torch.Tensor) and (tensor.is_meta or isinstance(tensor, FakeTensor))


def off_meta(model: nn.Module, batch: Any) -> tuple[nn.Module, Any]:
    """Tensors of the `meta` device as fake ones of the device that the others are on, the CPU where there are none:
    operators know their derivatives there, and behave as on an accelerator. Others as they are."""
    own = [*model.parameters(), *model.buffers()]
    given = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if not any(tensor.is_meta for tensor in [*own, *given]):
        return model, batch
    device = next((tensor.device for tensor in [*own, *given] if not tensor.is_meta), torch.device("cpu"))
    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:  # tied weights stay tied
            twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
        return made[id(tensor)]

    is_copied = any(tensor.is_meta for tensor in own)
    model = copy.deepcopy(model) if is_copied else model
    with _mode([*own, *given]):
        for module in model.modules() if is_copied else ():
            for table in (module._parameters, module._buffers, module.__dict__):
                table.update({name: fake(tensor) for name, tensor in table.items() if _is_meta(tensor)})
        batch = pytree.tree_map(lambda leaf: fake(leaf) if _is_meta(leaf) else leaf, batch)
    return model, batch


def _is_meta(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_meta


def _mode(tensors: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """The fake mode that some tensor was made in, or a new one."""
    fakes = (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
    return next(fakes, None) or FakeTensorMode(allow_non_fake_inputs=True)
