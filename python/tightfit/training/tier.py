"""A tier below the device: memory outside of PyTorch's allocator, in which tensors lie while they are not needed.

Invariant: a slot belongs to one tensor from when it is taken until its holder frees it and no transfer uses it; only
after that is its memory given to another. All slots together are within the tier's size, and each has all of its memory
before anything is copied into it.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import re
import tempfile
import time
import weakref
from collections import deque
from typing import Any

import torch

from .. import cache
from ..devices import Lanes, kind_of
from ..errors import OffloadError
from ..graph import producer

# Number of repetitions of a copy that measures the lanes.
_TIMES = 3


class _Returned(deque[torch.Tensor]):
    """The memory of freed slots, until it is counted; nothing is kept for a tier that is closed."""

    is_closed = False


class Slot:
    """A place in a tier: `bytes` is a flat tensor over it."""

    __slots__ = ("_returned", "bytes")

    def __init__(self, memory: torch.Tensor, returned: _Returned) -> None:
        self._returned = returned
        self.bytes = memory

    def __del__(self) -> None:
        # May run on any thread.
        if not self._returned.is_closed:
            self._returned.append(self.bytes)


class Tier:
    """The tier of one model below one device: unnamed files on processors, the host's pinned memory on others."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device
        self.kind = kind_of(device)
        self.lanes: Lanes = self.kind.lanes()
        # Bytes of slots in use, and of all slots.
        self.used = self.held = 0
        self._free: dict[int, list[torch.Tensor]] = {}
        self._returned = _Returned()
        self._rates: tuple[float, float, float] | None = None

    def take(self, size: int) -> Slot:
        """A slot of this many bytes. Raises `OffloadError` if there is no room."""
        self._count()
        free = self._free.get(size)
        if free:
            memory = free.pop()
        else:
            memory = self._made(size)
            self.held += size
        self.used += size
        return Slot(memory, self._returned)

    def room(self, size: int, name: str) -> None:
        """Raises `OffloadError` if this many more bytes do not fit."""
        self._count()
        if self.used + size > self.size:
            raise OffloadError(
                f"a step of {name} moves {size:,} bytes to the tier, where {self.used:,} of {self.size:,} are taken by forward "
                "passes whose backward pass has not come. Nothing was computed. Run each backward pass right after its "
                f"forward pass, or give offload={self.used + size} or more"
            )

    def close(self) -> None:
        """No further slots are taken: returns memory to the system, that of slots in use when they are freed."""
        self._returned.is_closed = True
        self._returned.clear()
        self._free.clear()

    @property
    def rates(self) -> tuple[float, float, float]:
        """Bytes per second there and back, and the latency of a transfer in seconds: measured once on a computer, and
        kept in a file."""
        if self._rates is None:
            where = self.kind.folder() or self.kind.name
            name = "costs/tier-" + re.sub(r"[^\w.]+", "-", f"{producer()} {where}") + ".json"
            found = _kept(name)
            if found is None:
                found = self._measured()
                cache.keep(name, json.dumps(found))
            self._rates = found
        return self._rates

    def _count(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            self.used -= memory.numel()
            self._free.setdefault(memory.numel(), []).append(memory)

    def _memory(self, size: int) -> torch.Tensor:
        return self.lanes.prepared(_mapped(size, self.kind.folder()))

    def _made(self, size: int) -> torch.Tensor:
        if self.held + size > self.size:
            # Free slots have other sizes.
            for memories in self._free.values():
                while memories and self.held + size > self.size:
                    self.held -= memories.pop().numel()
        if self.held + size > self.size:
            raise OffloadError(f"{size:,} bytes are to be moved to the tier, where {self.used:,} of {self.size:,} are in use. The "
                               f"step was stopped; give offload={self.used + size} or more")
        return self._memory(size)

    def _measured(self) -> tuple[float, float, float]:
        most = self.kind.bytes_of_probe
        slot = Slot(self._memory(most), _Returned())
        there, few = (self.kind.probe(size) for size in (most, 1))
        seconds = {}
        for name, copy in (("out", self.lanes.out), ("back", self.lanes.back)):
            for storage in (there, few):
                taken = []
                for _ in range(_TIMES + 1):  # one extra run, which touches the memory for the first time
                    began = time.perf_counter()
                    copy(slot, storage).finish()
                    taken.append(time.perf_counter() - began)
                seconds[name, storage is few] = min(taken[1:])
        latency = max(seconds["out", True], seconds["back", True])
        out, back = (most / max(seconds[name, False] - seconds[name, True], 1e-6) for name in ("out", "back"))
        return out, back, latency


def _kept(name: str) -> tuple[float, float, float] | None:
    try:
        out, back, latency = map(float, json.loads(cache.read(name) or "null"))
    except (ValueError, TypeError):
        return None
    return (out, back, latency) if all(map(math.isfinite, (out, back, latency))) else None


def _shared(file: int, size: int) -> torch.Tensor:
    """The bytes of an open file, valid even after it is closed: `mmap.mmap` would keep it open, and the limit is
    low."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, library.munmap, address, size).atexit = False
    return torch.frombuffer(memory, dtype=torch.uint8)


def _mapped(size: int, folder: str | None) -> torch.Tensor:
    """Memory of the system: an unnamed file in a folder, all of whose bytes are allocated, or none."""
    try:
        if folder is None:
            return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        with tempfile.TemporaryFile(dir=folder) as file:
            allocate: Any = getattr(os, "posix_fallocate", lambda descriptor, _, size: os.truncate(descriptor, size))
            allocate(file.fileno(), 0, size)
            return _shared(file.fileno(), size)
    except OSError as error:
        where = "the host's memory" if folder is None else f"the folder {folder!r}"
        advice = "" if folder is None else "; set TMPDIR to a folder with room, before Python starts"
        raise OffloadError(f"{where} has no room for a tier: {size:,} bytes were refused ({error.strerror or error}). The step was "
                           f"stopped{advice}") from None
