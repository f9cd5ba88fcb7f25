"""Finds the `tightfit` program and runs it.

Invariant: what the program refuses is an error with the program's own message; nothing is searched beyond the
environment's `TIGHTFIT_BIN` and `PATH`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

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


def run(*arguments: str | os.PathLike[str]) -> Any:
    """The JSON that the program prints, given these arguments. Raises `ProgramError` where it refuses them."""
    command = [find(), *map(os.fspath, arguments)]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        raise ProgramError(f"cannot run {command[0]}: {error.strerror}; check that it was built for this computer") from error
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
    """The error for a program that ends well and prints something else."""
    return ProgramError(f"`{find()} {verb}` printed something else than this package expects; are both of one version?")
