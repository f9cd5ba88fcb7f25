"""Validates arguments of this package's functions: paths, flags, tables, and what the compiled module takes.

Invariant: an argument of the wrong type is refused by an `OptionError` that names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from . import _native
from .errors import OptionError, TightfitError

# Sizes are smaller than this, as in the program.
_MOST_BYTES = 2**60


def asked(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Calls a function of the compiled module and returns its result."""
    try:
        return function(*given, **options)
    except OptionError as error:
        raise OptionError(_of_option(error)) from None
    except TightfitError:
        raise
    except (TypeError, ValueError) as error:
        raise OptionError(_of_option(error)) from None


def _of_option(error: Exception) -> str:
    """An error's message, preceded by the name of the option if PyO3 recorded it."""
    notes = (re.fullmatch(r"while processing '(\w+)'", note) for note in getattr(error, "__notes__", ()))
    name = next((f"{found[1]}: " for found in notes if found), "")
    return f"{name}{error}"


def path(given: Any, name: str) -> Path:
    """The path of a file or a folder."""
    if not isinstance(given, (str, os.PathLike)):
        raise OptionError(f"{name} is {_kind(given)} and no path; give text or a pathlib.Path")
    return Path(given)


def flag(given: Any, name: str) -> bool:
    """`True` or `False`."""
    if not isinstance(given, bool):
        raise OptionError(f"{name}={given!r} is neither True nor False")
    return given


def text(given: Any, name: str) -> str:
    """A piece of text that can be written down."""
    if not isinstance(given, str):
        raise OptionError(f"{name} is {_kind(given)}; give text")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{name}={given!r} cannot be written down: {error.reason}; give other text") from None
    return given


def whole(given: Any, name: str, *, least: int) -> int:
    """A whole number."""
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise OptionError(f"{name}={given!r} is no whole number from {least} on")
    return given


def size(given: Any, name: str, *, or_else: str = "") -> int:
    """A number of bytes, from an `int` or text with a unit."""
    advice = (f"{name}={given!r} is no number of bytes from 0 to 2**60; write an int, or text such as \"6GiB\" or "
              f"\"2.5GB\"{or_else}")
    if isinstance(given, Integral) and not isinstance(given, bool) and 0 <= given < _MOST_BYTES:
        # NumPy's integers, too.
        return int(given)
    if not isinstance(given, str):
        raise OptionError(advice)
    try:
        return _native.size(given)
    except OptionError:
        raise OptionError(advice) from None


def table(given: Any, name: str) -> Mapping[str, Any]:
    """A mapping from names to values; `None` is an empty one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"{name} is {_kind(given)}; give a dict")
    return given


def names(given: Any) -> list[str] | None:
    """Names of modules; a single string is refused, not read as a list of letters."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"modules are given as a list of names, not as one {type(given).__name__}")
    return list(given)


def _kind(given: Any) -> str:
    return "nothing" if given is None else f"of type {type(given).__name__}"
