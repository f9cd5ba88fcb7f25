"""Causal masks that transformers builds when it is traced, and leaves out otherwise.

Invariant: a call of attention loses its mask only if transformers made the mask from constants and sizes, and the
computed mask is the causal one, at several sizes if they vary. The call is then the one that transformers makes in eager
mode: without a mask, `is_causal`, and with keys and values whose heads are not repeated.

transformers.masking_utils leaves a mask out if it is just causal, which it decides by its values; when it is traced it
cannot, so it builds one. With a mask, PyTorch uses another kernel, slower and larger than FlashAttention, with other
bits.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

_ATTENTION = functional.scaled_dot_product_attention
_SOURCE = os.path.join(os.sep, "transformers", "masking_utils.py")
_CALLER = os.path.join(os.sep, "transformers", "integrations", "sdpa_attention.py")
# Words in those lines of transformers that narrow a mask.
_WINDOW, _CHUNKS = "sliding_window", "chunk_size"
# `a += b` and `a[b] = c`; `operator.and_` and the like end in `_` and write nothing.
_IN_PLACE = {getattr(operator, name) for name in (
    "setitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub",
    "itruediv", "ixor")}
_PURE = {operator.and_, operator.or_, operator.not_, operator.is_}
# The most elements of a mask that is examined; larger masks are left as they are.
_MOST = 1 << 28
# The largest head size for which transformers does not repeat heads in eager mode.
_LARGEST_HEAD = 256


def leave_out(module: fx.GraphModule) -> None:
    """Takes causal masks of transformers' out of a graph that Dynamo captured."""
    known: dict[fx.Node, bool] = {}
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=_ATTENTION):
        mask = node.kwargs.get("attn_mask")
        if len(node.args) != 3 or not isinstance(mask, fx.Node) or node.kwargs.get("is_causal") or node.kwargs.get("enable_gqa"):
            continue
        if _SOURCE not in _trace(mask) or _CALLER not in _trace(node) or not _is_transformers_own():
            continue
        shape = _shape(mask)
        lengths = _shape(node.args[0])[-2:-1] + _shape(node.args[1])[-2:-1]
        if len(lengths) != 2 or lengths != shape[-2:] or lengths[0] != lengths[1] or lengths[0] < 2:
            continue
        if mask not in known:
            known[mask] = _is_causal(mask)
        if known[mask]:
            _rewrite(node)
            changed = True
    if changed:
        # The nodes that computed the mask are dead, which AOTAutograd handles. They are not eliminated here, since
        # Dynamo's graph still holds calls that write in place and whose results are not read.
        module.recompile()


def _rewrite(node: fx.Node) -> None:
    query, key, value = node.args
    kwargs = dict(node.kwargs) | {"attn_mask": None, "is_causal": True}
    keys, values = _before_repeating(key), _before_repeating(value)
    if keys is not None and values is not None and _shape(keys)[-1] == _shape(values)[-1] <= _LARGEST_HEAD:
        node.args = query, keys, values
        kwargs["enable_gqa"] = True
    node.kwargs = kwargs


def _shape(node: Any) -> tuple[int, ...]:
    example = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return tuple(example.shape) if isinstance(example, torch.Tensor) else ()


def _before_repeating(node: fx.Node) -> fx.Node | None:
    """The input of transformers' `repeat_kv`: `x[:, :, None, :, :].expand(…).reshape(…)`."""
    expanded = _of_method(node, "reshape")
    indexed = _of_method(expanded, "expand")
    every = slice(None)
    if indexed is None or indexed.target is not operator.getitem or indexed.args[1] != (every, every, None, every, every):
        return None
    source = indexed.args[0]
    narrow, wide, repeated = _shape(source), _shape(expanded), _shape(node)
    if len(narrow) != 4 or len(wide) != 5 or len(repeated) != 4 or _shape(indexed) != (*narrow[:2], 1, *narrow[2:]):
        return None
    is_repeated = wide == (*narrow[:2], wide[2], *narrow[2:]) and repeated == (narrow[0], narrow[1] * wide[2], *narrow[2:])
    return source if is_repeated else None


def _of_method(node: fx.Node | None, name: str) -> fx.Node | None:
    """The object of a method call, if a node is a call of that method."""
    if node is None or node.op != "call_method" or node.target != name or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0]


def _is_causal(mask: fx.Node) -> bool:
    """Whether a mask is made of constants, and lets each position see itself and those before it."""
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            sources = _sources(mask)
            if sources is None or any(_is_kept(node, mask) for node in sources):
                return False
            sizes = {node: node.meta["example_value"].node.hint for node in sources if node.op == "placeholder"}
            values = [_value(sources, dict(zip(sizes, given, strict=True))) for given in _tried(list(sizes.values()))]
        except Exception:  # noqa: BLE001: e.g. calls under vmap do not run on their own
            return False
        is_drawn = not torch.equal(torch.get_rng_state(), before)
        return not is_drawn and all(map(_is_triangle, values))


def _is_triangle(value: torch.Tensor) -> bool:
    rows, columns = value.shape[-2:]
    seen = torch.arange(columns)
    return value.dtype == torch.bool and all(bool((value[..., row, :] == (seen <= row)).all()) for row in range(rows))


def _tried(sizes: list[int]) -> list[list[int]]:
    """Sizes at which a mask is computed: those of the capture, small ones, and larger ones if they vary."""
    return [sizes, [2] * len(sizes), [3] * len(sizes), [size + 1 for size in sizes]] if sizes else [sizes]


def _is_kept(node: fx.Node, mask: fx.Node) -> bool:
    """Whether transformers makes the mask in eager mode as well: with chunks, or a window no larger than the
    sequence."""
    # The line, followed in some versions of Python by a marker line below the call.
    line = " ".join(_trace(node).strip().splitlines()[-2:])
    if _WINDOW in line and node.target is operator.sub:
        return not isinstance(node.args[1], int) or node.args[1] <= _shape(mask)[-1]
    return _CHUNKS in line


def _is_transformers_own() -> bool:
    """Whether transformers' own mask functions are in use, with no others registered in their place."""
    source = sys.modules.get("transformers.masking_utils")
    return source is None or source.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is source.sdpa_mask


def _trace(node: fx.Node) -> str:
    return node.meta.get("stack_trace") or ""


def _value(sources: Sequence[fx.Node], sizes: Mapping[fx.Node, int]) -> torch.Tensor:
    """The result of the last of these calls, at these sizes."""
    found: dict[fx.Node, Any] = dict(sizes)
    # Intermediate ones go after their last use: each may have eight bytes for each pair of positions.
    last = {source: node for node in sources for source in node.all_input_nodes}
    for node in sources:
        if node in sizes:
            continue
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), found.__getitem__)
        args, kwargs = fx.node.map_aggregate((args, kwargs), _on_processor)
        call = node.target if node.op == "call_function" else getattr(args[0], node.target)
        found[node] = call(*args, **kwargs) if node.op == "call_function" else call(*args[1:], **kwargs)
        del args, kwargs, call
        for source in node.all_input_nodes:
            if last[source] is node:
                del found[source]
    return found[sources[-1]]


def _sources(mask: fx.Node) -> list[fx.Node] | None:
    """The nodes that compute a mask, itself included, in the graph's order; `None` if not only from constants and
    sizes."""
    sources, pending = {mask}, [mask]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in sources:
                sources.add(source)
                pending.append(source)
    storages = {_storage(node) for node in sources} - {None}
    for node in sources:
        example = node.meta.get("example_value")
        if node.op == "placeholder" and isinstance(example, torch.SymInt):
            continue
        if node.op not in ("call_function", "call_method") or (isinstance(example, torch.Tensor) and example.numel() > _MOST):
            return None
    # A write to a view is a write to its base.
    if any(_writes(node) and storages & {_storage(given) for given in node.all_input_nodes} for node in mask.graph.nodes):
        return None
    return sorted(sources)


def _storage(node: fx.Node) -> int | None:
    example = node.meta.get("example_value")
    return example.untyped_storage()._cdata if isinstance(example, torch.Tensor) else None


def _writes(node: fx.Node) -> bool:
    """Whether a call may write to its arguments."""
    target = node.target
    if node.op not in ("call_function", "call_method") or isinstance(target, torch._ops.HigherOrderOperator):
        return node.op not in ("placeholder", "get_attr", "output")
    if target in _PURE:
        return False
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return "out" in node.kwargs or target in _IN_PLACE or name.endswith("_") and not name.endswith("__")


def _on_processor(item: Any) -> Any:
    """Replaces any other device by the processor: masks are computed where there is room."""
    return torch.device("cpu") if isinstance(item, torch.device) else item
