"""Graphs written again for another batch are what PyTorch captures there, node by node, or they are refused by name.

Invariant: what is compared was captured by PyTorch with that batch; nothing here knows how a graph is rewritten.

Tier: quick with two models and two sizes; full with the whole zoo and four.
"""

import pytest
import torch
import zoo
from tier import FULL, cases
from torch import nn
from torch.nn import functional

from tightfit.batch import resized

tightfit = zoo.use_tightfit()

LANGUAGE = ["gpt2", "llama", "qwen2", "bert", "t5", "experts", "gpt_small", "gpt_long", "gpt2_medium", "llama_1b"]
MODELS = cases("gpt_small", "resnet50", full=sorted({*zoo.MODELS} - {"gpt_small", "resnet50"}))
LENGTHS = cases("llama", full=[name for name in LANGUAGE if name != "llama"])
# What is not known of them at another size, by the words that say so.
REFUSED = {
    ("batch", "experts"): "node `arange_1` has the number 761 instead of 321",
    ("length", "experts"): "node `arange_1` has the number [0-9]+ instead of 321",
    ("length", "bert"): "position_ids`, a buffer",
}
SIZES = {"batch": [3, 2, 7, 16] if FULL else [3], "length": [15, 2, 8, 12] if FULL else [15]}


def captured(workload, batch, path):
    tightfit.export(workload.model, None, batch, out=path, name="step", execute=False)
    return tightfit.read_graph(path)


def compare(name, axis, tmp_path):
    workload, dimension = zoo.build(name, tiny=True), ["batch", "length"].index(axis)
    batch = workload.batch(1)
    if name == "t5":  # Two lengths that are alike.
        batch = resized(batch, 1, 24)
    graph = captured(workload, batch, tmp_path / "captured.json.gz")
    if (axis, name) in REFUSED:
        with pytest.raises(tightfit.OptionError, match=REFUSED[axis, name]):
            graph.at(**{axis: 3})
        return
    for size in SIZES[axis]:
        other = captured(workload, resized(batch, dimension, size), tmp_path / "other.json.gz")
        assert graph.at(**{axis: size}).difference(other) is None


@pytest.mark.parametrize("name", MODELS)
def test_another_batch_is_as_captured(name, tmp_path):
    compare(name, "batch", tmp_path)


@pytest.mark.parametrize("name", LENGTHS)
def test_another_length_is_as_captured(name, tmp_path):
    compare(name, "length", tmp_path)


class Scaled(nn.Module):
    """Its loss is scaled by a number that follows from how many rows there are."""

    def __init__(self, factor) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(6, 6), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().sum() * self.factor(x.shape[0])


def test_export_compares_with_another_capture(tmp_path):
    path, x = tmp_path / "step.json", torch.randn(6, 6)
    options = dict(out=path, name="step", execute=False, check_size=10)
    tightfit.export(nn.Linear(6, 3), functional.cross_entropy, (x, torch.randint(3, (6,))), **options)
    assert tightfit.read_graph(path).at(batch=10).static_bytes > tightfit.read_graph(path).static_bytes
    tightfit.export(Scaled(lambda rows: 1 / rows), None, {"x": x}, **options)
    path.unlink()
    with pytest.raises(tightfit.ExportError, match="check_size=10: .*instead of 1.9"):
        tightfit.export(Scaled(lambda rows: 0.3 * rows + 0.1), None, {"x": x}, **options)
    # At the captured size, and at the one that it is compared with of itself, the number is one.
    with pytest.raises(tightfit.ExportError, match="with a batch of 10 the step is not what follows"):
        tightfit.export(Scaled(lambda rows: 2 if rows == 10 else 1), None, {"x": x}, **options)
    assert not path.exists()


@pytest.mark.parametrize("size, said", [(1, "from 2 on"), (1.5, "no whole number"), ("8", "no whole number")])
def test_sizes_that_are_none_are_refused(size, said, tmp_path):
    with pytest.raises(tightfit.OptionError, match=said):
        tightfit.export(nn.Linear(6, 6), lambda y, _: y.sum(), (torch.randn(6, 6), None), out=tmp_path / "step.json", name="step",
                        execute=False, check_size=size)


def test_a_graph_at_another_size_is_planned(tmp_path):
    graph = tightfit.read_graph(zoo.ROOT / "corpus" / "steps" / "gpt-nano")
    larger = graph.at(batch=32)
    assert larger.unplanned_peak("a100-80gb") > 1.5 * graph.unplanned_peak("a100-80gb")
    assert tightfit.fit(larger, "60%", machine="a100-80gb", iterations=100).peak > graph.static_bytes
    assert larger.at(length=16).difference(graph.at(length=16, batch=32)) is None
    with pytest.raises(tightfit.OptionError, match="too small"):
        graph.at(batch=1)
