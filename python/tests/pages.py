"""Pages of the documentation, run as a reader would run them.

Invariant: nothing on a page is skipped. A fenced block is `sh`, `python` or `text`, or fails. A line of `sh` calls the
program, which `TIGHTFIT_BIN` names, or Python; it succeeds and prints something. A block of Python that begins with
`# name.py` is that file. `text` is what the previous block printed, except for numbers and quoted names.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """Every fenced block with its language, in the page's order."""
    found, language, lines = [], None, []
    for line in text(page).splitlines():
        if line.startswith("```") and language is None:
            language, lines = line.removeprefix("```"), []
        elif line.startswith("```"):
            found.append((language, "\n".join(lines)))
            language = None
        else:
            lines.append(line)
    assert language is None, "the last block has no end"
    return found


def run(page: str, folder: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Runs all blocks one after the other, in a folder where `corpus` is the project's; Python shares `names`."""
    return run_blocks(blocks(page), page, folder, names)


def run_blocks(chosen: list[tuple[str, str]], page: str, folder: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Runs these blocks of a page."""
    (folder / "corpus").mkdir()
    for part in (ROOT / "corpus").iterdir():
        (folder / "corpus" / part.name).symlink_to(part)
    # A step does not read data through a link.
    (folder / "corpus" / "data").unlink()
    shutil.copytree(ROOT / "corpus" / "data", folder / "corpus" / "data")
    with contextlib.chdir(folder):
        said = ""
        for number, (language, code) in enumerate(chosen):
            assert language in ("sh", "python", "text"), f"block {number} is of language {language!r}, which nothing runs"
            if language == "text":
                assert _shape(code) == _shape(said), f"{page}, block {number}: not this was printed, but\n{said}"
            elif language == "sh":
                said = "".join(map(_command, code.splitlines()))
            elif file := re.match(r"# (\w+\.py)\n", code):
                Path(file[1]).write_text(code, encoding="utf-8")
            else:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(code, f"{page}, block {number}", "exec"), names)
                said = out.getvalue()
    return names


def _shape(text: str) -> str:
    """A text without its numbers, quoted names and line breaks."""
    return " ".join(re.sub(r"\d[\d.,]*\d|\d", "0", re.sub(r"'[\w.]+'", "'…'", text)).split())


def _command(line: str) -> str:
    """Runs a line and returns what it printed."""
    words = shlex.split(line)
    environment = dict(os.environ)
    while "=" in words[0]:
        name, _, environment[name] = words.pop(0).partition("=")
    target = words[words.index(">") + 1] if ">" in words else None
    words = words[: words.index(">")] if ">" in words else words
    done = subprocess.run([*_program(words[0]), *words[1:]], capture_output=True, text=True, timeout=300, check=False,
                          env=environment)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    written = Path(words[words.index("-o") + 1]).stat().st_size if "-o" in words else len(done.stdout)
    assert written, line
    if target:
        Path(target).write_text(done.stdout, encoding="utf-8")
    return done.stdout


def _program(name: str) -> list[str]:
    if name == "tightfit":
        return [os.environ["TIGHTFIT_BIN"]]
    return {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}[name]
