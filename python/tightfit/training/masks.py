"""Causal masks that transformers writes out where it is traced, and leaves out otherwise.

Invariant: a call of attention loses its mask only where transformers made the mask of constants, and the mask, once it was
computed, is the causal one. The call is then the one that transformers makes in eager mode: without a mask, `is_causal`, and
with keys and values whose heads are not repeated.

transformers.masking_utils leaves a mask out if it is causal and nothing more, which it decides by values; it cannot when it
is traced, so it builds one. With one, PyTorch takes another kernel, slower and larger than FlashAttention, with other bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

_ATTENTION = functional.scaled_dot_product_attention
_SOURCE = os.path.join("transformers", "masking_utils.py")
# Larger masks are left as they are.
_MOST = 1 << 28
# Beyond these heads, transformers repeats them in eager mode as well.
_LARGEST_HEAD = 256


def leave_out(module: fx.GraphModule) -> None:
    """Takes causal masks of transformers' out of a graph that Dynamo captured."""
    known: dict[fx.Node, bool] = {}
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=_ATTENTION):
        mask = node.kwargs.get("attn_mask")
        if len(node.args) != 3 or not isinstance(mask, fx.Node) or node.kwargs.get("is_causal") or node.kwargs.get("enable_gqa"):
            continue
        if _SOURCE not in (mask.meta.get("stack_trace") or ""):
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
        module.graph.eliminate_dead_code()
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
    """What `repeat_kv` of transformers repeated: `x[:, :, None].expand(…).reshape(…)`."""
    expanded = _of_method(node, "reshape")
    indexed = _of_method(expanded, "expand")
    if indexed is None or not indexed.args or not isinstance(source := indexed.args[0], fx.Node):
        return None
    narrow, wide, repeated = _shape(source), _shape(expanded), _shape(node)
    if len(narrow) != 4 or len(wide) != 5 or len(repeated) != 4 or _shape(indexed) != (*narrow[:2], 1, *narrow[2:]):
        return None
    is_repeated = wide == (*narrow[:2], wide[2], *narrow[2:]) and repeated == (narrow[0], narrow[1] * wide[2], *narrow[2:])
    return source if is_repeated else None


def _of_method(node: fx.Node | None, name: str) -> fx.Node | None:
    """What a method is called on, if a node is a call of it."""
    if node is None or node.op != "call_method" or node.target != name or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0]


def _is_causal(mask: fx.Node) -> bool:
    """Whether a mask is made of constants, and lets each position see itself and those before it."""
    sources = _sources(mask)
    if sources is None:
        return False
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        value = _value(sources)
        is_drawn = not torch.equal(torch.get_rng_state(), before)
        triangle = torch.ones(value.shape[-2:], dtype=torch.bool).tril()
        return not is_drawn and value.dtype == torch.bool and bool((value == triangle).all())


def _value(sources: Sequence[fx.Node]) -> torch.Tensor:
    """What the last of these calls returns."""
    found: dict[fx.Node, Any] = {}
    for node in sources:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), found.__getitem__)
        args, kwargs = fx.node.map_aggregate((args, kwargs), _on_processor)
        call = node.target if node.op == "call_function" else getattr(args[0], node.target)
        found[node] = call(*args, **kwargs) if node.op == "call_function" else call(*args[1:], **kwargs)
    return found[sources[-1]]


def _sources(mask: fx.Node) -> list[fx.Node] | None:
    """What a mask is computed from, itself included, in the graph's order; `None` if that is more than constants."""
    sources, pending = {mask}, [mask]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in sources:
                sources.add(source)
                pending.append(source)
    for node in sources:
        example = node.meta.get("example_value")
        if node.op not in ("call_function", "call_method") or (isinstance(example, torch.Tensor) and example.numel() > _MOST):
            return None
        if any(_writes(user) for user in [node, *node.users]):
            return None
    return sorted(sources)


def _writes(node: fx.Node) -> bool:
    """Whether a call may write into what it is given, by its name."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return "out" in node.kwargs or name == "setitem" or (name.endswith("_") and not name.endswith("__") and name != "and_")


def _on_processor(item: Any) -> Any:
    """The processor in place of another device: masks are computed where there is room."""
    return torch.device("cpu") if isinstance(item, torch.device) else item
