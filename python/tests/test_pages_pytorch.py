"""The pages in `doc/pytorch`: their Python and their commands run, and print what the pages say.

Invariant: nothing on a page is skipped, but for pages about packages that are not installed.
"""

import re
from importlib.util import find_spec

import pages
import pytest
import torch
from torch import nn
from torch.nn import functional

import tightfit
import tightfit.distributed

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)

FOLDER = "doc/pytorch"
PAGES = sorted(path.name for path in (pages.ROOT / FOLDER).glob("*.md"))
# What a page needs beyond PyTorch.
NEEDS = {"loops.md": ("transformers", "accelerate"), "large.md": ("transformers",)}


@pytest.mark.parametrize("page", [page for page in PAGES if pages.blocks(f"{FOLDER}/{page}")])
def test_every_block_of_a_page_runs(page, tmp_path):
    missing = [name for name in NEEDS.get(page, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    pages.run(f"{FOLDER}/{page}", tmp_path, {"__name__": "page"})


def test_the_readmes_model_of_ones_own_is_exported_trained_and_loaded(tmp_path):
    found = pages.blocks("README.md")
    first = next(index for index, (_, code) in enumerate(found) if "tightfit.export(" in code)
    chosen = [(language, code) for language, code in found[first:] if language]
    assert [language for language, _ in chosen] == ["python", "sh", "python"]
    model, tokens = nn.Sequential(nn.Embedding(256, 16), nn.Tanh(), nn.Linear(16, 256)), torch.randint(0, 256, (8, 257))
    before = model[0].weight.clone()
    names = {"tightfit": tightfit, "model": model, "optimizer": torch.optim.AdamW(model.parameters()),
             "loss_fn": lambda logits, targets: functional.cross_entropy(logits.flatten(0, 1), targets.flatten()),
             "inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    pages.run_blocks(chosen, "README.md", tmp_path, names)
    assert not torch.equal(model[0].weight, before)


def test_the_pages_are_there_and_lead_to_each_other():
    expected = {"quickstart.md", "export.md", "large.md", "loops.md", "step.md", "offload.md", "guarantee.md", "comparison.md",
                "distributed.md"}
    assert expected <= set(PAGES)
    readme = pages.text("README.md")
    for page in PAGES:
        assert f"{FOLDER}/{page}" in readme, page
        for link in re.findall(r"\]\(([\w./-]+)\)", pages.text(f"{FOLDER}/{page}")):
            assert (pages.ROOT / FOLDER / link).exists(), f"{page}: {link}"


def test_names_of_the_package_on_the_pages_exist():
    for page in PAGES:
        for name in re.findall(r"\btightfit\.([a-zA-Z_]\w*)", pages.text(f"{FOLDER}/{page}")):
            is_package = find_spec(f"tightfit.{name}") is not None
            assert name in tightfit.__all__ or is_package, f"{page}: tightfit.{name}"
        for name in re.findall(r"\btightfit\.distributed\.([a-zA-Z_]\w*)", pages.text(f"{FOLDER}/{page}")):
            assert name in tightfit.distributed.__all__, f"{page}: tightfit.distributed.{name}"
