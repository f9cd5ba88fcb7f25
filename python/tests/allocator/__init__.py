"""Exact bytes that PyTorch's allocator on the processor has handed out: now, and at most since the last reset.

Invariant: `install` replaces the allocator once for the whole process, before any tensor exists: earlier allocations
are never counted. Measuring is therefore done in a separate process (`measured.py`). The library is compiled on first
use into the user's cache folder, under a name derived from its source, the compiler and PyTorch's version.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("counting.cpp")
PLACING = SOURCE.with_name("placing.cpp")
_library: ctypes.CDLL | None = None


class Unavailable(RuntimeError):
    """The library cannot be made here; the message says why."""


def compiler() -> str | None:
    """The C++ compiler: `CXX`, or the system's."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def unavailable() -> str | None:
    """Why bytes cannot be counted here, as the reason for skipping tests; `None` if they can."""
    if sys.platform not in ("linux", "darwin"):
        return f"bytes of PyTorch's allocator are counted on Linux and macOS, not on {sys.platform}"
    if compiler() is None:
        return "bytes of PyTorch's allocator are counted by a library in C++, and no C++ compiler was found (set CXX)"
    return None


def build(source: Path = SOURCE) -> Path:
    """The compiled library, made if it is not in the cache."""
    if reason := unavailable():
        raise Unavailable(reason)
    package = Path(torch.__file__).parent
    command = [compiler(), "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{package / 'include'}"]
    command += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    link = [f"-L{package / 'lib'}", "-lc10", f"-Wl,-rpath,{package / 'lib'}"]
    key = hashlib.sha256("\0".join([*command, *link, torch.__version__]).encode() + source.read_bytes()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tightfit" / "allocator"
    library = folder / f"{key[:32]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at once: each into its own file, which gets the final name when it is complete.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / library.name
        command += [str(source), "-o", str(made), *link]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"{command[0]} could not compile {source.name}:\n{done.stderr.strip()[-2000:]}")
        os.replace(made, library)
    return library


def place(alloc: int, free: int) -> ctypes.CDLL:
    """Puts the functions at these addresses in place of c10's allocator. The library's `tightfit_overlaps` counts the
    blocks that they handed out where another one lay, and `tightfit_live` the bytes handed out."""
    library = ctypes.CDLL(str(build(PLACING)))
    library.tightfit_place.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for name in ("live", "overlaps"):
        getattr(library, f"tightfit_{name}").restype = ctypes.c_int64
    library.tightfit_place(alloc, free)
    return library


def install() -> None:
    """Puts the counting allocator in place of c10's, right after `import torch`. Called again, it does nothing."""
    global _library
    if _library is None:
        library = ctypes.CDLL(str(build()))
        for name in ("current", "peak", "served"):
            getattr(library, f"tightfit_{name}").restype = ctypes.c_int64
        library.tightfit_install()
        _library = library


def _installed() -> ctypes.CDLL:
    if _library is None:
        raise Unavailable("call install() first, before any tensor exists")
    return _library


def current() -> int:
    """Bytes handed out and not yet freed."""
    return _installed().tightfit_current()


def peak() -> int:
    """The most bytes at once since `reset_peak`."""
    return _installed().tightfit_peak()


def served() -> int:
    """Blocks handed out since `install`."""
    return _installed().tightfit_served()


def reset_peak() -> None:
    """Resets the peak to what is handed out now."""
    _installed().tightfit_reset_peak()
