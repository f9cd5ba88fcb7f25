"""Models that PyTorch's tracing alone would get wrong: recurrent layers, frozen modes, checkpoints of their own,
batches that share memory.

Invariant: what a graph computes is compared with eager PyTorch, by running the graph.

Tier: quick with a part of the cases, 8 s; full with all of them.
"""

import copy
import warnings
import weakref

import models
import pytest
import tightfit
import torch
from tier import full
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode


def captured(model, loss_fn, batch, path, **options):
    tightfit.export(model, loss_fn, batch, optimizer=None, execute=False, out=path, name="captured", **options)
    return tightfit.to_fx(path)


def equals_eager(module, model, loss_fn, batch):
    reference = copy.deepcopy(model)
    found = module(*tightfit.arguments(module, model, batch))
    inputs, targets = batch
    loss = loss_fn(reference(*inputs) if isinstance(inputs, tuple) else reference(inputs), targets)
    loss.backward()
    torch.testing.assert_close(found[0], loss.detach())
    gradients = dict(zip(module.meta["output_names"][1:], found[1:], strict=True))
    for name, parameter in reference.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")
    return reference


class Recurrent(nn.Module):
    def __init__(self, layer, **options):
        super().__init__()
        self.layer = layer(4, 5, 3, **options)

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [
    pytest.param({}, id="plain", marks=full),
    pytest.param({"bidirectional": True, "batch_first": True}, id="bidirectional"),
])
def test_recurrent_layers_are_eagers(layer, options, tmp_path):
    model = Recurrent(layer, **options)
    width = 10 if options else 5
    batch = torch.randn(3, 3, 4), torch.randn(3, 3, width)
    kernels = dict(torch.ops.aten.lstm.input.py_kernels)
    module = captured(model, functional.mse_loss, batch, tmp_path / "step.json")
    assert torch.ops.aten.lstm.input.py_kernels == kernels and torch._C._get_mkldnn_enabled()
    equals_eager(module, model, functional.mse_loss, batch)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers_is_drawn(layer, tmp_path):
    model, batch = Recurrent(layer, dropout=0.5), (torch.randn(3, 3, 4), torch.randn(3, 3, 5))
    module = captured(model, functional.mse_loss, batch, tmp_path / "step.json")
    draws = [node for node in module.graph.nodes if getattr(node.target, "__name__", "") == "draw"]
    assert len(draws) == 2
    given = tightfit.arguments(module, model, batch)
    losses = {module(*given)[0].item() for _ in range(4)}
    assert len(losses) == 4


def test_a_recurrent_layer_can_be_measured(tmp_path):
    model, batch = Recurrent(nn.LSTM), (torch.randn(3, 3, 4), torch.randn(3, 3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(model, functional.mse_loss, batch, tmp_path / "step.json", measure=True)


class Frozen(nn.Module):
    """Normalisation with fixed statistics, and dropout that is switched off, as in fine-tuning."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.dropout, self.last = nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.dropout(self.norm(self.first(x))))


def test_a_model_in_training_mode_keeps_the_modes_of_its_modules(tmp_path):
    model, batch = Frozen(), models.rows()
    model.norm.eval()
    model.dropout.eval()
    module = captured(model, functional.cross_entropy, batch, tmp_path / "step.json")
    before = copy.deepcopy(dict(model.named_buffers()))
    equals_eager(module, model, functional.cross_entropy, batch)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert not any(getattr(node.target, "__name__", "") == "draw" for node in module.graph.nodes)


def test_a_model_in_evaluation_mode_is_captured_as_in_training(tmp_path):
    model, batch = Frozen().eval(), models.rows()
    module = captured(model, functional.cross_entropy, batch, tmp_path / "step.json")
    assert any(getattr(node.target, "__name__", "") == "draw" for node in module.graph.nodes)
    assert not any(part.training for part in model.modules())


class Checkpointed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layers, self.options = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), options

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint.checkpoint(lambda x, layer=layer: functional.gelu(layer(x)), x, **self.options)
        return x


def test_a_model_that_checkpoints_by_itself_is_said_to(tmp_path):
    model, batch = Checkpointed(use_reentrant=False), (torch.randn(5, 6), torch.randn(5, 6))
    with pytest.warns(UserWarning, match="the model checkpoints activations by itself"):
        module = captured(model, functional.mse_loss, batch, tmp_path / "step.json")
    equals_eager(module, model, functional.mse_loss, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(models.Normed(), functional.cross_entropy, models.rows(), tmp_path / "step.json")


def test_tensors_of_a_batch_may_share_memory(tmp_path):
    tokens = torch.randint(0, 17, (2, 8))
    model = models.Transformer()
    for dropout in (module for module in model.modules() if isinstance(module, nn.Dropout)):
        dropout.p = 0.0
    for layer in model.encoder.layers:
        layer.self_attn.dropout = 0.0
    batch = tokens[:, :-1], tokens[:, 1:]
    module = captured(model, models.token_loss, batch, tmp_path / "step.json")
    equals_eager(module, model, lambda logits, targets: models.token_loss(logits, targets), batch)
    x = torch.randn(5, 6)
    model = nn.Linear(6, 6)
    equals_eager(captured(model, functional.mse_loss, (x, x), tmp_path / "step.json"), model, functional.mse_loss, (x, x))


class Unread(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, mask):
        return self.layer(x)


def test_what_nothing_reads_is_held_by_nobody(tmp_path):
    model, batch = Unread(), ((torch.randn(5, 6), torch.ones(300, 300)), torch.randint(0, 3, (5,)))
    captured(model, functional.cross_entropy, batch, tmp_path / "step.json")
    module = tightfit.to_fx(tmp_path / "step.json", boxed=True)
    mask = batch[0][1].clone()
    reference, alive = weakref.ref(mask), []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            alive.append(reference() is not None)
            return func(*args, **(kwargs or {}))

    given = tightfit.arguments(module, model, ((batch[0][0], mask), batch[1]))
    del mask
    with Watched():
        module(given)
    assert alive and not any(alive)


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), torch.ones(3)

    def forward(self, x):
        return self.layer(x) * self.scale


def test_a_tensor_of_nobody_is_explained(tmp_path):
    try:
        module = captured(Attribute(), functional.cross_entropy, models.rows(), tmp_path / "step.json")
    except tightfit.ExportError as error:
        assert "register_buffer" in str(error)
    else:
        assert module is not None
    with pytest.raises(tightfit.ExportError, match="the batch holds a object; pass tensors"):
        batch = torch.randn(5, 6), object()
        captured(nn.Linear(6, 6), lambda prediction, _: prediction.sum(), batch, tmp_path / "step.json")


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, b, a):
        return self.layer(a) + 2 * b


def test_a_dict_goes_by_its_keys(tmp_path):
    model, a, b, targets = Two(), torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 3)
    module = captured(model, functional.mse_loss, ({"b": b, "a": a}, targets), tmp_path / "step.json")
    expected = functional.mse_loss(model(a=a, b=b), targets)
    for inputs in ({"a": a, "b": b}, {"b": b, "a": a}):
        torch.testing.assert_close(module(*tightfit.arguments(module, model, (inputs, targets)))[0], expected.detach())
