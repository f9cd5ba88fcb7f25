"""Random language models with random losses: what people put before and after logits.

Invariant: the same seed gives the same model, batch and loss bit for bit, in every process. A loss reads nothing but what
the model made and what the batch gives, and in float64 all of it is in float64.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensors = dict[str, torch.Tensor]
# From what the model made and what the batch gives.
Term = Callable[[Tensors, Tensors], torch.Tensor]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "autocast": torch.float32}
IGNORED = -100
# Fewer rows are one chunk.
LEAST = 272


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float32; what is in float64 stays so."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


# Layers: from width to width.

class Rms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = wide(x)
        found = found * torch.rsqrt(found.square().mean(-1, keepdim=True) + 1e-5)
        return found.to(x.dtype) * self.weight


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Attention(nn.Module):
    """Of each token to those before it, along the second last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projected = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.projected(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, width, bias=False),
    "gelu": lambda width: nn.Sequential(nn.Linear(width, width), nn.GELU()),
    "norm": nn.LayerNorm,
    "rms": Rms,
    "residual": lambda width: Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()),
    "mlp": lambda width: Residual(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width)),
    "attention": lambda width: Residual(Attention(width)),
}


class Gated(nn.Module):
    """Hidden units times others, with biases or without."""

    def __init__(self, width: int, biased: bool) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=biased) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=biased)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Adapted(nn.Module):
    """A frozen product and a learned one of low rank."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width).requires_grad_(False), nn.Linear(4 * width, width)
        self.low, self.high = nn.Linear(width, 4, bias=False), nn.Linear(4, 4 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x) + 0.5 * self.high(self.low(x))))


class Mixed(nn.Module):
    """Hidden units of a token and the one before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        return self.down(torch.tanh(hidden + 0.5 * hidden.roll(1, -2)))


class Routed(nn.Module):
    """Two experts, each token's share by a softmax."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 2, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.router(x).softmax(-1).unbind(-1)
        one, other = self.experts
        return first.unsqueeze(-1) * one(x) + second.unsqueeze(-1) * other(x)


class Heads(nn.Module):
    """Attention of each token to those before it, by heads and written out; `shaped` makes scores of scores."""

    def __init__(self, width: int, shaped: Callable[[torch.Tensor], torch.Tensor], read: int = 3, learned: bool = False) -> None:
        super().__init__()
        self.shaped, self.sizes = shaped, (3, read, read)
        self.asked, self.found = nn.Linear(width, 3 * 8), nn.Linear(width, 2 * read * 8, bias=False)
        self.out = nn.Linear(3 * 8, width)
        self.near = nn.Parameter(0.1 * torch.randn(3, 64)) if learned else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.sizes[1]
        query, key, value = (each.unflatten(-1, (-1, 8)).transpose(-3, -2)
                             for each in (self.asked(x), *self.found(x).chunk(2, -1)))
        if read == 1:
            key, value = (each.expand(*query.shape[:-2], -1, -1) for each in (key, value))
        scores = self.shaped(query @ key.transpose(-2, -1) / 8 ** 0.5)
        places = torch.arange(x.shape[-2])
        distances = places[:, None] - places
        if self.near is not None:
            scores = scores + self.near[:, distances.clamp(0, 63)]
        scores = scores.masked_fill(distances < 0, -math.inf)
        found = functional.softmax(wide(scores), -1).to(value.dtype) @ value
        return self.out(found.transpose(-3, -2).flatten(-2))


# Layers with hidden units, or scores of tokens for each other, that can be divided.
WIDE: dict[str, Callable[[int], nn.Module]] = {
    "gelu mlp": lambda width: Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
    "gated": lambda width: Residual(Rms(width), Gated(width, biased=False)),
    "gated biased": lambda width: Residual(nn.LayerNorm(width), Gated(width, biased=True)),
    "squared mlp": lambda width: Residual(
        Rms(width), nn.Linear(width, 4 * width, bias=False), Mapped(lambda x: functional.relu(x).square()),
        nn.Linear(4 * width, width, bias=False)),
    "deep mlp": lambda width: Residual(
        nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width)),
    "adapted": lambda width: Residual(nn.LayerNorm(width), Adapted(width)),
    "routed": lambda width: Residual(nn.LayerNorm(width), Routed(width)),
    "heads": lambda width: Residual(nn.LayerNorm(width), Heads(width, lambda scores: scores)),
    "capped heads": lambda width: Residual(Rms(width), Heads(width, lambda scores: 2 * torch.tanh(scores / 2), read=1)),
    "near heads": lambda width: Residual(nn.LayerNorm(width), Heads(width, lambda scores: scores, learned=True)),
}
# What may stand between them.
BETWEEN: dict[str, Callable[[int], nn.Module]] = LAYERS | {
    "mixed": lambda width: Residual(Mixed(width)),
    "normed mlp": lambda width: Residual(
        nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width), nn.Linear(4 * width, width)),
}


# What becomes of logits before the loss.

class Scaled(nn.Module):
    """By a factor that is learned: one, or one of each word."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(0.8 + 0.1 * torch.rand(words))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits * self.factor


class Mapped(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = function


class Masked(nn.Module):
    """Some words are never said."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.register_buffer("never", torch.arange(words) % 11 == 3)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.masked_fill(self.never, -9.0)


SHAPES: dict[str, Callable[[int], nn.Module]] = {
    "wide": lambda _: Mapped(wide),
    "cooled": lambda _: Mapped(lambda logits: logits / 1.7),
    "capped": lambda _: Mapped(lambda logits: 3 * torch.tanh(logits / 3)),
    "capped wide": lambda _: Mapped(lambda logits: 3 * torch.tanh(wide(logits) / 3)),
    "scaled": lambda _: Scaled(1),
    "scaled each": Scaled,
    "masked": Masked,
    "normed": lambda _: Mapped(lambda logits: functional.layer_norm(logits, logits.shape[-1:])),
    "fewer": lambda _: Mapped(lambda logits: logits[..., :-7]),
}


class Words(nn.Module):
    """Tokens to logits, by a table, some layers and one or two heads."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.table = nn.Embedding(plan.words, plan.width)
        nn.init.normal_(self.table.weight, std=0.3)
        self.layers = nn.Sequential(*((BETWEEN | WIDE)[name](plan.width) for name in plan.layers))
        self.heads = nn.ModuleList(nn.Linear(plan.width, plan.words, bias=plan.biased) for _ in range(plan.heads))
        if plan.tied:
            self.heads[0].weight = self.table.weight
        self.shaped = nn.Sequential(*(SHAPES[name](plan.words) for name in plan.shaped))

    def forward(self, words: torch.Tensor) -> Tensors:
        exact = self.table.weight.dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16, enabled=self.plan.dtype == "autocast" and not exact):
            hidden = self.layers(self.table(words))
            if self.plan.flat:
                hidden = hidden.flatten(0, -2)
            made = [self._logits(head, hidden) for head in self.heads]
        return {"logits": made[0], "other": made[-1], "hidden": hidden}

    def _logits(self, head: nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        match self.plan.product:
            case "linear":
                logits = head(hidden)
            case "matmul":
                logits = hidden @ head.weight.T
            case "einsum":
                logits = torch.einsum("...i,ji->...j", hidden, head.weight)
        return self.shaped(logits)


# Terms of a loss.

def rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten(0, -2)


def counted(given: Tensors) -> torch.Tensor:
    """Which targets count, one for each row."""
    return (given["targets"] != IGNORED).flatten()


def picked(logarithms: torch.Tensor, given: Tensors) -> torch.Tensor:
    """Of each row, that of its target."""
    return rows(logarithms).gather(-1, given["targets"].flatten().clamp(min=0).unsqueeze(-1)).squeeze(-1)


def averaged(values: torch.Tensor, given: Tensors) -> torch.Tensor:
    """Over the rows that count."""
    counts = counted(given).to(values.dtype)
    return (values * counts).sum() / counts.sum()


def cross_entropy(**options: Any) -> Term:
    return lambda made, given: functional.cross_entropy(rows(made["logits"]), given["targets"].flatten(), **options)


def cross_entropy_sum(made: Tensors, given: Tensors) -> torch.Tensor:
    total = functional.cross_entropy(rows(made["logits"]), given["targets"].flatten(), reduction="sum")
    return total / 100


def cross_entropy_each(made: Tensors, given: Tensors) -> torch.Tensor:
    each = functional.cross_entropy(rows(made["logits"]), given["targets"].flatten(), reduction="none")
    return (each * given["weights"].flatten()).mean()


def padded(made: Tensors, given: Tensors) -> torch.Tensor:
    return functional.cross_entropy(rows(made["logits"]), given["targets"].flatten().clamp(min=0), ignore_index=0)


def weighted_classes(made: Tensors, given: Tensors) -> torch.Tensor:
    weight = torch.linspace(0.5, 1.5, made["logits"].shape[-1]).to(made["logits"].dtype)
    return functional.cross_entropy(rows(made["logits"]), given["targets"].flatten(), weight=weight)


def classes_first(made: Tensors, given: Tensors) -> torch.Tensor:
    logits = made["logits"].reshape(*given["targets"].shape, -1).movedim(-1, 1)
    return functional.cross_entropy(logits, given["targets"])


def in_place(made: Tensors, given: Tensors) -> torch.Tensor:
    """With logits that number their rows as targets do."""
    logits = made["logits"].reshape(*given["targets"].shape, -1)
    logarithms = functional.log_softmax(logits, -1, dtype=None if logits.dtype == torch.float64 else torch.float32)
    return functional.nll_loss(rows(logarithms), given["targets"].flatten())


def shifted(made: Tensors, given: Tensors) -> torch.Tensor:
    """Logits without the last of each sample."""
    logits = made["logits"].reshape(*given["targets"].shape, -1)[..., :-1, :]
    return functional.cross_entropy(rows(logits), given["targets"][..., 1:].flatten())


def smooth_by_hand(made: Tensors, given: Tensors) -> torch.Tensor:
    logarithms = functional.log_softmax(rows(made["logits"]), -1)
    return 0.9 * functional.nll_loss(logarithms, given["targets"].flatten()) - 0.1 * logarithms.mean(-1).mean()


def z(made: Tensors, given: Tensors) -> torch.Tensor:
    return 1e-2 * averaged(wide(rows(made["logits"])).logsumexp(-1).square(), given)


def by_hand(made: Tensors, given: Tensors) -> torch.Tensor:
    return -averaged(picked(functional.log_softmax(made["logits"], -1), given), given)


def from_softmax(made: Tensors, given: Tensors) -> torch.Tensor:
    return -averaged((picked(functional.softmax(wide(made["logits"]), -1), given) + 1e-6).log(), given)


def from_exponentials(made: Tensors, given: Tensors) -> torch.Tensor:
    logits = rows(wide(made["logits"]))
    most = logits.detach().amax(-1, keepdim=True)
    total = (logits - most).exp().sum(-1).log() + most.squeeze(-1)
    return averaged(total - picked(logits, given), given)


def indexed(made: Tensors, given: Tensors) -> torch.Tensor:
    """Looked up by the numbers of row and class."""
    logarithms = functional.log_softmax(rows(made["logits"]), -1)
    targets = given["targets"].flatten().clamp(min=0)
    return -averaged(logarithms[torch.arange(len(targets)), targets], given)


def focal(made: Tensors, given: Tensors) -> torch.Tensor:
    logarithm = picked(functional.log_softmax(wide(made["logits"]), -1), given)
    return -averaged((1 - logarithm.exp()).square() * logarithm, given)


def hot(made: Tensors, given: Tensors) -> torch.Tensor:
    """Against targets that are a probability of each word."""
    targets = functional.one_hot(given["targets"].flatten().clamp(min=0), made["logits"].shape[-1])
    return functional.cross_entropy(rows(made["logits"]), targets.to(made["logits"].dtype))


def binary(made: Tensors, given: Tensors) -> torch.Tensor:
    logits = rows(made["logits"])
    targets = functional.one_hot(given["targets"].flatten().clamp(min=0), logits.shape[-1]).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, targets)


def unlikely(made: Tensors, given: Tensors) -> torch.Tensor:
    """What must not be said: the targets of the samples in reverse."""
    probability = picked(functional.softmax(wide(made["logits"]), -1), {"targets": given["targets"].flip(0)})
    return -averaged(torch.log(1 - probability + 1e-6), given)


def distilled(made: Tensors, given: Tensors) -> torch.Tensor:
    logarithms = functional.log_softmax(rows(wide(made["logits"])) / 2, -1)
    return functional.kl_div(logarithms, functional.softmax(wide(given["teacher"]) / 2, -1), reduction="batchmean")


def distilled_logarithms(made: Tensors, given: Tensors) -> torch.Tensor:
    ours, theirs = (functional.log_softmax(rows(tensor), -1) for tensor in (made["logits"], given["teacher"]))
    return averaged(functional.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1), given)


def distilled_in_reverse(made: Tensors, given: Tensors) -> torch.Tensor:
    ours, theirs = (functional.log_softmax(rows(tensor), -1) for tensor in (made["logits"], given["teacher"]))
    return (ours.exp() * (ours - theirs)).sum(-1).mean()


def distilled_by_itself(made: Tensors, given: Tensors) -> torch.Tensor:
    other = functional.softmax(made["logits"].detach() * 0.5, -1)
    return -(other * functional.log_softmax(made["logits"], -1)).sum(-1).mean()


def entropy(made: Tensors, given: Tensors) -> torch.Tensor:
    logarithms = functional.log_softmax(wide(rows(made["logits"])), -1)
    return 0.1 * averaged((logarithms.exp() * logarithms).sum(-1), given)


def cosine(made: Tensors, given: Tensors) -> torch.Tensor:
    return 1 - functional.cosine_similarity(rows(made["logits"]), given["teacher"], -1).mean()


def squared(made: Tensors, given: Tensors) -> torch.Tensor:
    return 0.1 * functional.mse_loss(rows(made["logits"]), given["teacher"])


def decayed(made: Tensors, given: Tensors) -> torch.Tensor:
    return 1e-3 * wide(made["logits"]).square().mean()


def margin(made: Tensors, given: Tensors) -> torch.Tensor:
    """Of the target to the best other word."""
    logits = wide(rows(made["logits"]))
    best = logits.topk(2, -1).values[:, 1]
    return averaged(functional.relu(0.5 + best - picked(logits, given)), given)


def hinge(made: Tensors, given: Tensors) -> torch.Tensor:
    logits = wide(rows(made["logits"]))
    others = functional.relu(1 + logits - picked(logits, given).unsqueeze(-1))
    return averaged(others.mean(-1), given)


def policy(made: Tensors, given: Tensors) -> torch.Tensor:
    """Clipped ratios to what the probability was."""
    logarithm = picked(functional.log_softmax(wide(made["logits"]), -1), given)
    ratio = (logarithm - logarithm.detach() + 0.3 * (given["weights"].flatten() - 1)).exp()
    gain = given["weights"].flatten() - 0.9
    return -averaged(torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain), given)


def preferred(made: Tensors, given: Tensors) -> torch.Tensor:
    """Of whole samples: the gradient of a row needs the others of its sample."""
    each = picked(functional.log_softmax(wide(made["logits"]), -1), given) * counted(given)
    samples = each.reshape(len(given["targets"]), -1).mean(-1)
    return -functional.logsigmoid(0.5 * (samples - samples.flip(0).detach())).mean()


def perplexity(made: Tensors, given: Tensors) -> torch.Tensor:
    """The gradient depends on the value of the loss."""
    return cross_entropy()(made, given).exp() / made["logits"].shape[-1]


def hidden_squared(made: Tensors, given: Tensors) -> torch.Tensor:
    return 1e-2 * wide(made["hidden"]).square().mean()


def second_head(made: Tensors, given: Tensors) -> torch.Tensor:
    """The next target but one."""
    return functional.cross_entropy(rows(made["other"]), given["targets"].roll(-1, -1).flatten())


def heads_agree(made: Tensors, given: Tensors) -> torch.Tensor:
    ours, theirs = (functional.log_softmax(rows(made[name]), -1) for name in ("logits", "other"))
    return functional.kl_div(ours, theirs.detach(), reduction="batchmean", log_target=True)


MAIN: dict[str, Term] = {
    "mean": cross_entropy(),
    "sum": cross_entropy_sum,
    "each": cross_entropy_each,
    "smooth": cross_entropy(label_smoothing=0.1),
    "smooth by hand": smooth_by_hand,
    "padded": padded,
    "in place": in_place,
    "by hand": by_hand,
    "from softmax": from_softmax,
    "from exponentials": from_exponentials,
    "focal": focal,
    "hot": hot,
    "policy": policy,
    "hinge": hinge,
    "distilled": distilled,
}
FURTHER: dict[str, Term] = {
    "z": z,
    "unlikely": unlikely,
    "distilled logarithms": distilled_logarithms,
    "distilled in reverse": distilled_in_reverse,
    "distilled by itself": distilled_by_itself,
    "entropy": entropy,
    "cosine": cosine,
    "hidden": hidden_squared,
}
OF_TWO: dict[str, Term] = {"second head": second_head, "heads agree": heads_agree}
# What needs other rows, or operators that are not known to compute rows by themselves.
RARE: dict[str, Term] = {
    "weighted classes": weighted_classes,
    "classes first": classes_first,
    "shifted": shifted,
    "margin": margin,
    "preferred": preferred,
    "perplexity": perplexity,
    "indexed": indexed,
    "binary": binary,
    "squared": squared,
    "decayed": decayed,
}
TERMS = MAIN | FURTHER | OF_TWO | RARE
OF_TEACHER = {"distilled", "distilled logarithms", "distilled in reverse", "cosine", "squared"}


# A case.

@dataclass(frozen=True)
class Plan:
    """All that a case is drawn from but for numbers."""

    dtype: str
    words: int
    width: int
    shape: tuple[int, ...]
    layers: tuple[str, ...]
    heads: int
    tied: bool
    biased: bool
    product: str
    flat: bool
    shaped: tuple[str, ...]
    terms: tuple[str, ...]
    ignored: bool
    chunks: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape)

    @property
    def obstacles(self) -> list[str]:
        """What may keep the logits from being divided."""
        found = [term for term in self.terms if term in RARE]
        found += ["einsum"] if self.product == "einsum" else []
        found += ["view of fewer"] if "fewer" in self.shaped and "in place" in self.terms else []
        found += ["fewer of a sample"] if "fewer" in self.shaped and not self.flat and len(self.shape) > 1 else []
        return found + (["few rows"] if self.rows < LEAST else [])

    @property
    def may_be_too_few(self) -> bool:
        """Whether the rows may be too few for two chunks of layers, of which narrow products need more; what is learned of
        heads has all of them."""
        needs_sequences = "near heads" in self.layers and math.prod(self.shape[:-1]) == 1
        return self.rows < LEAST or (self.rows < 2 * LEAST and "routed" in self.layers) or needs_sequences

    @property
    def is_plain(self) -> bool:
        """Whether only logits have a number for each row and word, and they are the largest product that can be divided."""
        largest = len(self.shape) > 1 or "attention" not in self.layers
        return self.heads == 1 and largest and not self.obstacles and not OF_TEACHER & set(self.terms)

    @property
    def sums(self) -> bool:
        """Whether the loss, or a gradient of what makes logits, is a sum over rows but no product of matrices."""
        return self.biased or bool(SUMS & {*self.terms, *self.shaped})


def shape_of(draw: random.Random) -> tuple[int, ...]:
    """Of a batch with 257 … 1100 tokens, no multiple of 256."""
    while True:
        total, leading = draw.randint(257, 1100), draw.choice([(), (1,), (2,), (3,), (5,), (2, 2), (1, 3)])
        samples = math.prod(leading)
        length = total // samples
        if samples * length > 256 and samples * length % 256:
            return (*leading, length)


def shapes_of(draw: random.Random) -> tuple[str, ...]:
    """What is made of logits; those with a number for each word come before some words are left out."""
    drawn = draw.sample(list(SHAPES), draw.choice([0, 0, 1, 1, 2]))
    return tuple(sorted(drawn, key=lambda name: name == "fewer"))


def plan_of(seed: int, dtypes: tuple[str, ...] = tuple(DTYPES)) -> Plan:
    draw = random.Random(seed)
    heads = draw.choice([1, 1, 1, 2])
    terms = [draw.choice(list(RARE if draw.random() < 0.12 else MAIN)), *draw.sample(list(FURTHER), draw.choice([0, 0, 1, 2]))]
    terms += [draw.choice(list(OF_TWO))] if heads == 2 else []
    product = "einsum" if draw.random() < 0.05 else draw.choice(["linear", "linear", "matmul"])
    return Plan(
        dtype=draw.choice(dtypes), words=draw.randint(300, 1500), width=draw.choice([16, 24, 33, 48, 64]),
        shape=shape_of(draw), layers=tuple(draw.choices(list(LAYERS), k=draw.randint(1, 3))), heads=heads,
        tied=draw.random() < 0.5, biased=product == "linear" and draw.random() < 0.4, product=product,
        flat=draw.random() < 0.4, shaped=shapes_of(draw),
        terms=tuple(dict.fromkeys(terms)), ignored=draw.random() < 0.4, chunks=draw.randint(2, 16),
    )


def with_layers(plan: Plan, seed: int) -> Plan:
    """The same with a wide layer, and others before and after it."""
    draw = random.Random(seed)
    layers = [*draw.choices(list(WIDE), k=draw.randint(1, 2)), *draw.choices(list(BETWEEN), k=draw.randint(0, 2))]
    draw.shuffle(layers)
    return replace(plan, layers=tuple(layers), chunks=draw.randint(2, 6))


# What the engine executes, and what of that sums over rows in another way than as a product of matrices, or as a loss.
OF_ENGINE = ("mean", "sum", "padded", "in place", "smooth by hand", "hot", "perplexity", "shifted", "classes first", "decayed")
FURTHER_OF_ENGINE = ("z", "distilled by itself", "entropy")
SUMS = {"hot", "scaled", "scaled each", "decayed"}


def plan_of_engine(seed: int) -> Plan:
    """With one head, in float32, and with bytes as words."""
    draw = random.Random(seed)
    first = draw.choice(OF_ENGINE[:6] if draw.random() < 0.9 else OF_ENGINE[6:])
    terms = (first, *draw.sample(FURTHER_OF_ENGINE, draw.choice([0, 0, 1, 2])))
    while True:
        samples, length = draw.randint(1, 6), draw.randint(32, 400)
        if 256 < samples * length <= 1100 and samples * length % 256:
            break
    return replace(plan_of(seed, ("float32",)), words=draw.randint(263, 700), shape=(samples, length), heads=1, terms=terms,
                   ignored=False)


@dataclass
class Case:
    """A model, its batch and its loss."""

    plan: Plan
    model: nn.Module
    batch: tuple[torch.Tensor, Tensors]
    weights: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan, seed: int) -> Case:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            dtype = DTYPES[plan.dtype]
            model = Words(plan).to(dtype)
            words = torch.randint(plan.words, plan.shape)
            classes = plan.words - 7 * ("fewer" in plan.shaped)
            given = {"targets": torch.randint(classes, plan.shape)}
            if plan.ignored:
                given["targets"][torch.rand(plan.shape) < 0.2] = IGNORED
            if {"each", "policy"} & set(plan.terms):
                given["weights"] = 0.5 + torch.rand(plan.shape)
            if OF_TEACHER & set(plan.terms):
                given["teacher"] = torch.randn(plan.rows, classes).to(dtype)
            weights = [1.0, *(0.1 + torch.rand(len(plan.terms) - 1)).tolist()]
        return cls(plan, model, (words, given), weights)

    def terms(self, made: Tensors, given: Tensors) -> list[torch.Tensor]:
        return [weight * TERMS[name](made, given) for name, weight in zip(self.plan.terms, self.weights, strict=True)]

    def loss(self, made: Tensors, given: Tensors) -> torch.Tensor:
        first, *others = self.terms(made, given)
        return sum(others, start=first)

    @property
    def eps(self) -> float:
        """Of the shortest type of its logits."""
        return torch.finfo(torch.bfloat16 if self.plan.dtype == "autocast" else DTYPES[self.plan.dtype]).eps

    def exact(self) -> tuple[Tensors, float]:
        """The loss and the gradients in float64, by PyTorch's own backward pass, and how large the terms of the loss are."""
        twin = copy.deepcopy(self.model).double()
        words, given = self.batch
        given = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in given.items()}
        terms = self.terms(twin(words), given)
        loss = sum(terms)
        loss.backward()
        named = {name: parameter.grad for name, parameter in twin.named_parameters() if parameter.grad is not None}
        return {"loss": loss.detach(), **named}, sum(abs(term.item()) for term in terms)
