"""The pages in `doc/pytorch`: their Python and their commands run, and print what the pages say.

Invariant: nothing is skipped except pages about packages that are not installed.

Tier: quick with a part of the cases, 11 s; full with all of them.
"""

import re
import sys
import types
from importlib.util import find_spec

import pages
import pytest
import torch
from torch import nn
from torch.nn import functional

import tightfit
import tightfit.distributed
from tier import cases

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)

FOLDER = "doc/pytorch"
PAGES = sorted(path.name for path in (pages.ROOT / FOLDER).glob("*.md"))
# Packages that a page needs besides PyTorch.
NEEDS = {"loops.md": ("transformers", "accelerate"), "large.md": ("transformers",)}


FIRST = "quickstart.md"
OTHERS = [page for page in PAGES if pages.blocks(f"{FOLDER}/{page}") and page != FIRST]


@pytest.mark.parametrize("page", cases(FIRST, full=OTHERS))
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch):
    missing = [name for name in NEEDS.get(page, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    pages.run(f"{FOLDER}/{page}", tmp_path, vars(module))


def test_the_readmes_line_is_all_that_it_takes(tmp_path):
    [code] = [code for language, code in pages.blocks("README.md") if language == "python"]
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    pages.run_blocks([("python", code)], "README.md", tmp_path, names)
    model(torch.randn(8, 16)).sum().backward()
    [plan] = tightfit.plans(model)
    assert plan.peak <= plan.budget == 6 << 30


def test_the_pages_are_there_and_lead_to_each_other():
    expected = {"quickstart.md", "export.md", "large.md", "loops.md", "step.md", "offload.md", "guarantee.md", "comparison.md",
                "distributed.md", "loss.md"}
    assert expected <= set(PAGES)
    contents = pages.text("doc/SUMMARY.md")
    for page in PAGES:
        assert f"(pytorch/{page})" in contents, page
        for link in re.findall(r"\]\(([\w./-]+)\)", pages.text(f"{FOLDER}/{page}")):
            assert (pages.ROOT / FOLDER / link).exists(), f"{page}: {link}"


def test_names_of_the_package_on_the_pages_exist():
    for page in PAGES:
        for name in re.findall(r"\btightfit\.([a-zA-Z_]\w*)", pages.text(f"{FOLDER}/{page}")):
            is_package = find_spec(f"tightfit.{name}") is not None
            assert name in tightfit.__all__ or is_package, f"{page}: tightfit.{name}"
        for name in re.findall(r"\btightfit\.distributed\.([a-zA-Z_]\w*)", pages.text(f"{FOLDER}/{page}")):
            assert name in tightfit.distributed.__all__, f"{page}: tightfit.distributed.{name}"
