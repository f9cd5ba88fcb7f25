"""Detects whether a model checkpoints activations by itself while it is captured.

Invariant: `torch.utils.checkpoint` is afterwards what it was before.

A capture traces through `torch.utils.checkpoint`: the graph holds the step as it would be without it, and the plan
decides what to recompute.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from torch.utils import checkpoint as library

# What non-reentrant `checkpoint` calls: the second name is PyTorch 2.13's.
_NAMES = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
_GENERATOR = next(name for name in _NAMES if hasattr(library, name))


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Warns at the end of the block if something within it was checkpointed."""
    without_reentrant = getattr(library, _GENERATOR)
    apply = library.CheckpointFunction.apply
    seen: list[str] = []

    def generator(*args, **kwargs):
        seen.append("checkpoint")
        return without_reentrant(*args, **kwargs)

    def function(*args, **kwargs):
        seen.append("checkpoint")
        return apply(*args, **kwargs)

    setattr(library, _GENERATOR, generator)
    library.CheckpointFunction.apply = function
    try:
        yield
    finally:
        setattr(library, _GENERATOR, without_reentrant)
        del library.CheckpointFunction.apply
    if seen:
        warnings.warn(
            "the model checkpoints activations by itself; the graph holds its step without that, and so does the "
            "unplanned peak: plan it under a budget, which decides what is recomputed",
            stacklevel=4,
        )
