"""Causal masks that transformers builds when it is traced.

Invariant: a call of attention should look like the one that the same model makes in eager mode, and gradients are
eager's, computed by PyTorch's attention of plain products, whose bits differ with and without a mask.

Tier: quick, 25 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from torch import fx, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

tightfit = zoo.use_tightfit()
from tightfit.training import masks  # noqa: E402

ATTENTION = functional.scaled_dot_product_attention


def calls(model: nn.Module, **batch: torch.Tensor) -> list[dict[str, Any]]:
    """The arguments of each call of attention in a captured graph, once masks are left out."""
    found: list[dict[str, Any]] = []

    def backend(module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        masks.leave_out(module)
        for node in module.graph.find_nodes(op="call_function", target=ATTENTION):
            heads = [one.meta["example_value"].shape[1] for one in node.args]
            found.append({**node.kwargs, "heads": heads})
        return module.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=False)(**batch)
    return found


def language(kind: str, **options: Any) -> nn.Module:
    """A small transformers model with four query heads for two key heads."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        num_hidden_layers=1, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
        max_position_embeddings=32, use_cache=False, **options)
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def tokens() -> dict[str, torch.Tensor]:
    words = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    return {"input_ids": words, "labels": words}


@pytest.mark.parametrize(("kind", "options"), [("Llama", {}), ("Mistral", {"sliding_window": 17})])
def test_attention_is_called_as_in_eager_mode(kind: str, options: dict[str, Any]) -> None:
    found = calls(language(kind, **options), **tokens())
    assert len(found) == 1
    for call in found:
        assert call["attn_mask"] is None and call["is_causal"] and call["enable_gqa"]
        assert call["heads"] == [4, 2, 2]


def test_gradients_are_eagers_where_a_mask_would_show() -> None:
    eager, ours = language("Llama"), language("Llama")
    tightfit.compile(ours, "min")
    with sdpa_kernel(SDPBackend.MATH):
        for model in (eager, ours):
            model(**tokens()).loss.backward()
    for (name, one), other in zip(eager.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


@pytest.mark.parametrize(("kind", "options", "batch"), [
    ("Mistral", {"sliding_window": 8}, {}),
    ("Mistral", {"sliding_window": 16}, {}),
    ("Llama", {}, {"attention_mask": torch.ones(2, 16, dtype=torch.long)}),
    ("Llama", {}, {"position_ids": torch.arange(16).expand(2, -1)}),
    ("Llama", {}, {"position_ids": torch.cat([torch.arange(8), torch.arange(8)]).expand(2, -1)}),
])
def test_masks_that_say_more_or_depend_on_the_batch_stay(kind: str, options: dict[str, Any], batch: dict[str, Any]) -> None:
    for call in calls(language(kind, **options), **tokens(), **batch):
        assert isinstance(call["attn_mask"], fx.Node) and not call["is_causal"]


class Own(nn.Module):
    """Attention with a mask of its own."""

    def __init__(self, mask: Callable[[int], torch.Tensor]) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ATTENTION(x, x, x, attn_mask=self.mask(x.shape[-2]))


def causal(length: int) -> torch.Tensor:
    places = torch.arange(length)
    return (places[None, :] <= places[:, None])[None, None]


def written(length: int) -> torch.Tensor:
    places = torch.arange(length)
    places[0] = length
    return (places[None, :] <= places[:, None])[None, None]


def shifted(length: int) -> torch.Tensor:
    places = torch.arange(length)
    places.add_(0)
    return (places[None, :] <= places[:, None] + 1)[None, None]


def seen_through(length: int) -> torch.Tensor:
    """Writes through a view of a view; the result of the write is not read."""
    places = torch.arange(length)
    view = places[1:3].view(2, 1)
    view *= 3
    return (places[None, :] <= torch.arange(length)[:, None])[None, None]


def mapped(length: int) -> torch.Tensor:
    """Calls that do not run without the levels that `vmap` enters and leaves."""
    places = torch.arange(length)
    return torch.vmap(lambda row: places <= row)(places)[None, None]


def drawn(length: int) -> torch.Tensor:
    return (torch.rand(length, length) < 2).tril()[None, None]


def added(length: int) -> torch.Tensor:
    return torch.zeros(1, 1, length, length).masked_fill(~causal(length), float("-inf"))


def test_a_mask_that_a_model_makes_itself_is_its_own() -> None:
    [call] = calls(Own(causal), x=torch.randn(2, 4, 16, 8))
    assert isinstance(call["attn_mask"], fx.Node)


@pytest.mark.parametrize(("mask", "is_left_out"), [
    (causal, True), (written, False), (shifted, False), (seen_through, False), (mapped, False),
    (added, False), (lambda length: causal(2 * length)[..., :length, :length], True),
    (lambda length: causal(length) | causal(length).mT, False),
])
def test_only_what_was_computed_to_be_causal_is_left_out(mask: Callable[[int], torch.Tensor], is_left_out: bool,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_SOURCE", "test_masks.py")
    monkeypatch.setattr(masks, "_CALLER", "test_masks.py")
    [call] = calls(Own(mask), x=torch.randn(2, 4, 16, 8))
    assert (call["attn_mask"] is None) == is_left_out == call.get("is_causal", False)


class Clamped(nn.Module):
    """Writes in place, with results that are not read, around attention whose mask is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = language("Llama").model
        self.register_buffer("steps", torch.zeros(2))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(input_ids=input_ids).last_hidden_state.clone()
        hidden.clamp_(-0.5, 0.5)
        hidden[:, 0].mul_(0.0)
        self.steps.add_(1)
        return hidden.pow(2).sum()


def test_writes_whose_results_are_not_read_stay() -> None:
    eager, ours = Clamped(), Clamped()
    tightfit.compile(ours, "min")
    for model in (eager, ours):
        model(tokens()["input_ids"]).backward()
    assert torch.equal(ours.steps, torch.ones(2))
    for (name, one), other in zip(eager.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


def test_a_mask_that_draws_random_numbers_stays_and_draws_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_SOURCE", "test_masks.py")
    monkeypatch.setattr(masks, "_CALLER", "test_masks.py")
    torch.manual_seed(3)
    [call] = calls(Own(drawn), x=torch.zeros(2, 4, 16, 8))
    assert isinstance(call["attn_mask"], fx.Node)
    after = torch.rand(1)
    torch.manual_seed(3)
    drawn(16)
    assert torch.equal(after, torch.rand(1))
