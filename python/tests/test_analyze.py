"""`tightfit.analyze`: what the program reports about a step, a model and a graph, as an object displayed as tables.

Invariant: the expected values are printed by the program in a separate process; no time is asserted.

Tier: quick, since it takes 4 s.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tightfit
from tightfit import program

ROOT = Path(__file__).resolve().parents[2]
RESNET = ROOT / "corpus/graphs/resnet50_b32.json.gz"
STEP = ROOT / "corpus/steps/gpt-nano"

pytestmark = pytest.mark.usefixtures("own_cache")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, inputs):
        return self.layers(inputs).square().mean()


@pytest.fixture
def net() -> tightfit.Analysis:
    return tightfit.analyze(Net(), torch.randn(256, 8), machine="h100-80gb")


def printed(*arguments) -> dict:
    words = [*program.own(), "analyze", *map(str, arguments), "--json"]
    ran = subprocess.run(words, capture_output=True, timeout=300, check=True)
    answer = json.loads(ran.stdout)
    assert answer.pop("format") == "tightfit-answer/1"
    return answer


def test_a_graph_is_analyzed_as_the_program_does_it_however_it_is_given():
    says = printed(RESNET)
    packed = RESNET.read_bytes()
    document = json.loads(gzip.decompress(packed))
    for given in (RESNET, str(RESNET), packed, gzip.decompress(packed), json.dumps(document), document, tightfit.read_graph(RESNET)):
        assert tightfit.analyze(given).to_dict() == says


def test_a_graph_is_analyzed_without_pytorch():
    code = f"import sys, tightfit; print(tightfit.analyze({str(RESNET)!r}).live); assert 'torch' not in sys.modules"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300, check=True)
    assert ran.stdout.startswith(b"alive at the peak")


def test_options_are_the_programs():
    says = printed(STEP, "--budget", "60%", "--module", "h.0", "--depth", "1", "--machine", "a100-80gb")
    analysis = tightfit.analyze(STEP, budget="60%", module="h.0", depth=1, machine="a100-80gb")
    assert analysis.to_dict() == says
    assert {row["module"] for row in analysis.modules} == {row["module"] for row in says["modules"]}
    assert all(row["module"].startswith("h.0") for row in analysis.nodes)
    shown = str(analysis).splitlines()
    assert shown[0] == "gpt-nano on a100-80gb"
    assert any(line.split()[:2] == ["over", "it"] for line in shown)
    roomy = tightfit.analyze(STEP, budget="1GiB", machine="a100-80gb")
    assert any(line.split() == ["over", "it", "never"] for line in str(roomy).splitlines())


def test_the_step_of_a_model_is_the_captured_one(net):
    graph = tightfit.capture_step(Net(), torch.randn(256, 8), measure=False)
    assert net.to_dict() == tightfit.analyze(graph, machine="h100-80gb").to_dict()
    assert (net.name, net.peak) == ("Net", tightfit.read_graph(graph).unplanned_peak())
    assert net.peak_module == "layers.2" and net.peak_node in {row["name"] for row in net.nodes}
    assert net.static_bytes == sum(row["bytes"] for row in net.live if row["phase"] in ("parameter", "input"))
    assert sum(row["bytes"] for row in net.live) <= net.peak
    assert net.seconds == pytest.approx(sum(row["seconds"] for row in net.nodes))


def test_what_is_saved_is_told_by_where_it_is_made(net):
    saved = 256 * 32 * 4
    modules = {row["module"]: row["alone"] for row in net.modules}
    gelu = modules["layers.1"]
    assert (gelu["fwd_mem_in"], gelu["fwd_mem_tmp"], gelu["fwd_mem_out"]) == (saved, 0, saved)
    assert modules["layers"]["fwd_mem_tmp"] == 2 * saved
    [operator] = [row for row in net.operators if row["op"] == "aten.gelu.default"]
    assert operator["alone"] == gelu and operator["backward"] == ["gelu_backward"]


def test_a_model_is_measured_where_it_is_and_needs_a_machine_where_it_has_no_memory():
    assert str(tightfit.analyze(Net(), torch.randn(4, 8))).splitlines()[0] == "Net, measured"
    with torch.device("meta"):
        model, batch = Net(), torch.empty(1 << 20, 8)
    with pytest.raises(tightfit.OptionError, match="give the machine"):
        tightfit.analyze(model, batch)
    assert tightfit.analyze(model, batch, machine="h100-80gb").peak > 1 << 28


def test_it_shows_as_tables(net):
    title, *lines = str(net).splitlines()
    assert title == "Net on h100-80gb"
    heads = [line.split() for line in lines]
    assert ["module", "parameters", "fwd_in", "fwd_tmp", "fwd_out", "bwd_tmp", "bwd_out", "forward", "backward"] in heads
    assert ["tensor", "phase", "bytes", "module"] in heads
    assert any(words[:3] == ["layers.1", "–", "32.00"] for words in heads)
    assert str(net.operators).splitlines()[0] == "by operator"
    assert len(str(net.nodes).splitlines()) == len(net.nodes) + 2
    assert repr(net).startswith("<tightfit.Analysis 'Net': peak 1")


def test_only_the_largest_tensors_are_shown_beside_the_modules():
    analysis = tightfit.analyze(STEP, machine="a100-80gb")
    title, _head, *rows = str(analysis).split("\n\n")[-1].splitlines()
    assert title == f"alive at the peak, the 20 largest of {len(analysis.live)}" and len(rows) == 20
    assert len(str(analysis.live).splitlines()) == len(analysis.live) + 2


def test_a_report_is_what_the_package_writes_of_the_graph(tmp_path):
    ours, theirs = tmp_path / "ours.html", tmp_path / "theirs.html"
    assert tightfit.analyze(RESNET, machine="h100-80gb").report(ours) == str(ours)
    tightfit.report(RESNET, out=theirs, points=0, machine="h100-80gb")
    assert ours.read_text() == theirs.read_text()


@pytest.mark.parametrize("options", [
    {"budget": "min"}, {"budget": 0}, {"budget": "much"}, {"module": "h.7"}, {"depth": -1}, {"machine": "abacus"}, {"threads": 0},
    {"differentiable_outputs": True}, {"loss_memory": 8},
])
def test_what_makes_no_sense_is_refused(options):
    with pytest.raises(tightfit.OptionError):
        tightfit.analyze(STEP, **options)


@pytest.mark.parametrize("depth", [-1, "x", True])
def test_a_refused_option_is_named(depth):
    with pytest.raises(tightfit.OptionError, match="depth: "):
        tightfit.analyze(STEP, depth=depth)


def test_a_model_without_a_batch_and_a_graph_with_one_are_refused():
    with pytest.raises(tightfit.OptionError, match="give the batch"):
        tightfit.analyze(Net())
    with pytest.raises(tightfit.OptionError, match="no torch.nn.Module"):
        tightfit.analyze(str(RESNET), torch.randn(4, 8))
    with pytest.raises(tightfit.GraphFileError, match=r"nowhere\.json"):
        tightfit.analyze("nowhere.json")
