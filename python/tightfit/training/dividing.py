"""Whether the loss of a step is computed in chunks of rows, and its layers, and in how many: decided with each plan.

Invariant: where the planner decides, chunks compute the bits that all rows at once do: products of some rows were
compared with the same rows of the whole, on tensors of these shapes and strides, on this device; of what rounds otherwise
at the end of a loop, loops over chunks end where loops over the whole do.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .. import _native, cache
from ..calls import TORCH_DTYPES, overload
from ..errors import InfeasibleBudget, OptionError
from ..given import asked
from ..measure import Call, arguments, is_out_of_memory, values_of
from .counting import Count

if TYPE_CHECKING:
    from .execution import Plan

WHOLE = "off"
# Whatever number of chunks changes no bit.
EQUAL = "equal"
# The most chunks, in which a step holds the least, and others that are tried where so few rows have other bits.
_MOST, _FEWER = "16", ("8", "4", "2")
# One that changes bits, and holds less.
_TOTALS = "16:totals"
# In how many chunks layers are, and what stands for a loss that is in none.
_LAYERS, _NO_CHUNKS = "+4", "1"
# Bytes of a cache line. Tensors begin with one.
_LINE = 64
# Products, whose inner sums may be shared out among threads if their rows are few.
_PRODUCTS = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}
# Calls that compute each row by itself, or each column, or nothing.
_ROWS = {
    "_log_softmax", "_log_softmax_backward_data", "_safe_softmax", "_softmax", "_softmax_backward_data", "_unsafe_index",
    "_unsafe_view", "addmm", "all", "amax", "amin", "any", "argmax", "argmin", "bmm", "cat", "embedding",
    "embedding_dense_backward", "empty", "expand", "gather", "index", "index_select", "logsumexp", "max", "mean", "min", "mm", "native_layer_norm",
    "native_layer_norm_backward", "nll_loss2d_backward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss_forward",
    "permute", "reshape", "scatter", "scatter_add", "select", "select_backward", "slice", "slice_backward",
    "slice_scatter", "sort", "split", "split_with_sizes", "squeeze", "sum", "t", "topk", "transpose", "unsqueeze", "view",
}
# Calls that round each element once.
_ELEMENTS = {
    "_to_copy", "abs", "add", "alias", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "clamp", "clamp_max",
    "clamp_min", "clone", "copy", "detach", "div", "eq", "fill", "full", "full_like", "ge", "gt", "le", "logical_and",
    "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg", "new_full", "new_ones",
    "new_zeros", "ones", "ones_like", "relu", "sign", "sqrt", "sub", "threshold_backward", "where", "zeros", "zeros_like",
}
# Sums, and what ends with one.
_SUMS = {"logsumexp", "mean", "sum"}
# Where a softmax, or its derivative, says along which dimension it is.
_SOFTMAX = {"_safe_softmax": 1, "_softmax": 1, "_log_softmax": 1, "_softmax_backward_data": 2, "_log_softmax_backward_data": 2}
# Elements that loops take at once, at most: two vectors of numbers of 16 bits. Threads share loops over more than these.
_VECTORS, _GRAIN = 64, 1 << 15
_CHUNK, _PART = re.compile(r"(.+)\.(?:chunk|part)\d+"), re.compile(r".+\.part\d+")


class Indivisible(Exception):
    """Nothing of a step can be divided."""


class Division:
    """The ways to divide a step that are tried, and the one that is planned now."""

    def __init__(self, ways: Sequence[str], device: torch.device, step: str = "") -> None:
        self.ways = tuple(ways)
        # The name of a step that is to be divided, and if it cannot be, says so.
        self.step = step
        self.now = WHOLE
        self.device = device
        self._is_settled = self.ways == (WHOLE,)
        # Whether layers may be divided, where nothing else fits or the least is asked for.
        self._may_divide_layers = len(self.ways) > 1
        # Whether ways are left out that change bits, and the step has one.
        self.has_others = EQUAL in ways
        # Whether what is tried has to change no bit, the way that does not, and the one with layers, once they were looked for.
        self._has_equal = EQUAL in ways
        self._equal: list[str] = []
        self._layers: list[str] | None = None
        # The most bytes that looking for it held.
        self.most = 0

    def has_any(self, whole: Callable[[], dict[str, Any]]) -> bool:
        """Whether it has a way that the step can be divided."""
        self._settle(whole)
        return self.ways != (WHOLE,)

    def graph(self, whole: dict[str, Any]) -> dict[str, Any]:
        """The step as it is planned now."""
        return whole if self.now == WHOLE else divided(whole, self.now)

    def best(self, plan: Callable[[], Plan], lost: Callable[[Plan], float], whole: Callable[[], dict[str, Any]], *,
             is_smallest: bool, excess: Callable[[dict[str, Any]], int] = lambda _: 0) -> Plan:
        """The best of the plans that `plan` makes of the step as it is, which is `whole`, and in chunks: the fastest, or the
        one that holds the least. Planning measures calls: forms of the step whose largest call exceeds the budget, by as many
        bytes as `excess` says, are planned only if no other has a plan, that with the least excess first. Layers in chunks
        cost more, and are planned last, if no other has a plan or the least is asked for. Raises `InfeasibleBudget`, that of
        what needs least, if none has."""
        found: list[Plan] = []
        refused: list[InfeasibleBudget] = []

        def planned(way: str) -> None:
            self.now = way
            try:
                found.append(replace(plan(), split=way))
            except InfeasibleBudget as error:
                refused.append(error.with_traceback(None))

        try:
            for way, exceeds in self._in_order(whole, excess):
                if found and exceeds:
                    break
                for one in self._equal_ways(whole) if way == EQUAL else (way,):
                    planned(one)
                if found and not is_smallest and lost(found[0]) == 0:
                    break
            if self._may_divide_layers and (is_smallest or not found):
                layers = self._with_layers(whole)
                if layers is not None and not (found and excess(divided(whole(), layers)) > 0):
                    planned(layers)
        finally:
            self.now = WHOLE
        if not found:
            raise min(refused, key=lambda error: (error.needed, error.smallest))
        # Calls of chunks, measured one by one, find their rows in the caches more often than steps do: all of them are
        # taken to last as long as those of the whole, at least.
        calls = max((one.held.unplanned_seconds for one in found if one.split == WHOLE), default=0.0)
        return min(found, key=lambda one: one.held.peak if is_smallest else
                   one.held.seconds + max(calls - one.held.unplanned_seconds, 0.0))

    def _in_order(self, whole: Callable[[], dict[str, Any]],
                  excess: Callable[[dict[str, Any]], int]) -> Iterator[tuple[str, bool]]:
        """The ways in the order in which they are planned, and whether they have a call that exceeds the budget."""
        if self.ways[0] != WHOLE:
            self._settle(whole)
        exceeding: list[tuple[int, str]] = []
        for way in self.ways:
            if way != WHOLE:
                self._settle(whole)
                if way not in self.ways:
                    continue
            beyond = excess(whole() if way == WHOLE else divided(whole(), _MOST if way == EQUAL else way))
            if beyond <= 0:
                yield way, False
            else:
                exceeding.append((beyond, way))
        for _, way in sorted(exceeding, key=lambda found: found[0]):
            yield way, True

    def _settle(self, whole: Callable[[], dict[str, Any]]) -> None:
        """Leaves out what the step does not have."""
        if self._is_settled:
            return
        self._is_settled, graph, found = True, whole(), []
        for way in self.ways:
            try:
                if way != WHOLE:
                    divided(graph, _MOST if way == EQUAL else way)
                found.append(way)
            except Indivisible as error:
                if self.step and self.ways[0] != WHOLE:
                    warnings.warn(f"split={way!r} is not done in {self.step}, which is planned as it is: {error}",
                                  RuntimeWarning, stacklevel=2)
        self.ways = tuple(found) or (WHOLE,)
        self.has_others = self.has_others and _is_divisible(graph, _TOTALS)

    def _equal_ways(self, whole: Callable[[], dict[str, Any]]) -> list[str]:
        """The most chunks that change no bit, if any do not."""
        if self.ways[-1] == EQUAL:
            found = self._first_equal(whole, (_MOST, *_FEWER))
            self._equal = [] if found is None else [found]
            self.ways = (*self.ways[:-1], *self._equal)
        return self._equal

    def _with_layers(self, whole: Callable[[], dict[str, Any]]) -> str | None:
        """Layers divided, and the loss with them as far as can be, if what is in chunks as the loss is no layer."""
        if self._layers is None:
            self._equal_ways(whole)
            counts = {way + _LAYERS: _in_parts(whole(), way + _LAYERS) for way in (self.ways[-1], _NO_CHUNKS) if way != WHOLE}
            way = max(counts, key=counts.__getitem__)
            can_be = counts[way] > 0 and not (self._has_equal and self._first_equal(whole, (way,)) is None)
            self._layers = [way] if can_be else []
        return self._layers[0] if self._layers else None

    def _first_equal(self, whole: Callable[[], dict[str, Any]], ways: Sequence[str]) -> str | None:
        """The first of these ways that changes no bit; `None` if none was found in the memory there is."""
        try:
            with Count.aside(self.device):
                found, most = equal_way(whole(), self.device, ways)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        self.most = max(self.most, most)
        return found


def predicted(ways: Sequence[str]) -> tuple[str, ...]:
    """The ways that are tried where nothing can run."""
    return tuple(_MOST if way == EQUAL else way for way in ways)


def divided(whole: dict[str, Any], way: str) -> dict[str, Any]:
    """A step in chunks. Raises `Indivisible`."""
    try:
        return json.loads(asked(_native.split_graph, json.dumps(whole).encode(), way))
    except OptionError as error:
        raise Indivisible(str(error)) from None


def _is_divisible(whole: dict[str, Any], way: str) -> bool:
    try:
        return bool(divided(whole, way))
    except Indivisible:
        return False


def _in_parts(whole: dict[str, Any], way: str) -> int:
    """How many calls of layers are in chunks if a step is divided in this way."""
    try:
        return sum(_PART.fullmatch(node["name"]) is not None for node in divided(whole, way)["nodes"])
    except Indivisible:
        return 0


def equal_way(whole: dict[str, Any], device: torch.device, ways: Sequence[str]) -> tuple[str | None, int]:
    """The first of these ways that changes no bit, if any does not, and the most bytes that finding out held. What was found
    out of products is kept in a file for later starts."""
    values, named = values_of(whole), {node["name"]: node for node in whole["nodes"]}
    kept, most = _Kept(device), 0
    for way in ways:
        graph = divided(whole, way)
        parts, chunks = values_of(graph), _products(graph)
        if not elements_stay(values, named, graph, parts, device):
            continue
        own = _own(graph, parts)
        keys = {name: f"{_shapes(found, parts, own)} {Call.of(dict(named[name]), values).key}" for name, found in chunks.items()}
        with torch.no_grad():
            for name in chunks:
                if keys[name] not in kept.answers:
                    # One product is there at a time.
                    product = _Product(named[name], values, device)
                    kept.answers[keys[name]] = product.has_rows_of(chunks[name], parts, own)
                    most = max(most, product.most)
                    del product
                if not kept.answers[keys[name]]:
                    break
        kept.keep()
        if all(kept.answers.get(key, False) for key in keys.values()):
            return way, most
    return None, most


class _Kept:
    """Whether products of some rows have the bits of the whole, by their shapes and that call, as a file keeps it."""

    def __init__(self, device: torch.device) -> None:
        self.name = cache.of_device("costs/bits", device)
        try:
            found = json.loads(cache.read(self.name) or "{}")
            self.answers = {str(key): bool(answer) for key, answer in found.items()}
        except (ValueError, AttributeError):
            self.answers = {}
        self._count = len(self.answers)

    def keep(self) -> None:
        if len(self.answers) > self._count:
            cache.keep(self.name, json.dumps(self.answers))
            self._count = len(self.answers)


def elements_stay(values: Mapping[int, Any], named: Mapping[str, Any], graph: Mapping[str, Any], parts: Mapping[int, Any],
                  device: torch.device) -> bool:
    """Whether calls of chunks that compute element by element have the bits of the whole. On processors, loops take
    elements in vectors, and what is left one by one, by functions that may round otherwise: so the same elements have to
    be left."""
    if device.type != "cpu":
        return True
    threads, counts = torch.get_num_threads(), {}
    for node in graph["nodes"]:
        chunk = _CHUNK.fullmatch(node["name"])
        if chunk and threads > 1 and _is_shared(node, parts):
            return False
        if chunk and chunk[1] in named and not _rounds_alike(node):
            if not _ends_in_vectors(_largest(named[chunk[1]], values), _largest(node, parts)):
                return False
            counts.setdefault(chunk[1], []).append(_elements(node, parts))
    for name, found in counts.items():
        total = _elements(named[name], values)
        if any(count % _VECTORS for count in found[:-1]) or not all(_shared_in_vectors(count, threads) for count in (total, *found)):
            return False
    return True


def _largest(node: Mapping[str, Any], values: Mapping[int, Any]) -> Sequence[int]:
    """The shape of the largest output of a call."""
    return max((values[output["id"]].shape for output in node["outputs"] if output is not None), key=math.prod, default=(0,))


def _elements(node: Mapping[str, Any], values: Mapping[int, Any]) -> int:
    """How many elements the largest output of a call has."""
    return math.prod(_largest(node, values))


def _ends_in_vectors(whole: Sequence[int], part: Sequence[int]) -> bool:
    """Whether the loops over a part of some columns, one for each row, take whole vectors, as the one over all elements
    does then. A part of some rows lies in one piece."""
    if len(whole) != len(part):
        return True
    first = min((dim for dim, _ in _narrowed(whole, part)), default=0)
    return math.prod(part[:first]) == 1 or (math.prod(part[first:]) % _VECTORS == 0 and math.prod(whole) % _VECTORS == 0)


def _shared_in_vectors(count: int, threads: int) -> bool:
    """Whether the shares of threads in a loop over as many elements, but for the last, are whole vectors."""
    shares = min(threads, math.ceil(count / _GRAIN))
    return shares <= 1 or math.ceil(count / shares) % _VECTORS == 0


def _is_shared(node: Mapping[str, Any], parts: Mapping[int, Any]) -> bool:
    """Whether threads share a call of a chunk so that what they compute depends on how much there is: one sum of all that
    is read, or a softmax over another dimension than the last."""
    name = node["op"].split(".")[1]
    if name in _SOFTMAX:
        return node["args"][_SOFTMAX[name]] not in (-1, len(parts[node["outputs"][0]["id"]].shape) - 1)
    return name in _SUMS and _elements(node, parts) == 1


def _rounds_alike(node: Mapping[str, Any]) -> bool:
    """Whether a call computes each row by itself, or rounds each element once, however it is computed."""
    name = node["op"].split(".")[1]
    if name == "pow":
        return node["args"][1] == 2
    return name in _ROWS or (name in _ELEMENTS and not {"alpha", "rounding_mode"} & set(node.get("kwargs") or {}))


def _own(graph: Mapping[str, Any], parts: Mapping[int, Any]) -> set[int]:
    """The values that are all there is in their storage; others of a chunk are some rows of what is there of all."""
    return {index for index, value in parts.items()
            if graph["storages"][value.storage] == math.prod(value.shape) * TORCH_DTYPES[value.dtype].itemsize}


def _shapes(chunks: Sequence[Mapping[str, Any]], parts: Mapping[int, Any], own: Set[int]) -> list[tuple[Any, ...]]:
    """The shapes that the products of chunks make, and which of what they read lies by itself, each once."""
    return sorted({(tuple(parts[node["outputs"][0]["id"]].shape), *(index in own for index in node["inputs"]))
                   for node in chunks})


def _products(graph: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The products of the chunks, by the product that they are rows of."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for node in graph["nodes"]:
        if node["op"] in _PRODUCTS and (name := _CHUNK.fullmatch(node["name"])):
            found.setdefault(name[1], []).append(node)
    return found


class _Product:
    """A product of all rows, made of random numbers."""

    def __init__(self, node: Mapping[str, Any], values: Mapping[int, Any], device: torch.device) -> None:
        self.node, self.values = node, values
        self.operator = overload(node["op"])
        self.given, _ = arguments(Call.of(dict(node), values), device)
        # What is made up for measuring adds up without a rounding.
        generator = torch.Generator(device).manual_seed(0)
        for tensor in self.given:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                # Some elements may be shown several times.
                tensor.as_strided([tensor.untyped_storage().nbytes() // tensor.itemsize], [1], 0).normal_(generator=generator)
        self.shape = values[node["outputs"][0]["id"]].shape
        self.made = self.operator(*self.given)
        tensors = [*(tensor for tensor in self.given if isinstance(tensor, torch.Tensor)), self.made]
        self._size = sum(tensor.nbytes for tensor in tensors)
        # The most bytes that comparing it held.
        self.most = self._size

    def has_rows_of(self, chunks: Sequence[Mapping[str, Any]], parts: Mapping[int, Any], own: Set[int]) -> bool:
        """Whether the products of chunks make its rows. One of each size and place relative to whole cache lines is tried:
        on processors, sums depend on that."""
        first, tried = 0, set()
        for node in chunks:
            rows = _narrowed(self.shape, parts[node["outputs"][0]["id"]].shape)
            if not rows:
                # It adds up to the product, and has no rows of it.
                return True
            [(dim, count)] = rows
            made = self.made.narrow(dim, first, count)
            given = [self._part(index, other, parts, first) for index, other in enumerate(node["args"])]
            tensors = [made, *(tensor for tensor in given if isinstance(tensor, torch.Tensor))]
            place = (count, *(tensor.data_ptr() % _LINE for tensor in tensors))
            if place not in tried:
                given = [found.clone() if isinstance(other, Mapping) and other["value"] in own and found.shape != whole.shape
                         else found for found, other, whole in zip(given, node["args"], self.given, strict=True)]
                part = self.operator(*given)
                self.most = max(self.most, self._size + sum(tensor.nbytes for tensor in (part, *given)
                                                            if isinstance(tensor, torch.Tensor)))
                if not torch.equal(part, made):
                    return False
            tried.add(place)
            first += count
        return True

    def _part(self, index: int, other: Any, parts: Mapping[int, Any], first: int) -> Any:
        """What a chunk reads of an argument, where the node has `other`."""
        found = self.given[index]
        if isinstance(other, Mapping):
            for dim, count in _narrowed(self.values[self.node["args"][index]["value"]].shape, parts[other["value"]].shape):
                found = found.narrow(dim, first, count)
        return found


def _narrowed(shape: Sequence[int], part: Sequence[int]) -> list[tuple[int, int]]:
    """The dimensions of which a part has fewer elements, and how many it has."""
    return [(dim, count) for dim, (extent, count) in enumerate(zip(shape, part, strict=True)) if count != extent]
