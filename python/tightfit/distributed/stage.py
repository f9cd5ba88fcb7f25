"""One stage of a pipeline: layers that run one after the other on one rank.

Invariant: what later stages read goes through each stage between, so every message is one from a stage to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from .cutting import Cut, Layer


class Stage(nn.Module):
    """Layers `first` up to `end` of a cut model; `recomputed` says which of them keep no activations."""

    def __init__(self, cut: Cut, first: int, end: int, recomputed: Sequence[bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(cut.layers[first:end])
        self.recomputed = tuple(recomputed)
        self.enters = list(cut.inputs) if first == 0 else _crossing(cut, first)
        is_last = end == len(cut.layers)
        self.leaves = None if is_last else _crossing(cut, end)
        self.outputs, self.structure = cut.outputs, cut.structure

    def forward(self, *arguments: Any) -> Any:
        values = dict(zip(self.enters, arguments, strict=True))
        for layer, again in zip(self.layers, self.recomputed, strict=True):
            assert isinstance(layer, Layer)
            reads = [values[name] for name in layer.reads]
            if again and torch.is_grad_enabled():
                made = checkpoint(layer, *reads, use_reentrant=False)
            else:
                made = layer(*reads)
            values.update(zip(layer.makes, made, strict=True))
        if self.leaves is None:
            results = [values[output] if isinstance(output, str) else output for output in self.outputs]
            return pytree.tree_unflatten(results, self.structure)
        entered = set(self.enters)
        return tuple(_sent(values[name], name in entered) for name in self.leaves)

    def named(self) -> dict[str, nn.Parameter]:
        """The parameters by the names that they have in the model."""
        return {
            name: parameter
            for layer in self.layers
            for name, parameter in layer.get_submodule("body").named_parameters(remove_duplicate=False)
        }


def _crossing(cut: Cut, at: int) -> list[str]:
    """What is there before layer `at` and is read by it or by later ones."""
    there = dict.fromkeys(cut.inputs)
    for layer in cut.layers[:at]:
        there.update(dict.fromkeys(layer.makes))
    wanted = {name for layer in cut.layers[at:] for name in layer.reads}
    wanted.update(name for name in cut.outputs if isinstance(name, str))
    return [name for name in there if name in wanted]


def _sent(value: torch.Tensor, passes: bool) -> torch.Tensor:
    """What leaves a stage. PyTorch takes it off the graph of derivatives in place, which goes neither with views nor with
    what only passes through."""
    return value.clone() if value.requires_grad and (passes or value._is_view()) else value
