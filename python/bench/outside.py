"""Forty training loops whose loss is computed outside of the model, as people write them: each with a small model, the
loss as a function of outputs and targets, batches, and the body of the loop.

Invariant: a body is the same code whatever runs it, and knows nothing of budgets; the `Turns` that it gets counts and
compares. The same name gives the same weights and batches, bit for bit. A loss that needs a network, weights or
parameters contains them, so that model and loss can also be one module.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

ROWS = 512
VOCABULARY, WINDOW = 1024, 48

Loss = Callable[[Any, Any], torch.Tensor]
Batch = tuple[tuple[torch.Tensor, ...], Any]


class Turns(Protocol):
    """What a body gets: the model, the loss, the optimizer, a batch for each turn, and a way to record results."""

    model: Callable[..., Any]
    loss: Loss
    optimizer: torch.optim.Optimizer

    def batches(self) -> Iterator[Batch]:
        """The batches, each made when its turn comes."""

    def loss_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        """`loss(model(*inputs), targets)`, for bodies that need nothing but the loss."""

    def window(self, inputs: Any, targets: Any) -> contextlib.AbstractContextManager[None]:
        """The code inside is a forward pass, a loss and a backward pass."""

    def record(self, loss: torch.Tensor) -> None:
        """Records what the turn computed: its loss, and the gradients that exist now."""


@dataclass(frozen=True)
class Case:
    """A loop: `make` gives the model and the loss, `draw` the batch of a turn. An optimizer's step follows after
    `turns` turns. If `pairs`, the loss gets the model's output for each of the inputs separately. `early` is the loss
    before the fourth step, if that is a different one. `beside` are bytes that the body takes between forward and
    backward pass for things other than the loss."""

    make: Callable[[], tuple[nn.Module, Loss]]
    draw: Callable[[int], Batch]
    body: Callable[[Turns], None]
    optimizer: str = "sgd"
    turns: int = 1
    autocast: bool = False
    pairs: bool = False
    early: Loss | None = None
    beside: int = 0

    def cast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which model and loss are computed."""
        return torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else contextlib.nullcontext()


# Models.


class Layers(nn.Module):
    """Linear layers with norm and dropout."""

    def __init__(self, inputs: int, outputs: int, width: int = 256, depth: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for norm, linear in zip(self.norms, self.inner, strict=True):
            h = h + self.drop(functional.gelu(linear(norm(h))))
        return h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Heads(Layers):
    """Classes and a box, by name."""

    def __init__(self, inputs: int, classes: int, box: int) -> None:
        super().__init__(inputs, classes)
        self.box = nn.Linear(256, box)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.features(x)
        return {"classes": self.head(h), "box": self.box(h)}


class Coder(Layers):
    """A variational autoencoder."""

    def __init__(self, inputs: int, latent: int = 32) -> None:
        super().__init__(inputs, 2 * latent)
        self.decode = nn.Sequential(nn.Linear(latent, 256), nn.GELU(), nn.Linear(256, inputs))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = self.head(self.features(x)).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread


class Pixels(nn.Module):
    """Convolutions that keep the size of an image."""

    def __init__(self, outputs: int, width: int = 16) -> None:
        super().__init__()
        widths = [3, width, 2 * width, width]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:], strict=False))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.relu(norm(convolution(x)))
        return self.head(x)


class Block(nn.Module):
    """Causal attention by hand, and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, window, width = x.shape
        parts = self.qkv(self.before(x)).view(rows, window, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).masked_fill(mask, -math.inf)
        mixed = (self.drop(scores.softmax(-1)) @ value).transpose(1, 2).reshape(rows, window, width)
        x = x + self.out(mixed)
        return x + self.drop(self.down(functional.gelu(self.up(self.between(x)))))


class Language(nn.Module):
    """A transformer over tokens, or over frames if their width is given."""

    def __init__(self, outputs: int = VOCABULARY, width: int = 64, frames: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width) if frames is None else nn.Linear(frames, width)
        self.place = nn.Parameter(torch.randn(WINDOW, width) / 8)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x) + self.place
        mask = torch.ones(WINDOW, WINDOW, dtype=torch.bool, device=h.device).triu(1)
        for block in self.blocks:
            h = block(h, mask)
        return self.head(h)


class Bags(nn.Module):
    """The mean of the embeddings of a few words, and a layer on top."""

    def __init__(self, outputs: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, outputs)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(self.embed(words).mean(1))))


# Losses that are more than one call of PyTorch.


def flattened(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), tokens.view(-1))


def padded(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The next token, as transformers' models compute it: both are shifted, and padding is ignored."""
    shifted, following = logits[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return functional.cross_entropy(shifted.view(-1, shifted.size(-1)), following.view(-1), ignore_index=-100)


def focal(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    probability = torch.sigmoid(logits)
    entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    right = probability * targets + (1 - probability) * (1 - targets)
    weight = 0.25 * targets + 0.75 * (1 - targets)
    return (weight * (1 - right) ** 2 * entropy).mean()


def dice(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    probability = torch.sigmoid(logits)
    common = (probability * masks).sum((2, 3))
    overlap = (2 * common + 1) / (probability.sum((2, 3)) + masks.sum((2, 3)) + 1)
    return 1 - overlap.mean() + functional.binary_cross_entropy_with_logits(logits, masks)


def nt_xent(features: torch.Tensor, _: Any) -> torch.Tensor:
    """Each row's other view is half the batch away; all other rows are its negatives."""
    features = functional.normalize(features)
    similarity = features @ features.T / 0.5
    own = torch.eye(len(features), dtype=torch.bool)
    rows = torch.arange(len(features))
    return functional.cross_entropy(similarity.masked_fill(own, -1e9), rows.roll(len(features) // 2))


def info_nce(pair: Any, _: Any) -> torch.Tensor:
    first, second = (functional.normalize(features) for features in pair)
    logits = first @ second.T / 0.07
    rows = torch.arange(len(first))
    return (functional.cross_entropy(logits, rows) + functional.cross_entropy(logits.T, rows)) / 2


def triplet(features: torch.Tensor, _: Any) -> torch.Tensor:
    return functional.triplet_margin_loss(*features.chunk(3), margin=1.0)


def cosine(features: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    first, second = features.chunk(2)
    return functional.cosine_embedding_loss(first, second, signs, margin=0.2)


def ctc(logits: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    logs = logits.log_softmax(2).transpose(0, 1)
    frames = torch.full((len(letters),), logs.size(0), dtype=torch.long)
    lengths = torch.full((len(letters),), letters.size(1), dtype=torch.long)
    return functional.ctc_loss(logs, letters, frames, lengths)


def gaussian(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mean, spread = outputs.chunk(2, 1)
    return functional.gaussian_nll_loss(mean, targets, functional.softplus(spread) + 1e-3, full=True)


def poisson(outputs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return functional.poisson_nll_loss(outputs, counts, full=True)


def several(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    near = functional.mse_loss(outputs, targets)
    angle = 1 - functional.cosine_similarity(outputs, targets).mean()
    return near + 0.5 * functional.l1_loss(outputs, targets) + 0.1 * angle


def squared(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, classes) + 1e-3 * logits.square().mean()


def sparse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(outputs, targets) + 1e-3 * outputs.abs().mean()


def both(outputs: dict[str, torch.Tensor], targets: Any) -> torch.Tensor:
    classes, box = targets
    return functional.cross_entropy(outputs["classes"], classes) + functional.smooth_l1_loss(outputs["box"], box)


def masked(outputs: torch.Tensor, targets: Any) -> torch.Tensor:
    values, mask = targets
    return (functional.mse_loss(outputs, values, reduction="none") * mask).sum() / mask.sum()


def selected(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Over the selected elements, whose number changes from batch to batch."""
    there = ~targets.isnan()
    return functional.huber_loss(outputs[there], targets[there])


def elbo(outputs: Any, inputs: torch.Tensor) -> torch.Tensor:
    logits, mean, spread = outputs
    divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
    return functional.binary_cross_entropy_with_logits(logits, inputs, reduction="sum") / len(inputs) + divergence


def divergence(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Larger than what `early` takes: distributions over all outputs, and each row against each."""
    logs, wanted = outputs.log_softmax(1), targets.softmax(1)
    apart = torch.cdist(outputs, targets).mean()
    return functional.kl_div(logs, wanted, reduction="batchmean") + (logs.exp() - wanted).square().sum(1).mean() + apart


class Fused(torch.autograd.Function):
    """Cross entropy that computes its gradient in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        logs = logits.log_softmax(1)
        gradient = logs.exp()
        gradient[torch.arange(len(classes)), classes] -= 1
        ctx.save_for_backward(gradient / len(classes))
        return functional.nll_loss(logs, classes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None


class Distilled:
    """Trains a student to match its teacher, a plain network."""

    def __init__(self, teacher: nn.Module, temperature: float = 2.0) -> None:
        self.teacher, self.temperature = teacher.eval().requires_grad_(False), temperature

    def __call__(self, logits: torch.Tensor, targets: Any) -> torch.Tensor:
        inputs, classes = targets
        with torch.no_grad():
            soft = functional.softmax(self.teacher(inputs) / self.temperature, 1)
        near = functional.kl_div(functional.log_softmax(logits / self.temperature, 1), soft, reduction="batchmean")
        return near * self.temperature**2 + functional.cross_entropy(logits, classes)


class Perceived:
    """Trains images to look alike to a frozen network, and to be alike."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network.eval().requires_grad_(False)

    def __call__(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.network(images), self.network(targets)) + functional.l1_loss(images, targets)


class Margin(nn.Module):
    """Classes by their angles, with a margin: a head with parameters that is part of the loss."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width))

    def forward(self, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        cosines = functional.linear(functional.normalize(features), functional.normalize(self.weight))
        angles = torch.acos(cosines.clamp(-1 + 1e-6, 1 - 1e-6))
        own = functional.one_hot(classes, cosines.size(1)).to(cosines.dtype)
        return functional.cross_entropy(30.0 * (own * torch.cos(angles + 0.3) + (1 - own) * cosines), classes)


class Uncertain(nn.Module):
    """Two losses, weighted by parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))

    def forward(self, outputs: dict[str, torch.Tensor], targets: Any) -> torch.Tensor:
        classes, box = targets
        losses = torch.stack([functional.cross_entropy(outputs["classes"], classes),
                              functional.mse_loss(outputs["box"], box)])
        return (torch.exp(-self.logs) * losses + self.logs).sum()


# Bodies.


def plain(run: Turns) -> None:
    """`loss(model(inputs), targets)` in one line."""
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            loss = run.loss_of(inputs, targets)
            loss.backward()
        run.record(loss)
        run.optimizer.step()


def named(run: Turns) -> None:
    """The outputs have a name, which keeps them until the next ones exist."""
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            outputs = run.model(*inputs)
            loss = run.loss(outputs, targets)
            loss.backward()
        run.record(loss)
        run.optimizer.step()


def dropped(run: Turns) -> None:
    """The outputs are freed before the backward pass."""
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            outputs = run.model(*inputs)
            loss = run.loss(outputs, targets)
            del outputs
            loss.backward()
        run.record(loss)
        run.optimizer.step()


def watched(run: Turns) -> None:
    """A metric is computed between the passes, and its inputs stay."""
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            outputs = run.model(*inputs)
            loss = run.loss(outputs, targets)
            with torch.no_grad():
                probabilities = outputs.softmax(1)
                accuracy = (probabilities.argmax(1) == targets).float().mean().item()
                entropy = -(probabilities * probabilities.log()).sum(1).mean().item()
            loss.backward()
        run.record(loss)
        run.optimizer.step()
    assert 0 <= accuracy <= 1 and entropy >= 0


def summed(run: Turns) -> None:
    """Losses are kept in a list, detached, and as a number."""
    losses, total = [], 0.0
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            loss = run.loss_of(inputs, targets)
            losses.append(loss.detach())
            total += loss.item()
            loss.backward()
        run.record(loss)
        run.optimizer.step()
    assert math.isclose(total, sum(loss.item() for loss in losses), rel_tol=1e-5)


def kept(run: Turns) -> None:
    """The losses themselves are kept, with everything that they refer to."""
    history = []
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            outputs = run.model(*inputs)
            loss = run.loss(outputs, targets)
            loss.backward()
        history.append(loss)
        run.record(loss)
        run.optimizer.step()


def cast(run: Turns) -> None:
    """Mixed precision."""
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = run.loss_of(inputs, targets)
            loss.backward()
        run.record(loss)
        run.optimizer.step()


def accumulated(run: Turns) -> None:
    """A step follows after three batches."""
    run.optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(run.batches(), 1):
        with run.window(inputs, targets):
            loss = run.loss_of(inputs, targets) / 3
            loss.backward()
        run.record(loss)
        if number % 3 == 0:
            run.optimizer.step()
            run.optimizer.zero_grad()


def scaled(run: Turns) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        with run.window(inputs, targets):
            outputs = run.model(*inputs)
            loss = run.loss(outputs, targets)
            scaler.scale(loss).backward()
        run.record(loss)
        scaler.step(run.optimizer)
        scaler.update()


def twice(run: Turns) -> None:
    """The model is called for each of two views."""
    for inputs, targets in run.batches():
        run.optimizer.zero_grad()
        first, second = inputs
        with run.window(inputs, targets):
            loss = run.loss((run.model(first), run.model(second)), targets)
            loss.backward()
        run.record(loss)
        run.optimizer.step()


# Batches, from PyTorch's default generator.


def values(width: int, outputs: int, rows: int = ROWS) -> Callable[[int], Batch]:
    return lambda _: ((torch.randn(rows, width),), torch.randn(rows, outputs))


def classes(width: int, count: int, rows: int = ROWS) -> Callable[[int], Batch]:
    return lambda _: ((torch.randn(rows, width),), torch.randint(0, count, (rows,)))


def images(outputs: int, size: int = 40) -> Callable[[int], Batch]:
    return lambda _: ((torch.randn(8, 3, size, size),), torch.randn(8, outputs, size, size))


def labels(width: int, count: int) -> Callable[[int], Batch]:
    return lambda _: ((torch.randn(ROWS, width),), (torch.rand(ROWS, count) < 0.1).float())


def masks(_: int) -> Batch:
    return (torch.randn(8, 3, 40, 40),), (torch.rand(8, 4, 40, 40) < 0.3).float()


def tokens(_: int) -> Batch:
    """Tokens, and those that follow them."""
    found = torch.randint(0, VOCABULARY, (8, WINDOW + 1))
    return (found[:, :-1].clone(),), found[:, 1:].clone()


def sentences(_: int) -> Batch:
    """Tokens of which some are padding, which targets mark."""
    found = torch.randint(0, VOCABULARY, (8, WINDOW))
    there = torch.arange(WINDOW) < torch.randint(8, WINDOW, (8, 1))
    return (found,), found.masked_fill(~there, -100)


def bags(rows: int, pairs: bool = False) -> Callable[[int], Batch]:
    """A few words a row; for pairs, whether they belong together."""
    return lambda _: ((torch.randint(0, VOCABULARY, (rows, 12)),),
                      torch.randint(0, 2, (rows // 2,)) * 2 - 1 if pairs else None)


def speech(_: int) -> Batch:
    return (torch.randn(8, WINDOW, 80),), torch.randint(1, 256, (8, 12))


def counts(_: int) -> Batch:
    return (torch.randn(ROWS, 64),), torch.poisson(torch.full((ROWS, 512), 3.0))


def boxed(_: int) -> Batch:
    return (torch.randn(ROWS, 64),), (torch.randint(0, 256, (ROWS,)), torch.randn(ROWS, 256))


def distilled(_: int) -> Batch:
    inputs = torch.randn(ROWS, 64)
    return (inputs,), (inputs, torch.randint(0, 256, (ROWS,)))


def seen(_: int) -> Batch:
    return (torch.randn(ROWS, 64),), (torch.randn(ROWS, 512), (torch.rand(ROWS, 512) < 0.7).float())


def more_and_more(step: int) -> Batch:
    """The share of selected elements grows."""
    targets = torch.randn(ROWS, 512)
    return (torch.randn(ROWS, 64),), targets.masked_fill(torch.rand(ROWS, 512) > 0.15 * (step + 1), math.nan)


def itself(_: int) -> Batch:
    inputs = torch.rand(ROWS, 400)
    return (inputs,), inputs


def views(_: int) -> Batch:
    return (torch.randn(ROWS, 64), torch.randn(ROWS, 64)), None


def called(function: Callable[..., torch.Tensor], **options: Any) -> Loss:
    """A loss of PyTorch's with options."""
    return lambda outputs, targets: function(outputs, targets, **options)


entropy = functional.cross_entropy
LOOPS: dict[str, Case] = {
    "mse": Case(lambda: (Layers(64, 512), functional.mse_loss), values(64, 512), plain),
    "l1": Case(lambda: (Layers(64, 512), functional.l1_loss), values(64, 512), named),
    "smooth_l1": Case(lambda: (Pixels(8), functional.smooth_l1_loss), images(8), plain),
    "huber": Case(lambda: (Pixels(3), nn.HuberLoss(delta=0.5)), images(3), named),
    "cross_entropy": Case(lambda: (Layers(64, 1000), entropy), classes(64, 1000), plain, "adamw"),
    "small_head": Case(lambda: (Layers(64, 10), nn.CrossEntropyLoss()), classes(64, 10), named, "adamw"),
    "label_smoothing": Case(lambda: (Layers(64, 1000), nn.CrossEntropyLoss(label_smoothing=0.1)), classes(64, 1000), named),
    "class_weights": Case(lambda: (Layers(64, 512), nn.CrossEntropyLoss(weight=torch.rand(512) + 0.5)),
                          classes(64, 512), plain),
    "ignore_index": Case(lambda: (Language(), padded), sentences, named, "adamw"),
    "flattened": Case(lambda: (Language(), flattened), tokens, named, "adamw"),
    "bce_with_logits": Case(lambda: (Layers(64, 400), nn.BCEWithLogitsLoss(pos_weight=torch.full((400,), 5.0))),
                            labels(64, 400), named),
    "focal": Case(lambda: (Layers(64, 400), focal), labels(64, 400), plain),
    "dice": Case(lambda: (Pixels(4), dice), masks, named),
    "nt_xent": Case(lambda: (Bags(), nt_xent), bags(768), plain, "adamw"),
    "triplet": Case(lambda: (Bags(256), triplet), bags(1536), named),
    "cosine_embedding": Case(lambda: (Bags(256), cosine), bags(1024, pairs=True), plain),
    "ctc": Case(lambda: (Language(256, frames=80), ctc), speech, named, "adamw"),
    "distillation": Case(lambda: (Layers(64, 256), Distilled(Layers(64, 256, 512))), distilled, plain),
    "gaussian_nll": Case(lambda: (Layers(64, 512), gaussian), values(64, 256), named),
    "poisson_nll": Case(lambda: (Layers(64, 512), poisson), counts, plain),
    "several": Case(lambda: (Layers(64, 512), several), values(64, 512), named),
    "squared_outputs": Case(lambda: (Layers(64, 512), squared), classes(64, 512), named, "adamw"),
    "absolute_outputs": Case(lambda: (Layers(64, 512), sparse), values(64, 512), plain),
    "metric": Case(lambda: (Layers(64, 1000), entropy), classes(64, 1000), watched, beside=3 * ROWS * 4000),
    "two_heads": Case(lambda: (Heads(64, 256, 256), both), boxed, named, "adamw"),
    "losses_in_a_list": Case(lambda: (Layers(64, 512), functional.mse_loss), values(64, 512), summed),
    "history": Case(lambda: (Layers(64, 512), entropy), classes(64, 512), kept),
    "autocast": Case(lambda: (Language(), flattened), tokens, cast, "adamw", autocast=True),
    "accumulation": Case(lambda: (Layers(64, 512), entropy), classes(64, 512), accumulated, "adamw", turns=3),
    "scaler": Case(lambda: (Layers(64, 512), functional.mse_loss), values(64, 512), scaled),
    "masked_mean": Case(lambda: (Layers(64, 512), masked), seen, named),
    "selected": Case(lambda: (Layers(64, 512), selected), more_and_more, named),
    "outputs_dropped": Case(lambda: (Layers(64, 1000), entropy), classes(64, 1000), dropped),
    "own_function": Case(lambda: (Layers(64, 512), Fused.apply), classes(64, 512), plain),
    "margin_head": Case(lambda: (Layers(64, 128), Margin(128, 500)), classes(64, 500), plain),
    "uncertainty": Case(lambda: (Heads(64, 256, 256), Uncertain()), boxed, named),
    "two_calls": Case(lambda: (Layers(64, 128), info_nce), views, twice, pairs=True),
    "switch": Case(lambda: (Layers(64, 512), divergence), values(64, 512), named, early=functional.mse_loss),
    "perceptual": Case(lambda: (Pixels(3), Perceived(Pixels(16))), images(3), plain),
    "autoencoder": Case(lambda: (Coder(400), elbo), itself, named, "adamw"),
}
