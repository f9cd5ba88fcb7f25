"""Small models that tests export.

Invariant: each has something the exporter must get right: buffers that change, nested modules, attention, tied or
frozen parameters.
"""

import torch
from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """Convolutions with batch normalisation, on [batch, 3, 8, 8] images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x).mean((2, 3)))


class Normed(nn.Module):
    """A perceptron with batch normalisation, a non-persistent buffer and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 3)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm(self.first(x))) * self.scale
        return self.last(self.frozen(hidden))


class Transformer(nn.Module):
    """PyTorch's own encoder layers over tokens, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 17)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)))


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over every position."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 8, 8), torch.arange(4)


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.randint(0, 17, (2, 7))
    return batch, batch.roll(-1, 1)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(9, 6), torch.randint(0, 3, (9,))


class UNet(nn.Module):
    """Two levels down and up, with skips, group normalisation and transposed convolutions (Ronneberger et al. 2015)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(3, width), self._block(width, 2 * width)])
        self.middle = self._block(2 * width, 4 * width)
        self.raise_ = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)])
        self.up = nn.ModuleList([self._block(4 * width, 2 * width), self._block(2 * width, width)])
        self.head = nn.Conv2d(width, 4, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
                             nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for raise_, block in zip(self.raise_, self.up, strict=True):
            x = block(torch.cat([raise_(x), skips.pop()], 1))
        return self.head(x)


def three_dimensional(tensor):
    """The tensor itself. Pytest would rewrite an assertion in a test file, hence its place here."""
    assert tensor.dim() == 3
    return tensor


class Pixels(nn.Module):
    """Convolutions, batch normalization and pooling; the loss is inside. From sixteen images on, PyTorch chooses other kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Linear(32, 10)

    def forward(self, pixels, labels):
        return functional.cross_entropy(self.head(self.body(pixels).flatten(1)), labels)


def labelled(rows: int, side: int) -> dict[str, torch.Tensor]:
    """Images and their classes, as `Pixels` takes them."""
    return {"pixels": torch.randn(rows, 3, side, side), "labels": torch.randint(0, 10, (rows,))}
