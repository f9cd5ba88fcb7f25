"""Sizes of batches that vary from call to call, found by looking at them.

Invariant: a model whose batches all have one shape is captured with that shape. What has varied, and nothing else, is
captured as a size from then on; tensors of the loop are afterwards as they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..extents import LEAST

# What marks a dimension for Dynamo, in different releases of PyTorch.
_MARKS = ("_dynamo_weak_dynamic_indices", "_has_dynamo_dim_marking")

Shapes = tuple[torch.Size, ...]


@dataclass
class _Known:
    """The calls with tensors of certain ranks: the first shapes, for each tensor the dimensions that vary, and all shapes
    so far."""

    first: Shapes
    varying: list[set[int]]
    shapes: set[Shapes] = field(default_factory=set)


@dataclass
class Marking:
    """The shapes with which one model was called; what varied among them is marked."""

    known: dict[tuple[tuple[int, torch.dtype], ...], _Known] = field(default_factory=dict)
    # Whether sizes that vary are captured as such: not after that has failed.
    is_on: bool = True
    # Whether the last call had new shapes.
    is_new: bool = False

    @contextlib.contextmanager
    def marked(self, given: Any) -> Iterator[bool]:
        """The context of a call that is `given` these arguments: what has varied is marked. Yields whether anything
        is."""
        marked = self._mark(given) if self.is_on else []
        try:
            yield bool(marked)
        finally:
            _unmark(marked)

    def _mark(self, given: Any) -> list[torch.Tensor]:
        tensors = [leaf for leaf in pytree.tree_leaves(given) if type(leaf) is torch.Tensor]
        shapes = tuple(tensor.shape for tensor in tensors)
        kind = tuple((tensor.dim(), tensor.dtype) for tensor in tensors)
        known = self.known.setdefault(kind, _Known(shapes, [set() for _ in tensors]))
        self.is_new = shapes not in known.shapes
        if self.is_new:
            known.shapes.add(shapes)
            for varying, before, now in zip(known.varying, known.first, shapes, strict=True):
                varying.update(dimension for dimension, pair in enumerate(zip(before, now, strict=True)) if pair[0] != pair[1])
        marked = []
        for tensor, varying in zip(tensors, known.varying, strict=True):
            dimensions = [dimension for dimension in varying if tensor.shape[dimension] >= LEAST]
            if dimensions and not any(hasattr(tensor, mark) for mark in _MARKS):
                torch._dynamo.maybe_mark_dynamic(tensor, dimensions)
                marked.append(tensor)
        return marked


@contextlib.contextmanager
def marked_along(given: Any, dimension: int | None) -> Iterator[None]:
    """The context of a call that is `given` these arguments: the sizes of its tensors along a dimension, if any, are
    captured as varying."""
    tensors = [] if dimension is None else [leaf for leaf in pytree.tree_leaves(given)
                                            if isinstance(leaf, torch.Tensor) and leaf.dim() > dimension]
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, [dimension])
    try:
        yield
    finally:
        _unmark(tensors)


def _unmark(tensors: Iterable[torch.Tensor]) -> None:
    """Makes tensors what they were before a dimension was marked."""
    for tensor in tensors:
        for mark in _MARKS:
            if hasattr(tensor, mark):
                delattr(tensor, mark)
