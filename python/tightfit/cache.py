"""Files that save later starts time: measurements and plans.

Invariant: a file is used only if it is exactly what was written under its name; a folder that cannot be read or written
costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import torch

from .artifacts import write_all
from .devices import kind_of
from .errors import ExportError
from .graph import producer


def folder() -> Path | None:
    """The user's folder for such files, if the environment determines one."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "tightfit"
    try:
        return Path.home() / ".cache" / "tightfit"
    except RuntimeError:
        return None


def of_device(kind: str, device: torch.device) -> str:
    """The name of a file for one kind of what was found out about operators: of this PyTorch, on a device, with as many
    threads as now."""
    return f"{kind}-" + re.sub(r"[^\w.]+", "-", f"{producer()} {kind_of(device).name}") + ".json"


def read(name: str) -> str | None:
    """What was kept under a name such as `plans/….json`, if anything was."""
    where = folder()
    if where is None or not (where / name).is_file():
        return None
    try:
        digest, _, text = (where / name).read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    return text if digest == _digest(name, text) else None


def _digest(name: str, text: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


def keep(name: str, text: str, *, most: int | None = None) -> None:
    """Keeps text under a name; of the files next to it, the least recently used are deleted until `most` are left."""
    where = folder()
    if where is None:
        return
    path = where / name
    try:
        write_all({path: f"{_digest(name, text)}\n{text}".encode()})
        if most is not None:
            beside = sorted(path.parent.glob(f"*{path.suffix}"), key=lambda file: file.stat().st_mtime)
            for old in beside[:-most]:
                old.unlink(missing_ok=True)
    except (ExportError, OSError):
        pass
