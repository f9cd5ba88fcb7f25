"""The `tightfit` program: finds it, runs it from Python, and is the command that this package installs.

Invariant: what the program refuses is an error with the program's own message. `TIGHTFIT_BIN` names the program if it
is set; otherwise it is the one inside this package; nothing else is searched.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

from .errors import ProgramError


def find() -> list[str]:
    """The words that start the program: what `TIGHTFIT_BIN` names if that is set, else this package's own."""
    named = os.environ.get("TIGHTFIT_BIN")
    if not named:
        return own()
    found = shutil.which(named)
    if found is None:
        raise ProgramError(f"TIGHTFIT_BIN={named!r} is no program; unset it to run the one inside this package")
    return [found]


def main() -> int:
    """The command `tightfit`: does what the process's arguments say, and returns the exit code."""
    from . import _native  # the rest of this file does not need it

    # The default action, as for other programs: Python would handle Ctrl-C only after the program's end.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _native.starts_by(own())
    return _native.run(["tightfit", *sys.argv[1:]])


def own() -> list[str]:
    """The words that start the program inside this package."""
    return [sys.executable or "python3", "-m", "tightfit"]


def run(*arguments: str | os.PathLike[str]) -> Any:
    """The JSON that the program prints, given these arguments. Raises `ProgramError` if it refuses them."""
    command = [*find(), *map(os.fspath, arguments)]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        raise ProgramError(f"cannot run {command[0]}: {error.strerror}; check that it was built for this computer") from error
    except ValueError as error:
        raise ProgramError(f"what the program is given cannot be written as its arguments: {error}") from error
    said = ran.stderr.decode("utf-8", "replace").strip()
    if ran.returncode < 0:
        raise ProgramError(f"`tightfit {arguments[0]}` was ended by signal {-ran.returncode}; {said or 'is memory short?'}")
    if ran.returncode != 0:
        raise ProgramError(f"`tightfit {arguments[0]}` ended with code {ran.returncode}: {said}")
    try:
        return json.loads(ran.stdout)
    except ValueError as error:
        raise foreign(arguments[0]) from error


def foreign(verb: str | os.PathLike[str]) -> ProgramError:
    """The error for a program that exits successfully but does not print the expected output."""
    return ProgramError(f"`{' '.join(find())} {verb}` printed something else than this package expects; are both of one version?")
