"""Files that spare a later start some time: what was measured, and what was planned.

Invariant: a file is whole or not there; a folder that cannot be read or written costs time and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

from .artifacts import write_all
from .errors import ExportError


def folder() -> Path | None:
    """The user's folder for such files, where the environment says enough to know it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "tightfit"
    try:
        return Path.home() / ".cache" / "tightfit"
    except RuntimeError:
        return None


def read(name: str) -> str | None:
    """What was kept under a name such as `plans/….json`, if anything was."""
    where = folder()
    try:
        return None if where is None else (where / name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def keep(name: str, text: str, *, most: int | None = None) -> None:
    """Keeps text under a name; of the files beside it, those that were used longest ago go, until `most` are left."""
    where = folder()
    if where is None:
        return
    path = where / name
    try:
        write_all({path: text.encode()})
        if most is not None:
            beside = sorted(path.parent.glob(f"*{path.suffix}"), key=lambda file: file.stat().st_mtime)
            for old in beside[:-most]:
                old.unlink(missing_ok=True)
    except (ExportError, OSError):
        pass
