"""Lines about work that makes a program wait, through the logger `tightfit`.

Invariant: what ends within `PATIENCE` seconds is told at level `DEBUG`, other work at `INFO`. Where logging is set up, its
levels and handlers decide what is shown; elsewhere, lines from the level of the logger, or `INFO`, go to standard error.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator

LOGGER = logging.getLogger("tightfit")
# Seconds after which a line says what goes on.
PATIENCE = 2.0


@contextlib.contextmanager
def noticed(what: str) -> Iterator[None]:
    """The context of work that is called `what`: a line says so while it goes on, and one when it has ended."""
    began = time.perf_counter()
    timer = threading.Timer(PATIENCE, _tell, [logging.INFO, f"{what} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    seconds = time.perf_counter() - began
    _tell(logging.INFO if seconds > PATIENCE else logging.DEBUG, f"{what} took {seconds:.1f} s")


def _tell(level: int, line: str) -> None:
    if LOGGER.hasHandlers():
        LOGGER.log(level, line)
    elif level >= (LOGGER.level or logging.INFO):
        print(f"tightfit: {line}", file=sys.stderr, flush=True)
