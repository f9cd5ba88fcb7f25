"""Planned graphs, run by PyTorch: the same bits as without a plan, and never more bytes than the plan says.

Invariant: what is alive is counted from the storages that PyTorch's dispatcher hands out, not from any graph.

Tier: quick with a part of the cases, 27 s; full with all of them.
"""

import copy
import functools
import json
import os
import subprocess
import weakref

import models
import pages
import pytest
import tightfit
import torch
import transformers
from tier import cases
from tightfit.capture import capture
from tightfit.simplify import simplify
from torch import fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.skipif(
    "TIGHTFIT_BIN" not in os.environ, reason="TIGHTFIT_BIN does not name the program; `cargo xtask ci python` does"
)


class LiveStorages(TorchDispatchMode):
    """Bytes of all storages that are alive, and their maximum, which counts a call's inputs and outputs together."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.references: dict[int, weakref.ref] = {}
        self.now = self.peak = 0
        for tensor in given:
            self._track(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for result in pytree.tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self._track(result)
        return results

    def _track(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = storage.nbytes()
            self.references[key] = weakref.ref(storage, functools.partial(self._free, key))
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _free(self, key: int, _: weakref.ref) -> None:
        self.now -= self.alive.pop(key)
        del self.references[key]


class Classifier(nn.Module):
    """A model of the transformers library, reduced to its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(*inputs).logits


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=211, n_positions=64, n_embd=48, n_layer=4, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False,
    )
    batch = torch.randint(0, 211, (4, 64))
    return Classifier(transformers.GPT2LMHeadModel(config)), (batch, batch.roll(-1, 1)), models.token_loss


def bert():
    config = transformers.BertConfig(
        vocab_size=211, hidden_size=48, num_hidden_layers=4, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )
    batch = torch.randint(0, 211, (4, 64))
    return Classifier(transformers.BertForMaskedLM(config)), (batch, batch.roll(-1, 1)), models.token_loss


def resnet18():
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )
    batch = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    return Classifier(transformers.ResNetForImageClassification(config)), batch, functional.cross_entropy


def unet():
    batch = torch.randn(2, 3, 32, 32), torch.randint(0, 4, (2, 32, 32))
    return models.UNet(), batch, functional.cross_entropy


def planned(path, budget: str, out) -> dict:
    command = [os.environ["TIGHTFIT_BIN"], "plan", path, "--budget", budget, "--split", "off", "--iterations", "200000",
               "--emit", "graph", "-o", out, "--json"]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def execute(module: fx.GraphModule, model: nn.Module, batch) -> tuple[list[torch.Tensor], int]:
    """The outputs, and the most bytes of storages that were alive."""
    torch.manual_seed(7)
    own = pytree.tree_map(torch.clone, batch)
    arguments = tightfit.arguments(module, model, own)
    del own
    with torch.no_grad(), LiveStorages(arguments) as live:
        outputs = module(arguments)
    return list(outputs), live.peak


def budgets(path, tmp_path) -> list[str]:
    """The smallest feasible budget, and two between it and the unplanned peak."""
    smallest = planned(path, "min", tmp_path / "smallest.json.gz")
    least, most = smallest["budget_bytes"], smallest["unplanned_peak_bytes"]
    assert least < most
    return [str(least), str((2 * least + most) // 3), str((least + 2 * most) // 3)]


@pytest.mark.parametrize("make", cases(gpt2, resnet18, full=[bert, unet]), ids=lambda make: make.__name__)
def test_a_planned_graph_computes_what_the_unplanned_one_does_within_its_peak(make, tmp_path):
    torch.manual_seed(0)
    model, batch, loss_fn = make()
    path = tmp_path / "step.json.gz"
    tightfit.export(model, loss_fn, batch, optimizer=None, execute=False, out=path, name=make.__name__)
    unplanned = tightfit.to_fx(path, boxed=True)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    expected, peak = execute(unplanned, model, batch)
    after = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert unplanned.meta["output_names"][0] == "loss" and len(expected) == len(list(model.parameters())) + 1

    recomputed = 0
    for budget in budgets(path, tmp_path):
        model.load_state_dict(buffers, strict=False)
        plan = planned(path, budget, tmp_path / "planned.json.gz")
        assert plan["unplanned_peak_bytes"] == peak
        module = tightfit.to_fx(tmp_path / "planned.json.gz", boxed=True)
        outputs, peak_planned = execute(module, model, batch)
        assert peak_planned == plan["peak_bytes"] <= int(budget)
        assert module.meta["output_names"] == unplanned.meta["output_names"]
        for name, ours, theirs in zip(module.meta["output_names"], outputs, expected, strict=True):
            assert torch.equal(ours, theirs), f"{name} at {budget}"
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, after[name]), name
        again = [node for node in module.graph.nodes if "recomputes" in node.meta.get("tightfit", {})]
        recomputed += plan["recomputed_nodes"]
        assert bool(again) == bool(plan["recomputed_nodes"])
    assert recomputed > 0


@pytest.mark.parametrize("make", cases(gpt2, resnet18, full=[unet]), ids=lambda make: make.__name__)
def test_the_unplanned_graph_is_the_capture_and_near_eager(make, tmp_path):
    torch.manual_seed(0)
    model, batch, loss_fn = make()
    model.train()
    path = tmp_path / "step.json.gz"
    tightfit.export(model, loss_fn, batch, optimizer=None, execute=False, out=path, name=make.__name__)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    module = tightfit.to_fx(path)
    given = tightfit.arguments(module, model, batch)
    ours = dict(zip(module.meta["output_names"], module(*given), strict=True))

    model.load_state_dict(state)
    captured = capture(model, loss_fn, batch, training=True)
    simplify(captured)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    given = {node: tensors[name].detach() for name, node in (captured.parameters | captured.buffers).items()}
    given |= zip(captured.inputs, pytree.tree_leaves(batch), strict=True)
    # A tied parameter has a placeholder for each of its names, and only the first is read.
    placeholders = captured.graph.find_nodes(op="placeholder")
    captured.graph.set_codegen(fx.graph.CodeGen())
    captured.module.recompile()
    raw = captured.module(*[given.get(node) for node in placeholders])
    for name, theirs in zip(["loss", *captured.gradients], raw, strict=True):
        assert torch.equal(ours[name], theirs), name

    model.load_state_dict(state)
    loss = loss_fn(model(batch[0]), batch[1])
    loss.backward()
    torch.testing.assert_close(ours["loss"], loss.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


def test_the_page_runs_and_its_loop_is_eagers(tmp_path):
    """Dropout is off, so that eager PyTorch computes the same."""
    torch.manual_seed(0)
    model, batch, loss_fn = gpt2()
    batches = [tuple(tensor.roll(shift, 0) for tensor in batch) for shift in range(3)]
    reference = copy.deepcopy(model).train()
    tightfit.export(model, loss_fn, batch, optimizer=None, execute=False, out=tmp_path / "step.json.gz", name="gpt2")
    names = {"torch": torch, "model": model, "inputs": batch[0], "targets": batch[1], "batches": batches}
    names = pages.run("doc/theory/rewritten.md", tmp_path, names)

    optimizer = torch.optim.AdamW(reference.parameters())
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_fn(reference(inputs), targets)
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(names["loss"], loss.detach())
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
