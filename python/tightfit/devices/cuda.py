"""What is CUDA's alone: the blocks of its caching allocator, the workspaces of its libraries, how it pins memory, and
that its allocator can be replaced.

Invariant: nothing here starts CUDA before something is run on it.
"""

from __future__ import annotations

import functools
import os
import re
import weakref
from collections.abc import Callable

import torch

from ..errors import OffloadError
from .accelerator import Accelerator
from .device import Statistics
from .lanes import Lanes, StreamLanes

# Bytes to whose multiples the caching allocator rounds sizes up.
_BLOCK = 512
# Bytes of the largest default workspaces of cuBLAS and cuBLASLt, used if PyTorch does not report them.
_CUBLAS, _CUBLASLT = 32 << 20, 1 << 20

# The figures of the allocator that replaces PyTorch's, by device.
_replaced: Callable[[torch.device], Statistics] | None = None


def is_available() -> bool:
    """Whether a device is there."""
    return torch.cuda.is_available()


def is_started() -> bool:
    """Whether anything was run on a device."""
    return torch.cuda.is_initialized()


def is_replaced() -> bool:
    """Whether PyTorch's allocator was replaced."""
    return _replaced is not None


def replace_allocator(library: str, allocate: str, free: str, figures: Callable[[torch.device], Statistics]) -> None:
    """Makes two functions of a shared library CUDA's allocator, for the whole process; `figures` are theirs. Raises
    `RuntimeError` if it is too late."""
    global _replaced
    made = torch.cuda.memory.CUDAPluggableAllocator(library, allocate, free)
    torch.cuda.memory.change_current_allocator(made)
    _replaced = figures


class Cuda(Accelerator):
    """A device of CUDA."""

    @property
    def statistics(self) -> Statistics | None:
        """A replaced allocator counts only what is measured for it."""
        return None if is_replaced() else super().statistics

    def block(self, size: int) -> int:
        return -(-size // _BLOCK) * _BLOCK

    def libraries(self) -> int:
        """Each thread that calls cuBLAS has one workspace for it and one for cuBLASLt. Sizes are those of
        aten/src/ATen/cuda/CublasHandlePool.cpp."""
        return 2 * (self._cublas() + self._cublaslt())

    @property
    def stream(self) -> int:
        return torch.cuda.current_stream(self.device).cuda_stream

    def lanes(self) -> Lanes:
        return _lanes(self.device)

    def _figures(self) -> Statistics:
        return super()._figures() if _replaced is None else _replaced(self.device)

    def _cublas(self) -> int:
        """Bytes of a workspace of cuBLAS: from pairs of KiB and count, as in `:4096:8`, or the largest default."""
        size = getattr(torch._C, "_cuda_getCublasWorkspaceSize", None)
        if size is not None and is_available():  # a model of fake tensors is planned without a device
            with self.current():
                return size()
        pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
        return sum(int(size) * int(count) << 10 for size, count in pairs) if pairs else _CUBLAS

    def _cublaslt(self) -> int:
        """Bytes of a workspace of cuBLASLt. By default, releases differ in whether it is part of cuBLAS's workspace, so its
        default size always counts."""
        told = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
        given = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
        size = getattr(torch._C, "_cuda_getCublasLtWorkspaceSize", None)
        if told == "1":
            return 0
        if told == "0" and size is not None and is_available():
            with self.current():
                return size()
        return int(given) << 10 if given.isdecimal() else _CUBLASLT


class PinningLanes(StreamLanes):
    """Lanes to memory of the host that is pinned where it is: PyTorch's allocator of pinned memory rounds sizes up to
    powers of two."""

    def prepared(self, memory: torch.Tensor) -> torch.Tensor:
        """Pins the memory as long as it exists."""
        library, address = torch.cuda.cudart(), memory.data_ptr()
        failed = library.cudaHostRegister(address, memory.numel(), 0)
        if int(failed):
            raise OffloadError(f"CUDA does not pin {memory.numel():,} bytes of the host's memory (error {int(failed)}). The step was "
                               "stopped; give a smaller offload=, or a larger limit of locked memory")
        weakref.finalize(memory, library.cudaHostUnregister, address).atexit = False
        return memory


@functools.cache
def _lanes(device: torch.device) -> Lanes:
    return PinningLanes(device)
