"""Twelve models that people train, small enough for two cores and large enough that activations matter, and one model
that is to be refused: the models on which executed plans are measured.

Invariant: the same name, size and seed give the same weights and the same batches bit for bit, in every process;
nothing is downloaded. Dropout stays on if the model has it. Every forward takes its batch by keywords and contains the
loss, so that the whole step is one graph and the budget covers all of it: transformers models return (loss, logits),
and those of torchvision, which return only logits, are wrapped in a `WithLoss`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 4096
CLASSES = 100

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A model in training mode, batches for it, how to get the scalar loss from its result, and the blocks that
    per-block checkpointing recomputes."""

    model: nn.Module
    draw: Callable[[], Batch]  # from PyTorch's default generator
    loss: Callable[[Any], torch.Tensor]
    blocks: list[nn.Module]

    def batch(self, seed: int) -> Batch:
        """A batch of this seed. The default generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.draw()


def sized(batch: Batch, batch_size: int | None = None, length: int | None = None) -> Batch:
    """The batch with another number of samples, another length of each, or both: what it holds is repeated."""
    for dimension, size in enumerate((batch_size, length)):
        if size is not None:
            batch = {name: tensor.index_select(dimension, torch.arange(size) % tensor.shape[dimension])
                     for name, tensor in batch.items()}
    return batch


class WithLoss(nn.Module):
    """A model that returns logits, with the mean cross entropy to its targets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.model(inputs)
        if logits.dim() == 3:  # [batch, position, class]: classes last, where images have them second
            logits, targets = logits.flatten(0, 1), targets.flatten()
        return functional.cross_entropy(logits, targets)


# Models of transformers.


def _language(model: nn.Module, blocks: list[nn.Module], draw: Callable[[], Batch]) -> Workload:
    return Workload(model.train(), draw, lambda output: output.loss, blocks)


def _causal(model: nn.Module, blocks: nn.ModuleList, batch: int, window: int, words: int = VOCABULARY) -> Workload:
    """A language model that predicts its own input; it shifts the labels by itself."""

    def draw() -> Batch:
        tokens = torch.randint(0, words, (batch, window))
        return {"input_ids": tokens, "labels": tokens.clone()}

    return _language(model, list(blocks), draw)


def gpt2(tiny: bool) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, window = (2, 64, 32) if tiny else (4, 256, 256)
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 32, n_positions=window, vocab_size=VOCABULARY,
                        bos_token_id=0, eos_token_id=0, use_cache=False)
    model = GPT2LMHeadModel(config)
    return _causal(model, model.transformer.h, 4, window)


def llama(tiny: bool) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, window = (2, 64, 32) if tiny else (4, 256, 256)
    config = LlamaConfig(num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 11 // 4,
                         num_attention_heads=width // 32, num_key_value_heads=width // 64, vocab_size=VOCABULARY,
                         max_position_embeddings=window, use_cache=False)
    model = LlamaForCausalLM(config)
    return _causal(model, model.model.layers, 6, window)


def qwen2(tiny: bool) -> Workload:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    layers, width, window = (2, 64, 32) if tiny else (4, 256, 256)
    config = Qwen2Config(num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 3,
                         num_attention_heads=width // 32, num_key_value_heads=width // 64, vocab_size=VOCABULARY,
                         max_position_embeddings=window, tie_word_embeddings=True, use_cache=False)
    model = Qwen2ForCausalLM(config)
    return _causal(model, model.model.layers, 6, window)


def bert(tiny: bool) -> Workload:
    """Masked words in sentences of different lengths: the attention mask is not all ones."""
    from transformers import BertConfig, BertForMaskedLM

    layers, width, window = (2, 64, 32) if tiny else (4, 256, 192)
    batch = 6
    config = BertConfig(num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width,
                        num_attention_heads=width // 32, vocab_size=VOCABULARY, max_position_embeddings=window)
    model = BertForMaskedLM(config)

    def draw() -> Batch:
        tokens = torch.randint(0, VOCABULARY, (batch, window))
        lengths = torch.randint(window // 2, window + 1, (batch, 1))
        lengths[0] = window // 2
        present = torch.arange(window) < lengths
        asked = (torch.rand(batch, window) < 0.15) & present
        asked[:, 0] = True
        return {"input_ids": tokens.masked_fill(asked, 1), "attention_mask": present.long(),
                "labels": tokens.masked_fill(~asked, -100)}

    return _language(model, list(model.bert.encoder.layer), draw)


def t5(tiny: bool) -> Workload:
    from transformers import T5Config, T5ForConditionalGeneration

    layers, width, source, target = (1, 64, 24, 16) if tiny else (3, 256, 160, 96)
    config = T5Config(num_layers=layers, d_model=width, d_kv=32, num_heads=width // 32, d_ff=4 * width,
                      vocab_size=VOCABULARY, decoder_start_token_id=0, use_cache=False)
    model = T5ForConditionalGeneration(config)

    def draw() -> Batch:
        tokens, labels = (torch.randint(1, VOCABULARY, (6, length)) for length in (source, target))
        return {"input_ids": tokens, "labels": labels}

    return _language(model, [*model.encoder.block, *model.decoder.block], draw)


# The two for GPUs, in bfloat16.


def gpt2_medium(tiny: bool) -> Workload:
    """GPT-2 medium, 355 million parameters, on 8 windows of 1,024 tokens; dropout stays on."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads, window, batch, words = (2, 64, 2, 32, 4, VOCABULARY) if tiny else \
        (24, 1024, 16, 1024, 8, 50257)
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=window, vocab_size=words,
                        bos_token_id=0, eos_token_id=0, use_cache=False)
    model = GPT2LMHeadModel(config)
    return _causal(model, model.transformer.h, batch, window, words)


def llama_1b(tiny: bool) -> Workload:
    """A Llama of 1.24 billion parameters, whose embedding and head are one, on 4 windows of 2,048 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, heads, inner, window, words = (2, 64, 2, 176, 32, VOCABULARY) if tiny else \
        (16, 2048, 32, 8192, 2048, 128256)
    config = LlamaConfig(num_hidden_layers=layers, hidden_size=width, intermediate_size=inner,
                         num_attention_heads=heads, num_key_value_heads=heads // 4 or 1, vocab_size=words,
                         max_position_embeddings=window, tie_word_embeddings=True, use_cache=False)
    model = LlamaForCausalLM(config)
    return _causal(model, model.model.layers, 4, window, words)


# Models of torchvision, and others that return logits.


def _images(model: nn.Module, blocks: Any, batch: int, side: int, classes: int = CLASSES) -> Workload:
    def draw() -> Batch:
        return {"inputs": torch.randn(batch, 3, side, side), "targets": torch.randint(0, classes, (batch,))}

    return Workload(WithLoss(model).train(), draw, lambda loss: loss, list(blocks))


def vit_b_16(tiny: bool) -> Workload:
    from torchvision.models import VisionTransformer

    layers, heads, width = (2, 2, 64) if tiny else (12, 12, 768)
    side = 96 if tiny else 128
    model = VisionTransformer(image_size=side, patch_size=16, num_layers=layers, num_heads=heads, hidden_dim=width,
                              mlp_dim=4 * width, dropout=0.1, num_classes=CLASSES)
    # torchvision initialises the head with zeros: then no gradient would reach anything else in the first step.
    nn.init.trunc_normal_(model.heads.head.weight, std=0.02)
    return _images(model, model.encoder.layers, 8, side)


def resnet50(tiny: bool) -> Workload:
    from torchvision.models import resnet
    from torchvision.models.resnet import Bottleneck, ResNet

    model = ResNet(Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, width_per_group=16) if tiny else resnet.resnet50()
    blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    return _images(model, blocks, 4, 64 if tiny else 224, CLASSES if tiny else 1000)


def mobilenet_v3(tiny: bool) -> Workload:
    from torchvision.models import mobilenet_v3_large, mobilenet_v3_small

    model = mobilenet_v3_small(num_classes=CLASSES, width_mult=0.5) if tiny else mobilenet_v3_large(num_classes=CLASSES)
    return _images(model, model.features, 4 if tiny else 8, 64 if tiny else 192)


def convnext(tiny: bool) -> Workload:
    """With stochastic depth: whole rows of a block's result are dropped at random."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt, convnext_tiny

    if tiny:
        sizes = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, 64, 1), CNBlockConfig(64, None, 1)]
        model = ConvNeXt(sizes, stochastic_depth_prob=0.1, num_classes=CLASSES)
    else:
        model = convnext_tiny(num_classes=CLASSES)
    blocks = [block for stage in model.features[1::2] for block in stage]
    return _images(model, blocks, 4, 64 if tiny else 160)


def efficientnet(tiny: bool) -> Workload:
    from torchvision.models import efficientnet_b0
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    if tiny:
        sizes = [MBConvConfig(1, 3, 1, 32, 16, 1), MBConvConfig(6, 3, 2, 16, 24, 2), MBConvConfig(6, 5, 2, 24, 40, 1)]
        model = EfficientNet(sizes, dropout=0.2, num_classes=CLASSES)
    else:
        model = efficientnet_b0(num_classes=CLASSES)
    blocks = [block for stage in model.features[1:-1] for block in stage]
    return _images(model, blocks, 4 if tiny else 6, 64 if tiny else 160)


def unet(tiny: bool) -> Workload:
    """Classifies every pixel; two levels down and up, with group normalisation and skips."""
    from models import UNet

    batch, side, width = (2, 16, 8) if tiny else (4, 96, 32)
    model = UNet(width)

    def draw() -> Batch:
        return {"inputs": torch.randn(batch, 3, side, side), "targets": torch.randint(0, 4, (batch, side, side))}

    return Workload(WithLoss(model).train(), draw, lambda loss: loss, [*model.down, model.middle, *model.up])


class Experts(nn.Module):
    """Feed-forward experts of which each token takes the best `chosen`, weighted by a softmax over their scores.

    Each expert has room for a fixed number of tokens, and tokens beyond that bypass it (Fedus et al. 2022). So shapes
    do not depend on the data, and routing is a product with a 0-1 tensor, in both directions.
    """

    def __init__(self, width: int, experts: int, chosen: int, spare: float = 1.25) -> None:
        super().__init__()
        self.chosen, self.spare = chosen, spare
        self.router = nn.Linear(width, experts, bias=False)
        self.raise_ = nn.Parameter(torch.randn(experts, width, 4 * width) * width**-0.5)
        self.lower = nn.Parameter(torch.randn(experts, 4 * width, width) * (4 * width) ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        count, experts = tokens.shape[0], self.raise_.shape[0]
        room = int(self.spare * self.chosen * count / experts)
        best, index = self.router(tokens).topk(self.chosen, dim=-1)
        asked = functional.one_hot(index, experts).sum(1)  # [token, expert], 0 or 1
        weight = torch.zeros_like(asked, dtype=x.dtype).scatter(1, index, best.softmax(-1))
        place = (asked.cumsum(0) - 1).masked_fill(asked == 0, room).clamp(max=room)  # `room` means: not to this expert
        dispatch = functional.one_hot(place, room + 1)[..., :room].to(x.dtype)  # [token, expert, place]
        inside = torch.einsum("nec,nd->ecd", dispatch, tokens)
        inside = functional.gelu(inside @ self.raise_) @ self.lower
        return torch.einsum("nec,ecd->nd", dispatch * weight.unsqueeze(-1), inside).view_as(x)


class ExpertBlock(nn.Module):
    """Causal self-attention, then experts, each normalised before and added after."""

    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(width, experts, chosen=2)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.proj(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.experts(self.ln_2(x)))


def experts(tiny: bool) -> Workload:
    """A small mixture of experts over tokens; each of its operators is PyTorch's own."""
    layers, width, window, batch = (2, 64, 64, 8) if tiny else (4, 192, 128, 4)
    blocks = [ExpertBlock(width, width // 32, experts=4) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def draw() -> Batch:
        tokens = torch.randint(0, VOCABULARY, (batch, window + 1))
        return {"inputs": tokens[:, :-1].clone(), "targets": tokens[:, 1:].clone()}

    return Workload(WithLoss(model).train(), draw, lambda loss: loss, blocks)


# Beyond the twelve.


def gpt_small(tiny: bool) -> Workload:
    """The GPT of `corpus/steps/gpt-small` over random bytes: 6 layers, width 384, dropout 0.1."""
    return _gpt(*((2, 48, 16, 2) if tiny else (6, 384, 256, 8)))


def gpt_long(tiny: bool) -> Workload:
    """The same with activations many times as large as the parameters, at any size."""
    return _gpt(*((6, 48, 64, 16) if tiny else (12, 384, 512, 16)))


@functools.cache
def gpt_module() -> Any:
    """The module `corpus/steps/gpt.py`."""
    use_tightfit()
    sys.path[:0] = [str(ROOT / "corpus" / "steps")]
    import gpt

    return gpt


def gpt_of(shape: Any) -> nn.Module:
    """Its model of a shape, with weights by its recipe."""
    gpt = gpt_module()
    model = gpt.Gpt(shape)
    with torch.no_grad():
        for fqn, parameter in model.named_parameters():
            start = gpt.recipe(shape.layers, fqn)
            parameter.normal_(std=start["normal"]["std"]) if "normal" in start else parameter.fill_(start["constant"])
    return model


def _gpt(layers: int, width: int, window: int, batch: int) -> Workload:
    shape = gpt_module().Shape(layers=layers, width=width, heads=6, window=window, batch=batch, dropout=0.1)
    model = gpt_of(shape)

    def draw() -> Batch:
        tokens = torch.randint(0, shape.vocabulary, (batch, window + 1))
        return {"inputs": tokens[:, :-1].clone(), "targets": tokens[:, 1:].clone()}

    return Workload(WithLoss(model).train(), draw, lambda loss: loss, list(model.h))


class Recurrent(nn.Module):
    """An LSTM over tokens, which `tightfit.compile` refuses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(inputs))[0][:, -1])


def lstm(tiny: bool) -> Workload:
    def draw() -> Batch:
        return {"inputs": torch.randint(0, VOCABULARY, (4, 16)), "targets": torch.randint(0, CLASSES, (4,))}

    return Workload(WithLoss(Recurrent(16 if tiny else 128)).train(), draw, lambda loss: loss, [])


TWELVE: Mapping[str, Callable[[bool], Workload]] = {
    "gpt2": gpt2, "llama": llama, "qwen2": qwen2, "bert": bert, "t5": t5, "vit_b_16": vit_b_16, "resnet50": resnet50,
    "mobilenet_v3": mobilenet_v3, "convnext": convnext, "efficientnet": efficientnet, "unet": unet, "experts": experts,
}
BFLOAT16: Mapping[str, Callable[[bool], Workload]] = {"gpt2_medium": gpt2_medium, "llama_1b": llama_1b}
MODELS: Mapping[str, Callable[[bool], Workload]] = {**TWELVE, "gpt_small": gpt_small, "gpt_long": gpt_long, "lstm": lstm, **BFLOAT16}


def build(name: str, *, tiny: bool = False, seed: int = 0, device: torch.device | str = "cpu") -> Workload:
    """The model of this name on a device, with weights of this seed; `tiny` is the size that tests run on every
    change."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16 if name in BFLOAT16 else before)
        with contextlib.nullcontext() if torch.device(device).type == "cpu" else torch.device(device):
            return MODELS[name](tiny)
    finally:
        torch.set_default_dtype(before)


def use_tightfit() -> Any:
    """The package: the installed one, or else the one next to these tests."""
    try:
        import tightfit
    except ImportError:
        sys.path[:0] = [str(ROOT / "python")]
        import tightfit
    return tightfit
