"""Writes tensors to a safetensors file, directly from their memory.

Invariant: a tensor that is contiguous on the processor, with memory of its own, is written without a copy of it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file


def writing(tensors: Mapping[str, torch.Tensor]) -> Callable[[Path], None]:
    """A function that writes these tensors to a given path."""

    def write(path: Path) -> None:
        try:
            save_file(_apart(tensors), path)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error

    return write


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as the format needs them: on the processor, contiguous, none sharing memory with another."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        found = tensor.to("cpu").contiguous()
        storage = found.untyped_storage()
        is_whole = storage.nbytes() == found.numel() * found.element_size()
        if not is_whole or storage.data_ptr() in seen:
            found = found.clone()
        seen.add(found.untyped_storage().data_ptr())
        apart[name] = found
    return apart
