"""`doc/originals.md`: its commands and its Python run, and the names that it mentions here and in PyTorch exist.

Invariant: nothing on the page is skipped. Every fenced block runs; a term in a column *here* is a command, a field, a
name of Python or Rust, or a page, or fails; every public name of PyTorch's tools is on the page.

Tier: quick, since it takes 12 s.
"""

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
from pathlib import Path

import pages
import pytest

import tightfit
import tightfit.distributed

ROOT = Path(__file__).resolve().parents[2]
PAGE = "doc/originals.md"
TEXT = pages.text(PAGE)

pytestmark = pytest.mark.skipif(
    "TIGHTFIT_BIN" not in os.environ, reason="TIGHTFIT_BIN does not name the program; `cargo xtask ci python` does"
)


def tables() -> list[list[str]]:
    """The rows of all tables, without their headings, as cells."""
    rows, heading = [], None
    for line in TEXT.splitlines():
        if not line.startswith("|"):
            heading = None
        elif heading is None:
            heading = [cell.strip() for cell in line.strip("|").split("|")]
        elif not line.startswith("|---"):
            rows.append([*heading, *(cell.strip() for cell in line.strip("|").split("|"))])
    return rows


def terms(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """The folder in which all blocks of the page have run, one after the other."""
    folder = tmp_path_factory.mktemp("originals")
    pages.run(PAGE, folder, {"__name__": "page"})
    return folder


def test_every_block_runs(ran):
    count = TEXT.count("\n```") // 2
    assert len(pages.blocks(PAGE)) == count >= 6
    assert {language for language, _ in pages.blocks(PAGE)} == {"sh", "python"}


def has(document, path: str) -> bool:
    """Whether a field exists; `[]` is any element of a list."""
    if not path:
        return True
    head, _, rest = path.partition(".")
    if head.endswith("[]"):
        return has(document, head[:-2]) and any(has(item, rest) for item in document[head[:-2]])
    return isinstance(document, dict) and head in document and has(document[head], rest)


def here() -> list[str]:
    cells = [row[3] for row in tables() if row[:2] == ["original", "here"]]
    assert len(cells) > 80 and not any("OPEN" in cell for cell in cells)
    return list(dict.fromkeys(term for cell in cells for term in terms(cell)))


def is_public_in_rust(crate: str, module: str, name: str, member: str | None) -> bool:
    """Whether a module of a crate exports a name, and something in it has that method or field."""
    folder = ROOT / "crates" / {"tightfit": "planner", "tightfit_engine": "engine"}[crate] / "src" / module
    exported = re.findall(r"pub use ([^;]+);", (folder / "mod.rs").read_text(encoding="utf-8"))
    sources = [file.read_text(encoding="utf-8") for file in folder.rglob("*.rs")]
    has_member = member is None or any(re.search(rf"\bpub (fn )?{member}\b", source) for source in sources)
    return has_member and any(re.search(rf"\b{name}\b", names) for names in exported)


def test_what_is_named_here_exists(ran):
    documents: dict = {}
    helps: dict = {}
    for term in here():
        if field := re.fullmatch(r"(\w+): ([\w.\[\]]+)", term):
            stem, path = field.groups()
            documents.setdefault(stem, json.loads((ran / f"{stem}.json").read_text(encoding="utf-8")))
            assert has(documents[stem], path), term
        elif function := re.fullmatch(r"tightfit\.(distributed\.)?(\w+)(?:\.(\w+))?(?:\((.*)\))?", term):
            package = tightfit.distributed if function[1] else tightfit
            assert function[2] in package.__all__, term
            named = getattr(package, function[2])
            named = getattr(named, function[3]) if function[3] else named
            arguments = [name.strip() for name in (function[4] or "").split(",") if name]
            assert not arguments or set(arguments) <= set(inspect.signature(named).parameters), term
        elif path := re.fullmatch(r"(tightfit|tightfit_engine)::(\w+)::(\w+)(?:::(\w+))?", term):
            assert is_public_in_rust(*path.groups()), term
        elif command := re.fullmatch(r"([a-z]+)((?: --[a-z-]+)+)( [a-z-]+)?", term):
            verb, options, value = command[1], command[2].split(), command[3]
            if verb not in helps:
                asked = [os.environ["TIGHTFIT_BIN"], verb, "--help"]
                helps[verb] = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            for option in options:
                assert re.search(rf"{option}\b(?!-)", helps[verb]), term
            assert value is None or re.search(rf"(?<![\w-]){value.strip()}\b(?!-)", helps[verb]), term
        else:
            assert (ROOT / term).is_file(), f"`{term}` is no command, field, name or page"


def test_pages_that_are_named_exist():
    for page in re.findall(r"doc/[\w/-]+\.md", TEXT):
        assert (ROOT / page).is_file(), page


TOOLS = "torch.distributed._tools"


def public(path: Path) -> set[str]:
    """Public functions and classes of a file, with their methods, fields and attributes."""
    def own(name: str) -> bool:
        return not name.startswith("_")

    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and own(node.name):
            found.add(node.name)
        if not isinstance(node, ast.ClassDef) or not own(node.name):
            continue
        found.add(node.name)
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and own(item.name):
                found.add(item.name)
            if isinstance(item, ast.AnnAssign) and own(item.target.id):
                found.add(item.target.id)
        for item in ast.walk(node):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Attribute) and own(item.target.attr):
                found.add(item.target.attr)
    return found


def test_every_public_name_of_pytorchs_tools_is_on_the_page():
    section = re.sub(r"```.*?```", "", TEXT.split("\n## 3.")[1].split("\n## 4.")[0], flags=re.DOTALL)
    named = {part for term in terms(section) for part in re.findall(r"\w+", term)}
    folder = Path(importlib.import_module(TOOLS).__file__).parent
    files = sorted(folder.glob("*.py"))
    assert len(files) >= 10
    missing = {name for file in files for name in public(file)} - named
    assert not missing


def test_what_is_named_of_pytorchs_modules_is_there():
    from torch.distributed._tools import ilp_utils

    stats = set(ilp_utils.ModStats.__annotations__)
    row = [cell for row in tables() for cell in row[2:3] if "`ModStats`" in cell or "its `sac_runtime`" in cell]
    assert set(terms(" ".join(row))) - {"ModStats"} == stats
