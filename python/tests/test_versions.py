"""Which versions of Python and PyTorch the package supports: by its metadata, and by its syntax.

Invariant: tests run on one Python, so what older ones would refuse is found by inspecting the source.

Tier: quick, since they only read.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for file in (ROOT / "python" / "tightfit").rglob("*.py*") if file.suffix in (".py", ".pyi"))
PROJECT = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]
# Additions after Python 3.10: modules, names in modules, and built-in names.
MODULES = {"tomllib"}
LATER = {
    "contextlib": {"chdir"}, "datetime": {"UTC"}, "enum": {"StrEnum", "ReprEnum", "member"}, "hashlib": {"file_digest"},
    "itertools": {"batched"}, "operator": {"call"}, "warnings": {"deprecated"},
    "typing": {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack", "assert_never", "override",
               "reveal_type"},
}
BUILT_IN = {"BaseExceptionGroup", "ExceptionGroup"}


def numbers(version):
    return tuple(int(number) for number in version.split(".")[:2])


def torches():
    """The oldest PyTorch, and the first that is too new."""
    [asked] = [name for name in PROJECT["optional-dependencies"]["torch"] if name.startswith("torch")]
    return [numbers(version) for version in re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", asked).groups()]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT / "python")))
def test_a_file_is_python_3_10(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not MODULES & {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module not in MODULES
            assert not LATER.get(node.module, set()) & {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr not in LATER.get(node.value.id, set())
        elif isinstance(node, ast.Name):
            assert node.id not in BUILT_IN


def test_what_is_said_of_python():
    assert PROJECT["requires-python"] == ">=3.10"
    assert 'pyo3 = { version = "0.30", features = ["abi3-py310"] }' in (ROOT / "Cargo.toml").read_text()


def test_pages_say_which_pytorch_is_asked_for():
    oldest, beyond = torches()
    said = f"PyTorch {oldest[0]}.{oldest[1]} to {beyond[0]}.{beyond[1] - 1}"
    for page in ("README.md", "doc/pytorch/quickstart.md"):
        assert said in (ROOT / page).read_text(), page
    assert oldest <= numbers(torch.__version__) < beyond


def test_the_workflow_tests_the_oldest_pytorch():
    oldest, _ = torches()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.search(rf"torch: \[.*\b{oldest[0]}\.{oldest[1]}\.0\b", workflow)
