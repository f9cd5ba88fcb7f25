"""Writes the exporter's files: all of them, or none.

Invariant: every file is complete under a temporary name before the first one is renamed into place, so a failure
leaves what was there before; bytes depend on the content only, and permissions on the file that was there, or else on
the user's mask. A link stays a link.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from .errors import ExportError

# The content of a file: its bytes, or a function that writes them to a given (temporary) path.
Content = bytes | Callable[[Path], None]


def write_all(files: Mapping[Path, Content], stale: tuple[Path, ...] = ()) -> None:
    """Writes each file through a temporary name in its own folder, then removes the `stale` ones."""
    pending: list[tuple[Path, Path]] = []
    try:
        for path, content in files.items():
            path = Path(os.path.realpath(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
            pending.append((temporary, path))
            # Created here, so that the user's umask applies.
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            if path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            if isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                content(temporary)
        for temporary, path in pending:
            os.replace(temporary, path)
        for path in stale:
            path.unlink(missing_ok=True)
    except OSError as error:
        where, why = error.filename or "the files", error.strerror or error
        raise ExportError(f"cannot write {where}: {why}; choose a folder that can be written") from error
    finally:
        for temporary, _ in pending:
            temporary.unlink(missing_ok=True)
