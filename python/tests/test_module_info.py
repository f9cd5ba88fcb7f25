"""`tightfit.module_info` compared with PyTorch's own tools: its form, its readers, and which recomputes less.

Invariant: PyTorch's programs run unchanged; results are evaluated by their formulas, not by what a solver reports; no
time is asserted.

Tier: quick with a part of the cases, 23 s; full with all of them.
"""

import copy
import json
import os
import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.ilp_utils import ModOrder, ModStats, get_peak_memory_runtime_baseline, parse_module_info
from torch.nn import functional

import tightfit
from bench import checkpointing
from models import ConvNet, Transformer, images, token_loss, tokens
from tightfit import program
from tier import cases

transformers = pytest.importorskip("transformers")
needs_program = pytest.mark.skipif("TIGHTFIT_BIN" not in os.environ, reason="TIGHTFIT_BIN does not name the program; `cargo xtask ci python` does")


def language_loss(output, targets):
    """Mean cross entropy of a causal model's logits."""
    return functional.cross_entropy(output.logits.float().flatten(0, 1), targets.flatten())


def gpt2():
    configuration = transformers.GPT2Config(n_layer=4, n_embd=64, n_head=4, vocab_size=300, n_positions=64, use_cache=False)
    ids = torch.randint(0, 300, (4, 64))
    return transformers.GPT2LMHeadModel(configuration), ({"input_ids": ids}, ids), language_loss


def llama():
    configuration = transformers.LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=4, num_attention_heads=32,
                                             num_key_value_heads=8, vocab_size=32000)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(configuration).to(torch.bfloat16)
    ids = torch.randint(0, 300, (1, 512))
    return model, ({"input_ids": ids}, ids), language_loss


def bert():
    configuration = transformers.BertConfig(vocab_size=300, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256)
    ids = torch.randint(0, 300, (4, 64))
    return transformers.BertForMaskedLM(configuration), ({"input_ids": ids}, ids), language_loss


def resnet():
    configuration = transformers.ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=10)
    with FakeTensorMode():
        model = transformers.ResNetForImageClassification(configuration)
    batch = {"pixel_values": torch.empty(16, 3, 128, 128)}, torch.zeros(16, dtype=torch.int64)
    return model, batch, lambda output, targets: functional.cross_entropy(output.logits, targets)


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert, "resnet": resnet}


def info_of(name):
    model, batch, loss_fn = MODELS[name]()
    return tightfit.module_info(model, batch, loss_fn=loss_fn)


@needs_program
@pytest.mark.parametrize("name", cases("gpt2", full=[name for name in MODELS if name != "gpt2"]))
def test_the_form_is_that_of_pytorch(name):
    info = info_of(name)
    assert set(info) == {"mod_order", "mod_stats"}
    assert set(info["mod_order"]) == set(ModOrder.__annotations__)
    for order in info["mod_order"].values():
        assert type(order) is list and all(type(fqn) is str for fqn in order) and len(set(order)) == len(order)
    for stats in info["mod_stats"]:
        assert set(stats) == set(ModStats.__annotations__)
        for key, wanted in ModStats.__annotations__.items():
            plain = wanted if isinstance(wanted, type) and not hasattr(wanted, "__args__") else wanted.__origin__
            assert type(stats[key]) is plain, (stats["fqn"], key)
        assert all(type(number) is float for key in ("slopes", "intercepts", "breakpoints") for number in stats[key])
        assert all(type(number) is float for point in stats["tradeoff_curve"].items() for number in point)
        assert stats["n_segments"] == len(stats["slopes"]) == len(stats["intercepts"])
        assert len(stats["breakpoints"]) == (0 if stats["is_leaf"] else stats["n_segments"] + 1)
        assert stats["is_leaf"] == (not stats["tradeoff_curve"])


@needs_program
def test_pytorch_finds_the_tree_of_the_model():
    model, batch, loss_fn = gpt2()
    info = tightfit.module_info(model, batch, loss_fn=loss_fn)
    graph = parse_module_info(copy.deepcopy(info))
    called = []
    handles = [module.register_forward_pre_hook(lambda *_, fqn=fqn: called.append(fqn)) for fqn, module in model.named_modules()]
    model(**batch[0])
    for handle in handles:
        handle.remove()
    root = type(model).__name__
    assert [node["fqn"] for node in graph.nodes] == [f"{root}.{fqn}".strip(".") for fqn in called]
    assert f"{root}.transformer.h" not in graph.name2node and f"{root}.transformer.h.3.mlp" in graph.name2node
    # By the names, and not by PyTorch's matrix, which stops at the first module that is not a descendant.
    paths = [node["fqn"].split(".") for node in graph.nodes]
    assert graph.ad_matrix.tolist() == [[float(lower[: len(upper)] == upper) for lower in paths] for upper in paths]


@needs_program
def test_parameters_and_operators_are_those_of_the_model():
    model, batch = Transformer(), tokens()
    [root, *others] = tightfit.module_info(model, batch, loss_fn=token_loss)["mod_stats"]
    assert root["fqn"] == "Transformer"
    for stats in [root, *others]:
        module = model.get_submodule(stats["fqn"].partition(".")[2])
        assert stats["param_per_module"] == sum(parameter.nbytes for parameter in module.parameters())
        assert stats["grad_per_module"] == stats["param_per_module"]
    head = next(stats for stats in others if stats["fqn"] == "Transformer.head")
    assert head["input_per_module"] == 2 * 7 * 16 * 4 and head["output_per_module"] == 2 * 7 * 17 * 4


@needs_program
def test_the_program_gives_the_same_matrix_and_places(tmp_path):
    info = info_of("gpt2")
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps({"module_info": info}))  # a table, as json writes an OrderedDict
    written = program.run("modules", path, "--json", "--ancestors")
    parsed = parse_module_info(copy.deepcopy(info))
    assert written["ad_matrix"] == parsed.ad_matrix.tolist()
    assert (written["baseline_peak_bytes"], written["baseline_ms"]) == pytest.approx(get_peak_memory_runtime_baseline(parsed), rel=1e-12)
    for stats, node in zip(written["module_info"]["mod_stats"], parsed.nodes, strict=True):
        assert stats | {"tradeoff_curve": OrderedDict(stats["tradeoff_curve"])} == node


@needs_program
@pytest.mark.parametrize("name", cases("llama", full=["gpt2", "bert", "resnet"]))
def test_sac_recomputes_no_longer_than_pytorch(name):
    points = checkpointing.compare(info_of(name), points=3, limit=5)
    assert len(points) == 3
    answered = [point for point in points if point.theirs is not None]
    assert answered, "PyTorch's program has an answer somewhere"
    for point in answered:
        assert point.ours <= point.theirs + 0.005 + 1e-6 * point.theirs, point
        assert point.ours_at_peak <= point.exact * (1 + 1e-6), point


@needs_program
def test_a_step_without_a_loss_sums_the_prediction():
    info = tightfit.module_info(ConvNet(), (images()[0], None))
    assert [stats["fqn"] for stats in info["mod_stats"]] == [
        "ConvNet", "ConvNet.stem", "ConvNet.stem.0", "ConvNet.stem.1", "ConvNet.stem.2", "ConvNet.head"]
    model, batch, _ = gpt2()
    ids = batch[1]
    assert tightfit.module_info(model, ({"input_ids": ids, "labels": ids}, None))["mod_stats"][0]["fqn"] == "GPT2LMHeadModel"
    with pytest.raises(tightfit.ExportError, match="give loss_fn"):
        tightfit.module_info(model, ({"input_ids": ids}, None))


@needs_program
@pytest.mark.parametrize("place", ["cpu", "meta", "fake"])
def test_it_does_not_matter_where_the_model_is(place):
    def build():
        embedding, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        head.weight = embedding.weight  # tied
        return nn.Sequential(embedding, nn.Sequential(nn.Linear(8, 8), nn.ReLU()), head)

    batch = torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, 5, dtype=torch.int64)
    expected = tightfit.module_info(build(), batch, loss_fn=token_loss)
    assert expected["mod_stats"][0]["param_per_module"] == 4 * (11 * 8 + 8 * 8 + 8)
    with {"cpu": torch.device("cpu"), "meta": torch.device("meta"), "fake": FakeTensorMode()}[place]:
        model = build()
    before = dict(model.named_parameters())
    assert tightfit.module_info(model, batch, loss_fn=token_loss) == expected
    assert all(parameter is before[fqn] for fqn, parameter in model.named_parameters())


@needs_program
def test_what_cannot_be_done_says_what_to_do(monkeypatch):
    batch = images()
    with pytest.raises(tightfit.ExportError, match="pair"):
        tightfit.module_info(ConvNet(), batch[0])
    with pytest.raises(tightfit.ProgramError, match="abacus"):
        tightfit.module_info(ConvNet(), batch, loss_fn=functional.cross_entropy, machine="abacus")
    monkeypatch.setenv("TIGHTFIT_BIN", "/nowhere/tightfit")
    with pytest.raises(tightfit.ProgramError, match="is no program"):
        tightfit.module_info(ConvNet(), batch, loss_fn=functional.cross_entropy)
    monkeypatch.delenv("TIGHTFIT_BIN")
    assert program.find() == [sys.executable, "-m", "tightfit"]


@pytest.mark.parametrize("printed", ["", "words", "{}", "[]", '{"module_info": {"mod_order": {}}}', "\\377\\376"])
def test_a_program_that_prints_something_else_is_refused(printed, tmp_path, monkeypatch):
    script = tmp_path / "tightfit"
    script.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("TIGHTFIT_BIN", str(script))
    with pytest.raises(tightfit.ProgramError, match="are both of one version"):
        tightfit.module_info(torch.nn.Linear(3, 3), (torch.randn(2, 3), torch.randn(2, 3)))
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(tightfit.ProgramError, match="ended by signal 9"):
        tightfit.module_info(torch.nn.Linear(3, 3), (torch.randn(2, 3), torch.randn(2, 3)))
