"""What a loss outside of the model holds, as autograd's graph shows it when a backward pass begins.

Invariant: storages are counted, each once. No hook of saved tensors runs, since nothing is unpacked. What the model's
own calls hold is left out, and so are parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree

from .ledger import Pending

# The most nodes that are visited: losses have a few dozen.
_MOST = 20_000
_LEAF = "torch::autograd::AccumulateGrad"
# The result of these lies in a storage as large as their input (torch 2.15, on CPUs), and a loop may keep it.
_LARGE_RESULTS = ("MseLossBackward0", "SmoothL1LossBackward0")


@dataclass(frozen=True)
class Surveyed:
    """Bytes that autograd's graph of a loss holds, and those that the loss may not have made, such as targets."""

    held: int
    given: int


@dataclass
class Survey:
    """What a backward pass will go through, up to the calls of models that have a plan."""

    # The calls that will be reached.
    pending: list[Pending] = field(default_factory=list)
    # Storages that are saved, or held by results of a loss.
    held: dict[int, _Storage] = field(default_factory=dict)
    # Bytes among them of single numbers in large storages, of which the loop may keep one that it scaled.
    scaled: int = 0
    # Leaves whose gradients are computed without a plan.
    leaves: list[torch.Tensor] = field(default_factory=list)

    def on(self, device: torch.device, known: frozenset[int]) -> Surveyed:
        """What is held on a device, except for known storages."""
        found = [storage for key, storage in self.held.items() if storage.device == device and key not in known]
        return Surveyed(sum(storage.size for storage in found), sum(storage.size for storage in found if storage.is_given))


@dataclass(frozen=True)
class _Storage:
    device: torch.device
    size: int
    # Whether it is not the result of a differentiated operator.
    is_given: bool


def survey(roots: Sequence[Any]) -> Survey:
    """Visits what a backward pass from these tensors, or edges of autograd's graph, will go through."""
    found = Survey()
    ahead = [root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in roots]
    for root in roots:
        if isinstance(root, torch.Tensor):
            _add(found, root)
    last = set(ahead)
    seen: set[Any] = set()
    while ahead and len(seen) < _MOST:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == _LEAF:
            found.leaves.append(node.variable)
            continue
        saved = list(_saved(node))
        calls = [call for tensor in saved if (call := getattr(tensor, "tightfit", None)) is not None]
        if calls:
            found.pending += calls
            continue
        if not saved and _is_hidden(node):
            continue
        for tensor in saved:
            _add(found, tensor)
        if saved and node not in last and node.name() in _LARGE_RESULTS:
            # The graph itself does not refer to this storage.
            found.held[id(node)] = _Storage(saved[0].device, saved[0].nbytes, is_given=False)
            found.scaled += saved[0].nbytes
        ahead += [source for source, _ in node.next_functions]
    return found


def _add(found: Survey, tensor: torch.Tensor) -> None:
    # Tensors that torch.func differentiates have no storage of their own.
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided and not is_wrapped:
        storage = tensor.untyped_storage()
        found.held[storage._cdata] = _Storage(tensor.device, storage.nbytes(), is_given=tensor.is_leaf)


_names: dict[type, tuple[str, ...]] = {}


def _saved(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that a node of autograd's graph saved, as its hooks packed them."""
    if isinstance(node, BackwardCFunction):
        try:
            items: list[Any] = [*(node._raw_saved_tensors or ()), *vars(node).values()]
        except RuntimeError:  # they were freed, as the backward pass is about to report
            items = []
    else:
        kind = type(node)
        if kind not in _names:
            _names[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
        items = [getattr(node, name) for name in _names[kind]]
    return _tensors(items)


def _is_hidden(node: Any) -> bool:
    """Whether hooks replaced all that a compiled call saved, as those of torch.utils.checkpoint do, so that the call
    cannot be identified. A checkpoint repeats the call during the backward pass, and the repetition has a plan."""
    try:
        return isinstance(node, BackwardCFunction) and bool(node._raw_saved_tensors)
    except RuntimeError:  # they are gone
        return False


def _tensors(items: Iterable[Any]) -> Iterator[torch.Tensor]:
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, torch._C._autograd.SavedTensor):
            yield from _tensors([item.data])
        elif isinstance(item, (list, tuple, dict)):
            yield from _tensors(pytree.tree_leaves(item))
