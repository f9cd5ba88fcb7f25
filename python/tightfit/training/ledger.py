"""What a model's training holds in addition to what the plan of one call covers.

Invariant: nothing is kept alive by being counted here; what the user's code freed no longer counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from .budget import Budget, Members
from .counting import Tally, expired
from .nest import NONE, Demand
from .tier import Tier

# Bytes below which results of a call are not counted: the reserve covers them.
_SMALL = 4096


# A pass that waits for its backward pass, and what a step takes before that.
Moment = tuple["weakref.ref[Pending]", Demand]


@dataclass(eq=False)
class Pending:
    """A forward pass whose backward pass may come: what it saved, and what its backward pass needs.

    `parameters` are those whose gradients it computes and `idle` the other ones that it reads, `given` the arguments
    that it saved, with the `versions` that they had, and `returns` says that all gradients are to be returned to
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
    # The number of its step, if that has planned addresses.
    begun: int | None = None
    # The storages of its batch and buffers; while these references exist, no others have their numbers.
    known: list[StorageWeakRef] = field(default_factory=list)
    # What its caller was given of the memory that it saved, as tensors of its own that share their versions, with the
    # versions that they had: what is saved there may have another one.
    handed: Sequence[tuple[torch.Tensor, int]] = ()
    # The storages of its outputs, with their bytes.
    outputs: list[tuple[StorageWeakRef, int]] = field(default_factory=list)
    # The count of its step, if it is counted.
    tally: Tally | None = None
    # Its batch's elements, as a share of those that its step's graph has, and the bytes that only it holds, if that graph
    # may be larger.
    share: float = 1.0
    size: int | None = None
    # The storages of the loss whose backward pass runs, with their bytes.
    losses: list[tuple[StorageWeakRef, int]] = field(default_factory=list)
    # Bytes of losses that were scaled before that backward pass.
    scaled: int = 0
    # The bytes of the tensors that it was given and saved, by storage: batch and incoming activations, no parameters.
    batch: Mapping[int, int] = field(default_factory=dict)
    # The number of passes that waited when it ran, and the bytes that were held besides its plan.
    depth: int = 0
    beside: int = 0
    # The budget when it ran.
    budget: int | None = None
    # What it holds between its passes in addition to what was there, and what other steps took there, each at one time.
    demand: Demand = NONE
    # What its step was told to take before the backward passes of those that waited when it ran.
    moments: Sequence[Moment] = ()
    inner: tuple[Demand, ...] = ()

    @property
    def storages(self) -> frozenset[int]:
        """The numbers of the storages of its batch and buffers."""
        return frozenset(storage.cdata for storage in self.known)

    def note(self, depth: int) -> None:
        """Notes what the loop holds since this pass when a later one begins, for which `depth` passes wait."""
        if self.tally is not None and self.tally.count.is_running:
            since = self.step.between.held_since
            since[self.depth, depth] = max(since.get((self.depth, depth), 0), self.tally.since())

    def released(self) -> int:
        """Bytes of its outputs that the caller has freed."""
        return expired(self.outputs)

    def own(self) -> list[Any]:
        """Its tensors: what it saved, and those in the memory of what its caller was given."""
        return [*(self.saved or ()), *(tensor for tensor, _ in self.handed)]

    def held(self) -> int:
        """Bytes that only its saved tensors hold."""
        if self.saved is None:
            return 0
        return self.plan.saved if self.size is None else self.size


@dataclass(eq=False)
class Ledger:
    """The bytes of one model's training, by holder."""

    budget: Budget
    # The model and its device, if they are known.
    model: weakref.ref[nn.Module] | None = None
    device: torch.device | None = None
    pending: weakref.WeakSet[Pending] = field(default_factory=weakref.WeakSet)
    # Storages that were given to callers, with their bytes, the forward pass that made them, and whether it saved them.
    outputs: list[tuple[StorageWeakRef, int, Any, bool]] = field(default_factory=list)
    # The forward pass of the running call, if it saved something.
    entered: weakref.ref[Pending] | None = None
    # Storages of losses whose backward pass has run, with their bytes: a loop may keep them.
    losses: list[tuple[StorageWeakRef, int]] = field(default_factory=list)
    # Storages of outputs and gradients that counted steps made: when they are freed during another count, this is reported.
    counted: dict[int, StorageWeakRef] = field(default_factory=dict)
    # Bytes of the losses that were scaled before the last backward pass. Nothing refers to them, and loops usually keep such
    # a loss until they compute the next one.
    scaled: int = 0
    # What the caller of the running call gave, the storages that its graph reads, and those among what was given that it
    # does not read.
    given: Any = ()
    read: frozenset[int] = frozenset()
    unread: list[tuple[StorageWeakRef, int]] = field(default_factory=list)
    # The last backward pass in which gradients were made, and the parameters that had none before.
    fresh: tuple[int, set[int]] = (-1, set())
    # The numbers of passes that waited for calls of the model between whose passes other steps took something, and nothing
    # as far as was seen.
    nested: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    # References to the model's parameters and buffers, and the bytes of their storages, found again before each step that
    # nests in none.
    parts: tuple[list[weakref.ref[torch.Tensor]], dict[int, int]] | None = None
    # Bytes of optimizer state on the model's device: what is reserved for it, and what exists.
    reserved: int = 0
    states: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    # Bytes of the buckets in which data parallelism sums gradients, by its module.
    buckets: weakref.WeakKeyDictionary[nn.Module, int] = field(default_factory=weakref.WeakKeyDictionary)
    # The tier to which tensors of its steps may be moved.
    tier: Tier | None = None
    # Bytes that losses outside of the model took per byte of outputs in 32 bits: between the passes, and in the second.
    shares: tuple[float, float] | None = None
    # The last backward pass that ran while other calls waited for theirs.
    joined: int = -1
    # The nodes of autograd that accumulate gradients, with their parameters, by name: nodes keep parameters alive.
    nodes: dict[str, tuple[torch.Tensor, Any]] = field(default_factory=dict)

    @property
    def members(self) -> Members:
        """The models that have its budget."""
        return self.budget.members

    def __post_init__(self) -> None:
        self.members.ledgers.add(self)

    def forget(self) -> None:
        """Called when the model is gone, or no longer compiled."""
        self.members.ledgers.discard(self)
        self.nodes.clear()
        if self.tier is not None:
            self.tier.close()
            self.tier = None

    @property
    def waits(self) -> bool:
        """Whether a forward pass waits for its backward pass."""
        return any(pending.saved is not None for pending in self.pending)

    def join(self, parallel: nn.parallel.DistributedDataParallel) -> None:
        """Notes that the model is trained by data parallelism: each of its gradients always has a place in a bucket."""
        if parallel not in self.buckets:
            self.buckets[parallel] = sum(parameter.nbytes for parameter in parallel.module.parameters()
                                         if parameter.requires_grad)

    def size(self, gradients: Iterable[torch.Tensor]) -> int:
        """Bytes that gradients hold; a shared storage counts once, and gradients in a bucket count with the bucket."""
        storages = (gradient.untyped_storage() for gradient in gradients if not self._lies_in_bucket(gradient))
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

    def is_joined(self, pending: Pending) -> bool:
        """Whether the running backward pass may go through other calls of the model as well."""
        task = torch._C._current_graph_task_id()
        if any(other is not pending and other.saved is not None for other in self.pending):
            self.joined = task
        return self.joined == task

    def _lies_in_bucket(self, gradient: torch.Tensor) -> bool:
        # With gradient_as_bucket_view=True gradients are views of flat tensors.
        return any(parallel.gradient_as_bucket_view for parallel in self.buckets) and gradient._is_view() \
            and gradient._base.dim() == 1

    def existed(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any gradient existed before the running backward pass began."""
        fresh = self._fresh()
        return any(tensor.grad is not None and id(tensor) not in fresh for tensor in parameters)

    def made(self, parameter: torch.Tensor) -> None:
        """Notes that a parameter got its first gradient in the running backward pass."""
        self._fresh().add(id(parameter))

    def _fresh(self) -> set[int]:
        task = torch._C._current_graph_task_id()
        if self.fresh[0] != task:
            self.fresh = task, set()
        return self.fresh[1]

    def coming(self) -> int:
        """Bytes of optimizer state that are reserved and do not exist yet."""
        return max(self.reserved - sum(self.states.values()), 0)

    def find_unread(self, arguments: Iterable[Any]) -> None:
        """Notes the `arguments` of the running call's graph, and which other tensors the call was given."""
        self.read = storages(arguments)
        given = [item for item in pytree.tree_leaves(self.given)
                 if type(item) is torch.Tensor and item.layout is torch.strided]
        if self.members.is_shared:
            self.members.give(given)
        self.unread = [found for found in _storages(given) if found[0].cdata not in self.read]

    def unread_bytes(self) -> int:
        """Bytes of what the running call was given and its graph does not read."""
        return sum(size for storage, size in self.unread if not storage.expired())

    def keep(self, losses: Iterable[tuple[StorageWeakRef, int]]) -> None:
        """Notes losses whose backward pass has run."""
        known = {storage.cdata for storage, *_ in [*self.losses, *self.outputs] if not storage.expired()}
        self.losses += [loss for loss in losses if loss[0].cdata not in known]

    def count(self, pending: Pending) -> None:
        """Notes that a step was counted."""
        gradients = _storages(gradient for parameter in pending.parameters.values() if (gradient := parameter.grad) is not None)
        known = [*self.counted.values(), *(storage for storage, _ in (*pending.outputs, *gradients))]
        self.counted = {storage.cdata: storage for storage in known if not storage.expired()}

    def uncounted(self, gradients: Iterable[torch.Tensor | None]) -> list[tuple[StorageWeakRef, int]]:
        """The storages of outputs of earlier calls and of these gradients that no counted step made, with their bytes."""
        held = [(storage, size) for storage, size, *_ in self.outputs]
        held += _storages(gradient for gradient in gradients if gradient is not None)
        return [(storage, size) for storage, size in held
                if (known := self.counted.get(storage.cdata)) is None or known.expired()]

    def enter(self, pending: Pending, outputs: Iterable[Any]) -> None:
        """Notes that a forward pass saved something, and gave its outputs to its caller."""
        self.pending.add(pending)
        self.members.enter(pending)
        self.entered = weakref.ref(pending)
        self.hand_out(outputs, self.entered, pending.plan.code.saved_outputs)
        pending.outputs = [(storage, size) for storage, size, owner, _ in self.outputs
                           if owner is not None and owner() is pending]

    def hand_out(self, outputs: Iterable[Any], pending: Any = None, saved: frozenset[int] = frozenset()) -> None:
        """Notes that a forward pass gave these to its caller; it also keeps those at the positions in `saved`."""
        for index, output in enumerate(outputs):
            if isinstance(output, torch.Tensor):
                storage = output.untyped_storage()
                if (size := storage.nbytes()) >= _SMALL:
                    self.outputs.append((StorageWeakRef(storage), size, pending, index in saved))

    def returned(self, results: Iterable[Any]) -> None:
        """Notes the `results` of the running call that lie in what its forward pass saved. They may have other versions
        than the outputs of that pass: AOTAutograd hides from autograd that some are views."""
        pending = None if self.entered is None else self.entered()
        self.entered = None
        if pending is not None and pending.plan.code.saved_outputs:
            saved = storages(pending.saved)
            pending.handed = [(result.detach(), result._version) for result in results
                              if isinstance(result, torch.Tensor) and result.untyped_storage()._cdata in saved]

    def held_outputs(self, pending: Pending) -> int:
        """Bytes of the outputs of a forward pass that its caller still holds."""
        return sum(size for storage, size, owner, saved in self.outputs
                   if owner is not None and owner() is pending and not storage.expired()
                   and not (saved and _is_all(storage, pending.own())))

    def others(self, own: Pending | None = None, accumulated: Iterable[torch.Tensor] = (),
               known: frozenset[int] = frozenset()) -> dict[str, int]:
        """What is held besides a call and its own tensors, by reason; `own` is the call's own forward pass,
        `accumulated` the parameters whose gradients its plan counts, and `known` the storages that it counts."""
        found = self._held(own, accumulated, known)
        seen = known | self.sizes().keys() if self.members.is_shared else known
        beside = sum(other.total(seen) for other in self._neighbors())
        if self.members.is_shared:
            made = {storage.cdata for ledger in self.members.ledgers for storage, *_ in (*ledger.outputs, *ledger.losses, *ledger.unread)}
            kept = {storage for pending in self.members.waiting() for storage in pending.batch}
            found["what other calls were given"] = self.members.given(seen | made | kept)
        found["what other models of the budget hold"] = beside
        return {reason: size for reason, size in found.items() if size}

    def absent(self) -> int:
        """Bytes of gradients that the other models of the budget may get, and do not have."""
        own = self.sizes()
        missing = {tensor.untyped_storage()._cdata: tensor.nbytes for other in self._neighbors() for tensor in other.tensors()
                   if tensor.requires_grad and tensor.grad is None}
        return sum(size for storage, size in missing.items() if storage not in own)

    def tensors(self) -> Iterator[torch.Tensor]:
        """The parameters and buffers that the model has on its device, if it is known."""
        return (tensor for reference in self._parts()[0] if (tensor := reference()) is not None)

    def sizes(self) -> Mapping[int, int]:
        """The bytes of the storages of these, by storage."""
        return self._parts()[1]

    def _parts(self) -> tuple[list[weakref.ref[torch.Tensor]], dict[int, int]]:
        if self.parts is None:
            model = None if self.model is None else self.model()
            found = [] if model is None else [tensor for tensor in (*model.parameters(), *model.buffers())
                                              if self.device is None or tensor.device == self.device]
            self.parts = [weakref.ref(tensor) for tensor in found], \
                {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in found}
        return self.parts

    def _neighbors(self) -> Iterable[Ledger]:
        """The ledgers of the other models that have the same budget, on the same device."""
        return (other for other in self.members.ledgers if other is not self
                and (self.device is None or other.device is None or other.device == self.device))

    def total(self, known: frozenset[int] = frozenset()) -> int:
        """All that the model holds, but what lies in the `known` storages."""
        sizes = self.sizes()
        tensors = sum(sizes.values()) - sum(sizes[storage] for storage in sizes.keys() & known)
        return tensors + self._gradients(known) + sum(self._held(None, (), known).values())

    def _gradients(self, known: frozenset[int]) -> int:
        """Bytes of the gradients of the model's parameters that do not lie in the `known` storages."""
        return self.size(gradient for tensor in self.tensors()
                         if (gradient := tensor.grad) is not None and tensor.untyped_storage()._cdata not in known)

    def _held(self, own: Pending | None, accumulated: Iterable[torch.Tensor], known: frozenset[int]) -> dict[str, int]:
        """What is held besides the model, its gradients and a call, by reason."""
        self.outputs = [found for found in self.outputs if not found[0].expired()]
        waiting = sum(other.held() for other in self.pending if other is not own)
        # What waits keeps its inputs alive; those that are outputs of calls count as such.
        made = {storage.cdata for ledger in self.members.ledgers for storage, *_ in ledger.outputs if not storage.expired()}
        waiting += sum({storage: size for other in self.pending if other is not own and other.saved is not None
                        for storage, size in other.batch.items() if storage not in made and storage not in known}.values())
        given = sum(size for storage, size, pending, saved in self.outputs
                    if pending is None or (other := pending()) is None
                    or not (other is own or storage.cdata in known or (saved and other.saved is not None)))
        state = max(self.reserved, sum(self.states.values()))
        buckets = sum(self.buckets.values())
        if buckets:
            buckets -= sum(parameter.grad.nbytes for parameter in accumulated
                           if parameter.grad is not None and self._lies_in_bucket(parameter.grad))
        self.losses = [found for found in self.losses if not found[0].expired()]
        own_losses = set() if own is None else {storage.cdata for storage, _ in own.losses}
        losses = sum(size for storage, size in self.losses if storage.cdata not in own_losses)
        losses += self.scaled if own is None else 0
        unread = self.unread_bytes()
        found = {"optimizer state": state, "buckets of data parallelism": buckets,
                 "forward passes whose backward pass has not come": waiting, "outputs of other calls": given,
                 "losses of earlier steps": losses, "arguments that the graph does not read": unread}
        return {reason: size for reason, size in found.items() if size}


def storages(items: Iterable[Any]) -> frozenset[int]:
    """The storages of the tensors among some items."""
    return frozenset(item.untyped_storage()._cdata for item in items if isinstance(item, torch.Tensor))


def losses(roots: Iterable[Any]) -> list[tuple[StorageWeakRef, int]]:
    """The storages of the tensors among the roots of a backward pass, with their bytes."""
    return _storages(root for root in roots if type(root) is torch.Tensor and root.layout is torch.strided
                     and not torch._C._functorch.is_functorch_wrapped_tensor(root))


def _storages(tensors: Iterable[torch.Tensor]) -> list[tuple[StorageWeakRef, int]]:
    """The storages of tensors, each once, with their bytes; without small ones, which the reserve covers."""
    found = {storage._cdata: storage for tensor in tensors if (storage := tensor.untyped_storage()).nbytes() >= _SMALL}
    return [(StorageWeakRef(storage), storage.nbytes()) for storage in found.values()]


def _is_all(storage: StorageWeakRef, tensors: Iterable[Any]) -> bool:
    """Whether only these tensors own a storage."""
    behind = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    found = [other for other in behind if other._cdata == storage.cdata]
    # Python's object for a storage is one more owner.
    return bool(found) and torch._C._storage_Use_Count(storage.cdata) <= len(found) + 1
