"""A small pre-norm GPT over bytes, and how its training steps are exported; the gpt-* steps differ only in numbers.

Invariant: module and parameter names follow GPT-2 (`h.0.attn.qkv.weight`), the output head shares the token
embedding's weight, and initialisation is by recipe, so that no weights file is needed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import tightfit  # noqa: E402


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and of its batch."""

    layers: int
    width: int
    heads: int
    window: int
    batch: int
    dropout: float = 0.0
    vocabulary: int = 256


class Attention(nn.Module):
    """Causal self-attention with one fused query-key-value projection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, window, width = x.shape
        query, key, value = (
            part.view(batch, window, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, window, width))


class Mlp(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(shape.width, 4 * shape.width)
        self.proj = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(functional.gelu(self.fc(x)))


class Block(nn.Module):
    """Attention and MLP, each normalised before and added after, with dropout on what is added."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width)
        self.attn = Attention(shape)
        self.ln_2 = nn.LayerNorm(shape.width)
        self.mlp = Mlp(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attn(self.ln_1(x)))
        return x + self.dropout(self.mlp(self.ln_2(x)))


class Gpt(nn.Module):
    """Bytes in, logits of the next byte out: int64 [batch, window] → float32 [batch, window, vocabulary]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.wte = nn.Embedding(shape.vocabulary, shape.width)
        self.wpe = nn.Embedding(shape.window, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.h = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width)
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over every position, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def recipe(layers: int, fqn: str) -> dict:
    """GPT-2's initialisation: normal 0.02, residual projections scaled by 1/√(2·layers), neutral biases and norms."""
    if fqn.endswith(".bias"):
        return {"constant": 0.0}
    if ".ln_" in f".{fqn}":
        return {"constant": 1.0}
    std = 0.02 / (2 * layers) ** 0.5 if fqn.endswith("proj.weight") else 0.02
    return {"normal": {"mean": 0.0, "std": std}}


def export_step(folder: Path, name: str, shape: Shape, learning_rate: float) -> None:
    """Exports one GPT step into `folder`."""
    torch.set_num_threads(2)
    tokens = torch.zeros(shape.batch, shape.window, dtype=torch.int64)
    dropout = f", dropout {shape.dropout}" if shape.dropout else ""
    tightfit.export(
        Gpt(shape),
        loss,
        (tokens, tokens.clone()),
        optimizer="adamw",
        learning_rate=learning_rate,
        out=folder,
        name=name,
        description=(
            f"A GPT of {shape.layers} layers, width {shape.width}, {shape.heads} heads{dropout}, "
            "predicting the next byte of the King James Version."
        ),
        initialisation=lambda fqn, _: recipe(shape.layers, fqn),
        data={
            "kind": "bytes", "file": "../../data/kjv.txt", "window": shape.window, "batch": shape.batch,
            "sampling_seed": 1, "validation": {"last_fraction": 0.1},
        },
        provenance={
            "made_by": "make.py",
            "data_source": "King James Version, New Testament, from the Debian package bible-kjv-text 4.38",
            "data_licence": "public domain (copyright expired)",
        },
    )
