"""Finds the `tightfit` program and runs it.

Invariant: what the program refuses is an error with the program's own message; nothing is searched beyond the
environment's `TIGHTFIT_BIN` and `PATH`.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from .errors import ProgramError


def find() -> str:
    """The path of the program: what `TIGHTFIT_BIN` names where that is set, else `tightfit` on the `PATH`."""
    named = os.environ.get("TIGHTFIT_BIN")
    found = shutil.which(named or "tightfit")
    if found is None:
        where = f"TIGHTFIT_BIN={named!r} is no program" if named else "there is no `tightfit` on the PATH"
        raise ProgramError(
            f"{where}; build it with `cargo build --release` in the project's folder, and put target/release on the "
            "PATH or set TIGHTFIT_BIN to target/release/tightfit"
        )
    return found


def run(*arguments: str | os.PathLike[str]) -> str:
    """What the program prints, given these arguments. Raises `ProgramError` where it refuses them."""
    command = [find(), *map(os.fspath, arguments)]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError as error:
        raise ProgramError(f"cannot run {command[0]}: {error.strerror}; check that it was built for this computer") from error
    if ran.returncode != 0:
        raise ProgramError(f"`tightfit {arguments[0]}` ended with code {ran.returncode}: {ran.stderr.strip()}")
    return ran.stdout
