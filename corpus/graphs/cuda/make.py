"""Makes the planning graphs of this folder: seven models, each with a whole training step as CUDA runs it.

Run from anywhere, with `tightfit`, transformers and torchvision installed: `python corpus/graphs/cuda/make.py`. The same
versions give the same bytes. No GPU is needed, and no memory: models are on the `meta` device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional
from torchvision import models
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import tightfit

HERE = Path(__file__).resolve().parent
STEP = tuple[nn.Module, Callable[..., torch.Tensor] | None, Any]

# Batches without padding need no mask, as transformers finds out by itself where it is not traced: attention is causal or
# full by its own flag, and FlashAttention takes it.
transformers.AttentionInterface.register("unmasked", sdpa_attention_forward)
transformers.AttentionMaskInterface.register("unmasked", lambda *_, **__: None)


def language(config: Any, kind: type[nn.Module], batch: int, window: int) -> STEP:
    """A language model on full windows, in bfloat16; it computes its own loss."""
    config._attn_implementation = "unmasked"
    model = kind(config).to(torch.bfloat16).train()
    tokens = torch.empty(batch, window, dtype=torch.int64)
    words = {"input_ids": tokens, "labels": tokens}
    return model, None, words if kind is transformers.BertForMaskedLM else words | {"use_cache": False}


def images(model: nn.Module, batch: int, dtype: torch.dtype) -> STEP:
    """A classifier of images of 224 pixels a side into a thousand classes."""
    inputs = torch.empty(batch, 3, 224, 224, dtype=dtype)
    return model.to(dtype).train(), functional.cross_entropy, (inputs, torch.empty(batch, dtype=torch.int64))


def llama_1b() -> STEP:
    """The shape of Llama 3.2 1B, whose embedding is its head as well."""
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072, tie_word_embeddings=True,
    )
    return language(config, transformers.LlamaForCausalLM, 2, 2048)


GPT2 = transformers.GPT2Config
GRAPHS: dict[str, Callable[[], STEP]] = {
    "gpt2_small_b8_s512": lambda: language(GPT2(), transformers.GPT2LMHeadModel, 8, 512),
    "gpt2_medium_b4_s1024": lambda: language(
        GPT2(n_embd=1024, n_layer=24, n_head=16), transformers.GPT2LMHeadModel, 4, 1024),
    "llama_1b_b2_s2048": llama_1b,
    "bert_base_b16_s512": lambda: language(transformers.BertConfig(), transformers.BertForMaskedLM, 16, 512),
    "vit_b16_b32": lambda: images(models.vit_b_16(), 32, torch.bfloat16),
    "resnet50_b32": lambda: images(models.resnet50(), 32, torch.float32),
    "mobilenet_v3_large_b64": lambda: images(models.mobilenet_v3_large(), 64, torch.float32),
}


def main() -> None:
    for name, build in GRAPHS.items():
        with torch.device("meta"):
            model, loss, batch = build()
        out = HERE / f"{name}.json.gz"
        tightfit.export(model, loss, batch, optimizer=torch.optim.AdamW, execute=False, device="cuda", out=out,
                        name=f"{name}_cuda")
        print(f"{out.name}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
