"""Fresh processes, without the seconds that imports take: each is forked from one that has imported PyTorch, the
libraries whose models are tested, and the package, has called PyTorch's elementwise functions once, and has done
nothing else.

Invariant: a process starts with the given arguments, folder, environment and streams, as if an interpreter had been
started with them, and no tensor that counts exists in it. What libraries read from the environment on import is as it
was at the first call.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.reduction
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Modules that are not installed are skipped. `pytest` is what the forked process would import to find its main module.
IMPORTED = [
    "pytest", "torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch._functorch.partitioners",
    "torch._inductor.debug", "torch._inductor.sizevars", "torch.distributed.tensor",
    "torch.distributed.tensor.experimental._func_map", "torch.export._trace", "torchvision.models",
    "transformers.models.gpt2.modeling_gpt2", "transformers.models.bert.modeling_bert", "tightfit",
    "tightfit.training.compiling", "vector_math", "frozen",
]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(IMPORTED)
# CUDA does not work in a forked process if an import did even as little as count the devices.
_apart = multiprocessing.get_context("spawn")
# Whenever a process starts, `multiprocessing` reads the exit codes of all others that have ended. If another thread reads
# one of them at the same time, the later of both gets 255.
_ONE_AT_A_TIME = threading.Lock()


class Fresh:
    """A process that does what `python WORDS…` would: a script with arguments, or `-c` and a program.

    Its standard input and output are pipes, as text; its standard error is kept in a file. A process that is not forked
    imports everything itself.
    """

    def __init__(self, *words: str, folder: Path = HERE, environment: dict[str, str] | None = None,
                 is_forked: bool = True) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        streams = [_Descriptor(number) for number in (theirs_in, theirs_out, self.errors.fileno())]
        wanted = dict(os.environ) if environment is None else environment
        self.process = (_context if is_forked else _apart).Process(target=_become, args=(words, str(folder), wanted, streams))
        with _ONE_AT_A_TIME:
            if is_forked:
                _serve()
            self.process.start()
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin, self.stdout = os.fdopen(ours_in, "w"), os.fdopen(ours_out)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal.

        Raises:
            TimeoutError: If it does not end in time.
        """
        if not multiprocessing.connection.wait([self.process.sentinel], timeout):
            raise TimeoutError(f"a process did not end within {timeout} s")
        with _ONE_AT_A_TIME:
            self.process.join()
            return self.process.exitcode

    def finish(self, timeout: float | None = None) -> tuple[int, str]:
        """Its exit code, and its output from now on.

        Raises:
            TimeoutError: If it does not end in time; it is killed then.
        """
        self.stdin.close()
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            printed = reader.submit(self.stdout.read)
            try:
                return self.wait(timeout), printed.result()
            except TimeoutError:
                self._end()
                raise

    def said(self) -> str:
        """Its standard error so far."""
        self.errors.seek(0)
        return self.errors.read()

    def close(self) -> None:
        """Ends its input, and waits for its end."""
        self.stdin.close()
        self.wait()
        self.stdout.close()
        self.errors.close()

    def kill(self) -> None:
        """Ends it at once."""
        self._end()
        self.close()

    def _end(self) -> None:
        """Kills it and its children, which would keep its output open."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no process group yet
            self.process.kill()


def run(*words: str, timeout: float | None = 1800, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a fresh process to its end, as `subprocess.run` with `capture_output` does."""
    process = Fresh(*words, **options)
    code, printed = process.finish(timeout)
    done = subprocess.CompletedProcess(list(words), code, printed, process.said())
    process.close()
    return done


@functools.cache
def _serve() -> None:
    """Starts the process that others are forked from. Python 3.11 does not give it this process's `sys.path`, and it
    skips modules that it does not find."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [before])])
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


class _Descriptor:
    """A file descriptor that is duplicated into the process that gets it as an argument."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (multiprocessing.reduction.DupFd(self.number),)


def _received(handed: Any) -> int:
    return handed.detach()


def _become(words: tuple[str, ...], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    """In the forked process: does what an interpreter does when it starts, in a process group of its own."""
    os.setpgrp()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(words)
    if words[0] == "-c":
        sys.path[0:0] = [""]
        exec(compile(words[1], "-c", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(words[0], run_name="__main__")
    sys.stdout.flush()
