"""Writes the exporter's files: all of them, or none.

Invariant: every file is complete under a temporary name before the first one is renamed into place, so a failure
leaves what was there before; bytes depend on the content only.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import ExportError


def write_all(files: dict[Path, bytes], stale: tuple[Path, ...] = ()) -> None:
    """Writes each file through a temporary name in its own folder, then removes the `stale` ones."""
    pending: list[tuple[str, Path]] = []
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            pending.append((temporary, path))
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.chmod(temporary, 0o644)
        for temporary, path in pending:
            os.replace(temporary, path)
        for path in stale:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write {error.filename}: {error.strerror}; choose a folder that can be written") from error
    finally:
        for temporary, _ in pending:
            Path(temporary).unlink(missing_ok=True)
