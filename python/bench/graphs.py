"""Graphs on which no setting of the planners was chosen: twenty-four models with random weights, exported and not stored.

Invariant: the same versions of PyTorch, torchvision and transformers write the same graphs. No weight has a value, and
nothing is downloaded: models are built and captured on the device `meta`, and times follow from shapes. AdamW's update is
part of each step.

    python python/bench/graphs.py FOLDER [--only NAME …]
    tightfit-bench curve FOLDER/*.json.gz --known FOLDER/known.json --lower
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tightfit
import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional

Batch = Any
Made = tuple[nn.Module, Callable[..., torch.Tensor] | None, Batch]


# Images.


def images(make: Callable[[], nn.Module], samples: int, size: int = 224) -> Made:
    def loss(logits: Any, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits["out"] if isinstance(logits, dict) else logits, targets)

    dense = "segmentation" in getattr(make, "__module__", "")
    targets = torch.empty((samples, size, size) if dense else (samples,), dtype=torch.int64)
    return make(), loss, (torch.empty(samples, 3, size, size), targets)


class Block(nn.Module):
    """Two convolutions and an embedding of the time, next to a shortcut."""

    def __init__(self, given: int, made: int, heads: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, given), nn.SiLU(), nn.Conv2d(given, made, 3, padding=1))
        self.time = nn.Linear(256, made)
        self.second = nn.Sequential(nn.GroupNorm(8, made), nn.SiLU(), nn.Conv2d(made, made, 3, padding=1))
        self.shortcut = nn.Conv2d(given, made, 1)
        self.norm = nn.GroupNorm(8, made) if heads else None
        self.attention = nn.MultiheadAttention(made, heads, batch_first=True) if heads else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = self.shortcut(x) + self.second(self.first(x) + self.time(time)[..., None, None])
        if self.attention is not None:
            rows = self.norm(x).flatten(2).transpose(1, 2)
            x = x + self.attention(rows, rows, rows, need_weights=False)[0].transpose(1, 2).unflatten(2, x.shape[2:])
        return x


class Denoiser(nn.Module):
    """A U-Net that predicts noise."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 256)) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.down = nn.ModuleList(Block(given, made, 4 * (made >= 256)) for given, made in pairs)
        self.up = nn.ModuleList(Block(2 * made, given, 4 * (given >= 256)) for given, made in reversed(pairs))
        self.last = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        time, x = self.time(time), self.first(x)
        kept = []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.last(x)


def diffusion() -> Made:
    return Denoiser(), functional.mse_loss, ((torch.empty(16, 3, 64, 64), torch.empty(16, 64)), torch.empty(16, 3, 64, 64))


# Language, speech.


def words(model: nn.Module, samples: int, length: int, **options: Any) -> Made:
    tokens = torch.empty(samples, length, dtype=torch.int64)
    return model.to(torch.bfloat16), None, {"input_ids": tokens, "labels": tokens, **options}


def whisper() -> Made:
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536)
    model = transformers.WhisperForConditionalGeneration(config)
    labels = torch.empty(8, 128, dtype=torch.int64)
    return model, None, {"input_features": torch.empty(8, 80, 3000), "labels": labels, "use_cache": False}


class Experts(nn.Module):
    """An MLP of several experts, of which each token takes all, by its weights: dense, so that shapes are known."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.empty(count, width, 2 * width))
        self.down = nn.Parameter(torch.empty(count, 2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        hidden = functional.silu(torch.einsum("bsd,edh->ebsh", x, self.up))
        return torch.einsum("ebsd,bse->bsd", torch.einsum("ebsh,ehd->ebsd", hidden, self.down), weights)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Experts(width, experts) if experts else nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asked = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).movedim(-2, 1)
        query, key, value = asked.unbind(3)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Language(nn.Module):
    def __init__(self, layers: int, width: int, experts: int = 0, vocabulary: int = 32000) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(Layer(width, width // 64, experts) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.table(tokens))).flatten(0, 1)


def language(samples: int, length: int, **options: int) -> Made:
    tokens = torch.empty(samples, length, dtype=torch.int64)
    return Language(**options), lambda logits, targets: functional.cross_entropy(logits, targets.flatten()), (tokens, tokens)


class Recurrent(nn.Module):
    """Cells of two layers, one step after the other."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(2))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [(x.new_zeros(len(x), x.shape[-1]),) * 2 for _ in self.cells]
        made = []
        for step in x.unbind(1):
            for number, cell in enumerate(self.cells):
                states[number] = cell(step, states[number])
                step = states[number][0]
            made.append(step)
        return self.head(torch.stack(made, 1)).flatten(0, 1)


def recurrent(steps: int) -> Made:
    targets = torch.empty(64, steps, dtype=torch.int64)
    return (Recurrent(), lambda logits, targets: functional.cross_entropy(logits, targets.flatten()),
            (torch.empty(64, steps, 512), targets))


MODELS: dict[str, Callable[[], Made]] = {
    **{name: lambda make=make, samples=samples: images(make, samples) for name, make, samples in [
        ("resnet18", torchvision.models.resnet18, 64),
        ("efficientnet_b0", torchvision.models.efficientnet_b0, 32),
        ("convnext_tiny", torchvision.models.convnext_tiny, 32),
        ("swin_t", torchvision.models.swin_t, 32),
        ("densenet121", torchvision.models.densenet121, 32),
        ("shufflenet_v2", torchvision.models.shufflenet_v2_x1_0, 64),
        ("vgg11", torchvision.models.vgg11, 32),
        ("maxvit_t", torchvision.models.maxvit_t, 16),
        ("mobilenet_v2", torchvision.models.mobilenet_v2, 64),
    ]},
    "diffusion": diffusion,
    "qwen3": lambda: words(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=8, head_dim=64, tie_word_embeddings=True)), 4, 1024, use_cache=False),
    "gemma2": lambda: words(transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        vocab_size=256000, hidden_size=1152, intermediate_size=4608, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=144)), 2, 1024, use_cache=False),
    "phi": lambda: words(transformers.PhiForCausalLM(transformers.PhiConfig(
        vocab_size=51200, hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=16)),
        4, 1024, use_cache=False),
    "neox": lambda: words(transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        vocab_size=50432, hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=16)),
        4, 1024, use_cache=False),
    "xlm_roberta": lambda: words(transformers.XLMRobertaForMaskedLM(transformers.XLMRobertaConfig(
        vocab_size=250002, max_position_embeddings=514)), 8, 512),
    "t5": lambda: words(transformers.T5ForConditionalGeneration(transformers.T5Config(
        decoder_start_token_id=0, pad_token_id=0, d_model=768, d_ff=2048, num_layers=12, num_heads=12)), 8, 512),
    "whisper": whisper,
    "experts": lambda: language(4, 1024, layers=8, width=512, experts=4),
    "recurrent": lambda: recurrent(96),
    "deep": lambda: language(4, 512, layers=64, width=512),
    "deeper": lambda: language(2, 256, layers=256, width=256),
    "long_recurrent": lambda: recurrent(512),
    "wide": lambda: language(8, 1024, layers=4, width=2048),
    "deepest": lambda: language(1, 256, layers=1000, width=256),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=sorted(MODELS), metavar="NAME", help=", ".join(MODELS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only or MODELS:
        start = time.perf_counter()
        with torch.device("meta"):
            model, loss, batch = MODELS[name]()
        tightfit.export(model, loss, batch, optimizer="adamw", execute=False, check_size=False, device="cuda",
                        out=options.folder / f"{name}.json.gz", name=name)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
