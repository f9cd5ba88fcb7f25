"""A batch as the arguments of a model's call, and as a list of its tensors.

Invariant: dicts are ordered by key, not by insertion, so a batch means the same to a graph and to the code that runs
it. Anything that is not a tensor is part of the call and not of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .errors import ExportError

# What a batch may hold besides tensors; a graph keeps these values as they were when it was captured.
_CONSTANTS = (bool, int, float, str, type(None))


def listed(shapes: Iterable[Sequence[int]]) -> str:
    """The shapes of a batch, as messages name them."""
    return " and ".join(str(list(shape)) for shape in shapes) or "nothing"


def pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets. A dict alone holds the model's arguments, and has no targets."""
    if isinstance(batch, Mapping):
        return batch, None
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    raise ExportError(
        "example_batch must be a pair (inputs, targets), or a dict of what the model is called with; where the model "
        "computes its loss itself, give (inputs, None) and loss_fn=None"
    )


def ordered(batch: Any) -> Any:
    """The batch with the keys of its dicts in order; transformers' `BatchEncoding` and the like become dicts."""
    if isinstance(batch, Mapping):
        return {key: ordered(batch[key]) for key in sorted(batch, key=str)}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(ordered, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(ordered, batch))
    return batch


def leaves(batch: Any) -> list[torch.Tensor]:
    """The tensors of an ordered batch."""
    return [leaf for leaf in pytree.tree_leaves(ordered(batch)) if isinstance(leaf, torch.Tensor)]


def resized(batch: Any, dimension: int, size: int, *, now: int | None = None) -> Any:
    """A batch whose tensors have another size along a dimension, where they have it; its values do not matter. With
    `now`, only those of that size."""
    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() <= dimension or leaf.shape[dimension] == size:
            return leaf
        if now is not None and leaf.shape[dimension] != now:
            return leaf
        return leaf.new_zeros([*leaf.shape[:dimension], size, *leaf.shape[dimension + 1:]], requires_grad=leaf.requires_grad)

    return pytree.tree_map(one, batch)


class Shape:
    """An ordered batch without its tensors: how to put it together again."""

    def __init__(self, batch: Any) -> None:
        flat, self._structure = pytree.tree_flatten(batch)
        for leaf in flat:
            if not isinstance(leaf, (torch.Tensor, *_CONSTANTS)):
                raise ExportError(
                    f"the batch holds a {type(leaf).__name__}; pass tensors, numbers, text, or None where there is "
                    "nothing, and bind what else the model needs in the model"
                )
        self._constants = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in flat]

    def filled(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The batch with these tensors, in the order of `leaves`."""
        given = iter(tensors)
        parts = [next(given) if constant is None else constant[0] for constant in self._constants]
        return pytree.tree_unflatten(parts, self._structure)
