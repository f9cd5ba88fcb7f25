"""What a model's training holds beside what the plan of one call knows.

Invariant: nothing is kept alive by being counted here; what the user's code let go counts no more.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from .counting import Tally, expired
from .tier import Tier

# Results of a call that are smaller than this are held by the reserve.
_SMALL = 4096


@dataclass(eq=False)
class Pending:
    """A forward pass whose backward pass may come: what it saved, and how it is to go on.

    `parameters` are those whose gradients it computes and `idle` the other ones that it reads, `given` the arguments
    among what it saved, with the `versions` that they had, and `returns` says that all gradients are to be returned to
    autograd.
    """

    step: Any
    plan: Any
    saved: list[Any] | None
    parameters: Mapping[int, torch.Tensor]
    idle: list[torch.Tensor]
    given: Mapping[int, torch.Tensor]
    versions: Mapping[int, int]
    returns: bool
    # The number of its step where that has planned addresses.
    begun: int | None = None
    # The storages of its batch and buffers.
    known: frozenset[int] = frozenset()
    # The storages of its outputs, with their bytes.
    outputs: list[tuple[StorageWeakRef, int]] = field(default_factory=list)
    # What its step is counted to hold, if it is.
    tally: Tally | None = None

    def released(self) -> int:
        """Bytes of its outputs that the caller has let go."""
        return expired(self.outputs)

    def held(self) -> int:
        """Bytes that only its saved tensors hold."""
        return 0 if self.saved is None else self.plan.saved


@dataclass
class Ledger:
    """The bytes of one model's training, by who holds them."""

    pending: weakref.WeakSet[Pending] = field(default_factory=weakref.WeakSet)
    # Storages that were given to callers, with their bytes, the forward pass whose they are, and whether it saved them.
    outputs: list[tuple[StorageWeakRef, int, Any, bool]] = field(default_factory=list)
    # Bytes of optimizer state on the model's device: what is reserved for it, and what is there.
    reserved: int = 0
    states: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    # Bytes of the buckets in which data parallelism sums gradients, by the module that does.
    buckets: weakref.WeakKeyDictionary[nn.Module, int] = field(default_factory=weakref.WeakKeyDictionary)
    # Where tensors of its steps may be away.
    tier: Tier | None = None
    # What losses outside of the model took for each byte of the outputs in 32 bits: between the passes, and during the backward
    # pass.
    shares: tuple[float, float] | None = None
    # The backward pass that was last seen while other calls waited for theirs.
    joined: int = -1
    # The nodes of autograd that accumulate gradients, with their parameters, by name: they hold the parameters.
    nodes: dict[str, tuple[torch.Tensor, Any]] = field(default_factory=dict)

    def forget(self) -> None:
        """The model is gone."""
        self.nodes.clear()
        if self.tier is not None:
            self.tier.close()
            self.tier = None

    def join(self, parallel: nn.parallel.DistributedDataParallel) -> None:
        """The model is trained by data parallelism: each of its gradients has a place in a bucket, all the time."""
        if parallel not in self.buckets:
            self.buckets[parallel] = sum(parameter.nbytes for parameter in parallel.module.parameters()
                                         if parameter.requires_grad)

    def size(self, gradients: Iterable[torch.Tensor]) -> int:
        """Bytes that gradients hold, several in one storage once; those that lie in a bucket count with the bucket."""
        storages = (gradient.untyped_storage() for gradient in gradients if not self._lies_in_bucket(gradient))
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

    def is_joined(self, pending: Pending) -> bool:
        """Whether the backward pass that runs may go through other calls of the model as well."""
        task = torch._C._current_graph_task_id()
        if any(other is not pending and other.saved is not None for other in self.pending):
            self.joined = task
        return self.joined == task

    def _lies_in_bucket(self, gradient: torch.Tensor) -> bool:
        # With gradient_as_bucket_view=True gradients are views of flat tensors.
        return any(parallel.gradient_as_bucket_view for parallel in self.buckets) and gradient._is_view() \
            and gradient._base.dim() == 1

    def enter(self, pending: Pending, outputs: Iterable[Any]) -> None:
        """A forward pass saved something, and gave its outputs to its caller."""
        self.pending.add(pending)
        self.hand_out(outputs, weakref.ref(pending), pending.plan.code.saved_outputs)
        pending.outputs = [(storage, size) for storage, size, owner, _ in self.outputs
                           if owner is not None and owner() is pending]

    def hand_out(self, outputs: Iterable[Any], pending: Any = None, saved: frozenset[int] = frozenset()) -> None:
        """A forward pass gave these to its caller; those at the positions in `saved` it keeps as well."""
        for index, output in enumerate(outputs):
            if isinstance(output, torch.Tensor):
                storage = output.untyped_storage()
                if (size := storage.nbytes()) >= _SMALL:
                    self.outputs.append((StorageWeakRef(storage), size, pending, index in saved))

    def held_outputs(self, pending: Pending) -> int:
        """Bytes of the outputs of a forward pass that its caller still holds."""
        return sum(size for storage, size, owner, saved in self.outputs
                   if owner is not None and owner() is pending and not storage.expired()
                   and not (saved and _is_all(storage, pending.saved or ())))

    def others(self, own: Pending | None = None, accumulated: Iterable[torch.Tensor] = ()) -> dict[str, int]:
        """What is held beside a call and what it works on, by reason; `own` is the call's own forward pass, and
        `accumulated` the parameters whose gradients its plan counts."""
        self.outputs = [found for found in self.outputs if not found[0].expired()]
        waiting = sum(other.held() for other in self.pending if other is not own)
        given = sum(size for _, size, pending, _ in self.outputs if own is None or pending is None or pending() is not own)
        state = max(self.reserved, sum(self.states.values()))
        buckets = sum(self.buckets.values())
        if buckets:
            buckets -= sum(parameter.grad.nbytes for parameter in accumulated
                           if parameter.grad is not None and self._lies_in_bucket(parameter.grad))
        found = {"optimizer state": state, "buckets of data parallelism": buckets,
                 "forward passes whose backward pass has not come": waiting, "outputs of other calls": given}
        return {reason: size for reason, size in found.items() if size}


def _is_all(storage: StorageWeakRef, tensors: Iterable[Any]) -> bool:
    """Whether nothing but these tensors has a storage."""
    behind = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    found = [other for other in behind if other._cdata == storage.cdata]
    # Python's object for a storage is an owner too, and there is one.
    return bool(found) and torch._C._storage_Use_Count(storage.cdata) <= len(found) + 1
