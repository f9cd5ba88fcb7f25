"""What notebooks show: the figures of a plan, and no markup injected by a name.

Invariant: markup is read by Python's own HTML parser.

Tier: quick, since it takes 2 s.
"""

import pickle
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import tightfit

RESNET = Path(__file__).resolve().parents[2] / "corpus" / "graphs" / "resnet50_b32.json.gz"
HOSTILE = "<script>alert('x')</script>\"&"
ALLOWED = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


class Read(HTMLParser):
    """The tags of some markup, and its text."""

    def __init__(self, markup):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], set(), set(), []
        self.feed(markup)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, inputs):
        return self.layers(inputs).square().mean()


def shown(item):
    page = Read(item._repr_html_())
    assert page.tags <= ALLOWED and page.attributes <= {"style"}
    return page.text


def test_a_plan_shows_its_figures_and_a_hostile_name_as_text(own_cache):
    plan = tightfit.plan(type(HOSTILE, (Net,), {})(), torch.randn(256, 8), machine="h100-80gb")
    title, *text = shown(plan)
    assert title.startswith(HOSTILE) and "[256, 8]" in title
    assert f"{plan.peak / 1024:.2f} KiB" in text and "as little as possible" in text
    assert text[text.index("calls that run again") + 1] == str(plan.recomputed)


def test_all_plans_of_a_model_are_shown(own_cache):
    model = tightfit.compile(Net(), budget="1MiB")
    assert shown(tightfit.plans(model)) == ["no plans yet"]
    model(torch.randn(4, 8)).backward()
    model(torch.randn(6, 8)).backward()
    text = shown(tightfit.plans(model))
    assert any("[4, 8]" in item for item in text) and any("[6, 8]" in item for item in text)
    assert text.count("1.00 MiB") == len(tightfit.plans(model))


@pytest.mark.parametrize("name", ["resnet", HOSTILE])
def test_graphs_and_schedules_are_shown(name):
    import gzip
    import json

    document = json.loads(gzip.decompress(RESNET.read_bytes())) | {"name": name}
    graph = tightfit.read_graph(document)
    assert shown(graph)[0] == name
    fitted = tightfit.fit(graph, "80%", iterations=200)
    text = shown(fitted)
    assert text[0].startswith(f"{name} on ") and f"{len(fitted.recomputed):,}" in text


def test_an_analysis_is_shown_with_its_tables():
    import gzip
    import json

    document = json.loads(gzip.decompress(RESNET.read_bytes())) | {"name": HOSTILE}
    analysis = tightfit.analyze(document)
    text = shown(analysis)
    assert text[0] == f"{HOSTILE} on a100-80gb" and analysis.peak_node in text
    assert "by module" in text and any(line.startswith("alive at the peak, the 20 largest") for line in text)
    assert shown(analysis.operators)[0] == "by operator"


def test_plans_are_printed_as_a_table(own_cache):
    model = tightfit.compile(Net(), budget="1MiB")
    assert str(tightfit.plans(model)) == "no plans yet"
    model(torch.randn(4, 8)).backward()
    plans = tightfit.plans(model)
    title, head, *rows = str(plans).splitlines()
    assert title == "Net, training on [4, 8]" and head.split() == ["planned", "unplanned"]
    assert [row.split()[0] for row in rows] == ["budget", "peak", "time", "no", "gap", "calls"]
    assert str(plans[0]) == str(plans)
    assert pickle.loads(pickle.dumps(plans)) == plans


def test_plans_of_what_was_not_compiled_are_refused():
    for other in (Net(), tightfit.step, None):
        with pytest.raises(tightfit.CompileError, match="was not compiled"):
            tightfit.plans(other)
