"""Files that somebody else may have written: graphs, and the text of a `step.json`.

Invariant: what is read of one takes no more memory than files of its kind do, whatever it unpacks to or nests.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

from . import _native

# Bytes of a graph's text, and what becomes objects of Python out of it, at most: each of the parts takes some 70 bytes. Of
# the graphs known the largest has 13 MB and 1.3 million parts. What verifies a graph passes over names that it does not
# know, however much stands there.
_MOST_TEXT = 256 << 20
_MOST_PARTS = 8 << 20
# Bytes of a `step.json`, as the program reads it.
_MOST_STEP = 32 << 20


def graph(path: Path) -> Any:
    """What a graph file holds, compressed or not.

    It becomes objects of Python once it was verified. Raises `OSError`, and `GraphFileError` where it is no graph.
    """
    content = _whole(path, _MOST_TEXT)
    _native.read_graph(content)
    text = _unpacked(content, _MOST_TEXT)
    if sum(map(text.count, (b",", b"[", b"{"))) > _MOST_PARTS:
        raise ValueError(f"it has more than {_MOST_PARTS:,} parts, the most that are read")
    return json.loads(text)


def step(path: Path) -> Any:
    """What a `step.json` holds. Raises `OSError`, and `ValueError` or `RecursionError` where that is no JSON."""
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
