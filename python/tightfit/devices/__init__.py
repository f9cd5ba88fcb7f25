"""The kinds of device that steps run on, and one interface to all of them.

Invariant: other modules reach a device's allocator, streams, clock and generator through `Device` alone. What is the same
on every accelerator is written for PyTorch's common interface; what is CUDA's alone is in `cuda.py`, and another kind
needs no more than a file like it.
"""

from __future__ import annotations

import functools

import torch

from .accelerator import Accelerator
from .cuda import Cuda
from .device import Device, Memory, Statistics
from .lanes import Lanes, Transfer
from .processor import Counted, Processor

__all__ = ["Counted", "Device", "Lanes", "Memory", "Statistics", "Transfer", "current", "kind_of"]

# Kinds that have no runtime: tensors on them have no memory, or it is the processor's.
_WITHOUT_RUNTIME = ("cpu", "meta")


@functools.cache
def kind_of(device: torch.device) -> Device:
    """What there is to know about a device, which need not be present."""
    if device.type in _WITHOUT_RUNTIME:
        return Processor(device)
    return Cuda(device) if device.type == "cuda" else Accelerator(device)


def current() -> Device | None:
    """The accelerator that is current, if there is any."""
    if not torch.accelerator.is_available():
        return None
    kind = torch.accelerator.current_accelerator()
    return None if kind is None else kind_of(torch.device(kind.type, torch.accelerator.current_device_index()))
