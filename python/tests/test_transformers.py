"""Language models as transformers defines them, exported and trained by the program, compared with PyTorch.

Invariant: models are small, their weights random and made from configurations, so that nothing is fetched; PyTorch
follows with the batches that the engine drew. The program is named by the environment variable `TIGHTFIT_BIN`.

Tier: quick with a part of the cases, 16 s; full with all of them.
"""

import os
from tier import cases

os.environ["HF_HUB_OFFLINE"] = "1"

import math  # noqa: E402

import interpreter  # noqa: E402
import models  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from test_engine import BIN, GRADIENT, compare, losses, parts, run  # noqa: E402
from torch import nn  # noqa: E402

import tightfit  # noqa: E402

transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.skipif(not BIN, reason="TIGHTFIT_BIN does not name the tightfit program")

WINDOW, BATCH, RATE = 24, 3, 3e-3
DECODER = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}


class Logits(nn.Module):
    """A decoder from tokens to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits


class Translated(Logits):
    """An encoder and a decoder: the decoder sees the tokens one place later."""

    def forward(self, tokens):
        return self.model(input_ids=tokens, decoder_input_ids=self.model._shift_right(tokens)).logits


class OwnLoss(Logits):
    """A decoder that computes its loss itself, on the next tokens within the window."""

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens).loss


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER | options))


def qwen2():
    """Biases of queries and keys, a tied head, and a mask made from positions, since there is no cache."""
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**DECODER, tie_word_embeddings=True, use_cache=False))


def mistral():
    """An attention window shorter than the text."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER, sliding_window=8))


def gpt2(dropout):
    sizes = {"vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    chosen = {} if dropout is None else {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **chosen, bos_token_id=0, eos_token_id=0))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=256, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    ))


def own_loss(loss, targets):
    return loss


BUILDS = {
    "llama": (lambda: Logits(llama()), models.token_loss),
    "llama-eager": (lambda: Logits(llama(attn_implementation="eager")), models.token_loss),
    "llama-own-loss": (lambda: OwnLoss(llama(use_cache=False)), own_loss),
    "qwen2": (lambda: Logits(qwen2()), models.token_loss),
    "mistral": (lambda: Logits(mistral()), models.token_loss),
    "gpt2": (lambda: Logits(gpt2(0.0)), models.token_loss),
    "t5": (lambda: Translated(t5()), models.token_loss),
}


def export(folder, corpus, model, loss_fn):
    """The step's folder; its data are the first pages of the corpus's text."""
    (folder / "text").write_bytes((corpus / "data" / "kjv.txt").read_bytes()[:20_000])
    data = {
        "kind": "bytes", "file": "../text", "window": WINDOW, "batch": BATCH, "sampling_seed": 3,
        "validation": {"last_fraction": 0.1},
    }
    tokens = torch.zeros(BATCH, WINDOW, dtype=torch.int64)
    step = folder / "step"
    tightfit.export(model, loss_fn, (tokens, tokens), optimizer="adamw", learning_rate=RATE, out=step, name="step", data=data)
    return step


@pytest.mark.parametrize("name", cases("llama", full=[name for name in BUILDS if name != "llama"]))
def test_losses_are_pytorchs(corpus, tmp_path, name):
    build, loss_fn = BUILDS[name]
    model = build()
    step = export(tmp_path, corpus, model, loss_fn)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    worst = 0.0
    for index in range(1, 7):
        budget = "min" if index % 2 else "100%"
        lines = run(step, "--budget", budget, "--steps", index, "--dump", tmp_path / "dump")
        dump = load_file(tmp_path / "dump")
        optimizer.zero_grad()
        loss = loss_fn(model(dump["batch.input"]), dump["batch.target"])
        loss.backward()
        worst = max(worst, abs(losses(lines)[-1] - loss.item()))
        assert worst <= 1e-5 * max(1.0, loss.item()), f"step {index}: {losses(lines)[-1]} and {loss.item()}"
        if index == 1:  # weights are still the same bits
            theirs = {fqn: parameter.grad for fqn, parameter in model.named_parameters()}
            compare(parts(dump, "gradient."), theirs, GRADIENT, f"{name}, gradients")
        optimizer.step()
    print(f"{name}: worst error of a loss {worst:.1e}")


def test_gpt2_with_its_default_dropout_trains_alike_under_every_budget(corpus, tmp_path):
    step = export(tmp_path, corpus, Logits(gpt2(None)), models.token_loss)
    train = interpreter.read(step / "train.json.gz")
    # One for the embeddings; two in each block, and one for its attention.
    assert sum(node.get("random", False) for node in train["nodes"]) == 1 + 2 * 3
    trained, curves = [], []
    for budget in ("100%", "70%", "min"):
        lines = run(step, "--budget", budget, "--steps", 60, "--save", tmp_path / "weights")
        trained.append(load_file(tmp_path / "weights"))
        curves.append(losses(lines))
    first, last = curves[0][0], sum(curves[0][-10:]) / 10
    assert all(math.isfinite(loss) for loss in curves[0]) and last < 0.75 * first, (first, last)
    assert curves[0] == curves[1] == curves[2]
    assert all(torch.equal(trained[0][key], weights[key]) for weights in trained[1:] for key in trained[0])


def test_an_output_with_names_is_refused(corpus, tmp_path):
    with pytest.raises(tightfit.ExportError, match="returns CausalLMOutputWithPast; .* wrap the model"):
        export(tmp_path, corpus, llama(use_cache=False), lambda output, targets: models.token_loss(output.logits, targets))
    assert not (tmp_path / "step").exists()
