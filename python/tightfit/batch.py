"""A batch as a list of its tensors.

Invariant: a dict goes by its keys, in whatever order they were put in, so a batch means the same to a graph and to
whoever runs it.
"""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree


def ordered(batch: Any) -> Any:
    """The batch with the keys of its dicts in order."""
    if isinstance(batch, dict):
        return {key: ordered(batch[key]) for key in sorted(batch, key=str)}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(ordered, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(ordered, batch))
    return batch


def leaves(batch: Any) -> list[Any]:
    """What an ordered batch is made of."""
    return pytree.tree_leaves(ordered(batch))
