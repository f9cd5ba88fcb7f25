"""Pages of the documentation, run as a reader would run them.

Invariant: nothing on a page is skipped. A fenced block is `sh` or `python` or fails; a line of `sh` calls the program,
whose name `TIGHTFIT_BIN` says, and ends well with something to show for it.
"""

import contextlib
import os
import shlex
import subprocess
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
    (folder / "corpus").symlink_to(ROOT / "corpus")
    with contextlib.chdir(folder):
        for number, (language, code) in enumerate(blocks(page)):
            assert language in ("sh", "python"), f"block {number} is of language {language!r}, which nothing runs"
            if language == "python":
                exec(compile(code, f"{page}, block {number}", "exec"), names)
                continue
            for line in code.splitlines():
                _command(line)
    return names


def _command(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "tightfit", line
    target = words[words.index(">") + 1] if ">" in words else None
    words = words[1 : words.index(">")] if ">" in words else words[1:]
    done = subprocess.run([os.environ["TIGHTFIT_BIN"], *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    written = Path(words[words.index("-o") + 1]).stat().st_size if "-o" in words else len(done.stdout)
    assert written, line
    if target:
        Path(target).write_text(done.stdout, encoding="utf-8")
