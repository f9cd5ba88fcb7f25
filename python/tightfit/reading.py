"""Reads files that may come from untrusted sources: graphs, and the text of a `step.json`.

Invariant: reading a file takes no more memory than valid files of its kind do, whatever it unpacks to or nests.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

from . import _native

# Most bytes of a graph's text, and most parts of it that become Python objects: each part takes some 70 bytes. The
# largest known graph has 13 MB and 1.3 million parts. The verifier skips unknown names, however much data they have.
_MOST_TEXT = 256 << 20
_MOST_PARTS = 8 << 20
# Most bytes of a `step.json`, as in the program.
_MOST_STEP = 32 << 20


def graph(path: Path) -> Any:
    """The content of a graph file, compressed or not.

    It is verified before it is parsed into Python objects. Raises `OSError`, and `GraphFileError` if it is no graph.
    """
    content = _whole(path, _MOST_TEXT)
    _native.read_graph(content)
    text = _unpacked(content, _MOST_TEXT)
    if sum(map(text.count, (b",", b"[", b"{"))) > _MOST_PARTS:
        raise ValueError(f"it has more than {_MOST_PARTS:,} parts, the most that are read")
    return json.loads(text)


def step(path: Path) -> Any:
    """The content of a `step.json`. Raises `OSError`, and `ValueError` or `RecursionError` if it is not JSON."""
    return json.loads(_whole(path, _MOST_STEP).decode("utf-8"))


def _whole(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        return _at_most(file, most)


def _unpacked(content: bytes, most: int) -> bytes:
    if content[:2] != b"\x1f\x8b":
        return content
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return _at_most(file, most)


def _at_most(file: Any, most: int) -> bytes:
    content: bytes = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes, the most that are read")
    return content
