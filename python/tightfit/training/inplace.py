"""Calls that overwrite an input that is no longer needed with their result: PyTorch's own in-place methods and `out=`.

Invariant: a call overwrites an input only if that was tried on tensors of its shapes, types and strides, on its device,
and on as many numbers as show other roundings: the result had the same bits, and took no more additional memory; or if
the graph says so, of a total that is continued and of a tensor into which a part is put. Only operators that compute
element by element, or row by row as softmax does, are tried at all, since what others do with overlapping memory is
undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten

# Puts a part into a tensor; where that one is overwritten, only the part moves.
PUT = "aten.slice_scatter.default"


def put(whole: torch.Tensor, part: torch.Tensor, dim: int, start: int, end: int) -> torch.Tensor:
    """Writes a part into its place in a tensor, and returns that."""
    whole.narrow(dim, start, end - start).copy_(part)
    return whole


# Operators that compute element by element but are not tagged as such.
_ELEMENTS = {aten.elu_backward.default, aten.hardsigmoid_backward.default, aten.hardswish.default,
             aten.hardtanh_backward.default, aten.huber_loss_backward.default, aten.leaky_relu_backward.default,
             aten.masked_fill.Tensor, aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default,
             aten.softplus_backward.default}
# Operators that read each row before they write it.
_ROWS = {aten._softmax.default, aten._log_softmax.default, aten._softmax_backward_data.default,
         aten._log_softmax_backward_data.default}
# Operators that write over their first argument what they add to it; where a graph says so, which nothing has to try.
_SUMS = {aten.addmm.default}
# Small tensors have few numbers: as many are tried as there are here, at most this often.
_NUMBERS, _DRAWS = 1 << 10, 64
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Overwriting:
    """An operator that computes the same, and overwrites the argument at a position with it."""

    overload: torch._ops.OpOverload
    position: int
    # The keyword of the result; an operator that always writes over its first argument has none.
    keyword: str | None

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments of the call that overwrites, from those of the call that does not."""
        return args, dict(kwargs) if self.keyword is None else {**kwargs, self.keyword: args[self.position]}


def overwriting(overload: torch._ops.OpOverload, position: int) -> Overwriting | None:
    """How an operator can overwrite the argument at a position, if PyTorch has a way that needs no memory."""
    if torch.Tag.pointwise not in overload.tags and overload not in _ELEMENTS | _ROWS | _SUMS:
        return None
    if overload in _SUMS and position > 0:
        return None
    for in_place in _overloads(f"{_name(overload)}_") if position == 0 else []:
        if _takes(in_place._schema.arguments, overload._schema):
            return Overwriting(in_place, 0, None)
    found = writing(overload)
    return None if found is None else Overwriting(found[0], position, found[1])


def writing(overload: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, str] | None:
    """The operator that computes the same into a tensor that it is given, and the keyword for that, if PyTorch has it."""
    for found in _overloads(_name(overload)):
        keyword = _result(found, overload._schema)
        # Overloads generated from an operator without `out=` compute elsewhere, and copy.
        if keyword is not None and torch.Tag.generated not in found.tags:
            return found, keyword
    return None


def _name(overload: torch._ops.OpOverload) -> str:
    """The name of an operator of PyTorch's own that makes one result and changes nothing; empty for others."""
    schema = overload._schema
    namespace, name = schema.name.split("::")
    return name if namespace == "aten" and len(schema.returns) == 1 and not schema.is_mutable else ""


def _result(overload: torch._ops.OpOverload, schema: torch._C.FunctionSchema) -> str | None:
    """The keyword for the result of an operator that takes the arguments of a schema, and a tensor to write into."""
    *others, last = overload._schema.arguments or [None]
    if last is None or not last.is_out or any(argument.is_out for argument in others):
        return None
    return last.name if _takes(others, schema) else None


def _takes(arguments: Sequence[torch._C.Argument], schema: torch._C.FunctionSchema) -> bool:
    """Whether arguments are those of a schema."""
    described = [[(argument.name, str(argument.type)) for argument in each] for each in (arguments, schema.arguments)]
    return described[0] == described[1]


def _overloads(name: str) -> Iterator[torch._ops.OpOverload]:
    packet = getattr(aten, name, None) if name.strip("_") else None
    return (getattr(packet, overload) for overload in packet.overloads()) if packet is not None else iter(())


def tried(overload: torch._ops.OpOverload, made: Callable[[], tuple[list[Any], dict[str, Any]]],
          peak_of: Callable[[Callable[[], Any]], int], most: int) -> list[int]:
    """The positions of arguments that a call can overwrite. `made` makes its arguments from scratch; `peak_of` measures
    the bytes that a call takes, which may be at most `most`."""
    positions = []
    for position in range(len(overload._schema.arguments)):
        how = overwriting(overload, position)
        if how is None or overload in _SUMS:
            continue
        # The tensors of one call at a time: those of the previous position are freed.
        taken = _taken(overload, how, made, peak_of)
        positions += [position] if taken is not None and taken <= most else []
    return positions


def _taken(overload: torch._ops.OpOverload, how: Overwriting, made: Callable[[], tuple[list[Any], dict[str, Any]]],
           peak_of: Callable[[Callable[[], Any]], int]) -> int | None:
    """The bytes that a call takes if it overwrites an argument; `None` if the result is not the same."""
    args, kwargs = made()
    over = args[how.position] if how.position < len(args) else None
    if not isinstance(over, torch.Tensor):
        return None
    others = [item for index, item in enumerate(args) if index != how.position and isinstance(item, torch.Tensor)]
    if any(item.untyped_storage()._cdata == over.untyped_storage()._cdata for item in others):
        return None
    if not _laid_out_alike(overload(*args, **kwargs), over):
        return None
    try:
        draws = max(1, min(_DRAWS, _NUMBERS // max(over.numel(), 1)))
        for draw in range(draws):
            given = _drawn(args, draw) if draws > 1 else args
            expected = overload(*given, **kwargs)
            others, named = how.call(given, kwargs)
            how.overload(*others, **named)
            if not torch.equal(_bits(given[how.position]), _bits(expected)):
                return None
        args, kwargs = how.call(args, kwargs)
        return peak_of(lambda: how.overload(*args, **kwargs))
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def _drawn(args: Sequence[Any], draw: int) -> list[Any]:
    """Arguments with other numbers of the same signs that are no larger."""
    generator = torch.Generator().manual_seed(draw)

    def other(tensor: torch.Tensor) -> torch.Tensor:
        factors = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) / 2 + 0.5
        return tensor * factors.to(tensor.device, tensor.dtype)

    return [other(item) if isinstance(item, torch.Tensor) and item.is_floating_point() else item for item in args]


def _laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride() \
        and not one.is_complex()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_BITS[tensor.element_size()])
