"""The changes that are made to a call: one shape, type, stride, argument or output at a time.

Invariant: each yields what was changed, in words, and a call of its own.
"""

from collections.abc import Iterator
from typing import Any

from call import Call

ARGUMENTS = [None, True, False, -1, 0, 1, 2, 7, -9, 2**40, 0.5, -0.5, "nan", "inf", "text", "torch.int64",
             "torch.float64", [], [0], [-1], [0, 0], [99], [0.5]]
KEYWORDS = [
    ("nonsense", 1), ("alpha", 2), ("alpha", 0.5), ("beta", 3), ("dtype", "torch.int64"), ("dtype", "torch.bool"),
    ("dtype", "torch.float64"), ("out", None), ("maximize", True), ("nesterov", True), ("dampening", 0.5),
    ("keepdim", True), ("correction", 0), ("layout", "torch.sparse_coo"), ("implicit", True),
    ("memory_format", "torch.channels_last"), ("memory_format", "torch.contiguous_format"),
]


def changes(base: Call) -> Iterator[tuple[str, Call]]:
    """Every change of one thing."""
    yield from _inputs(base)
    yield from _arguments(base)
    yield from _keywords(base)
    yield from _outputs(base)


def _shapes(shape: list[int]) -> Iterator[tuple[str, list[int]]]:
    for dim in dict.fromkeys([0, len(shape) - 1] if shape else []):
        for name, extent in (("one more", shape[dim] + 1), ("one less", shape[dim] - 1), ("one", 1), ("none", 0)):
            if extent >= 0 and extent != shape[dim]:
                yield f"extent {dim} {name}", [*shape[:dim], extent, *shape[dim + 1:]]
    if shape:
        yield "without its first dimension", shape[1:]
        yield "a scalar", []
    yield "a dimension in front", [1, *shape]
    yield "a dimension behind", [*shape, 2]


def _types(dtype: str) -> list[str]:
    return [name for name in ("f32", "i64", "bool", "f64", "i32") if name != dtype]


def _columns(shape: list[int]) -> list[int]:
    """Strides of a tensor whose first dimension is the closest."""
    strides, step = [], 1
    for extent in shape:
        strides.append(step)
        step *= max(extent, 1)
    return strides


def _reshaped(tensor: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    """Contiguous from where it began."""
    return {"shape": shape, "dtype": tensor["dtype"]} | {k: tensor[k] for k in ("over", "offset") if tensor.get(k)}


def _inputs(base: Call) -> Iterator[tuple[str, Call]]:
    for place, value in enumerate(base.tensors):
        tensor = base.tensors[value]
        variants = [(name, _reshaped(tensor, shape)) for name, shape in _shapes(tensor["shape"])]
        variants += [(f"{dtype}", tensor | {"dtype": dtype}) for dtype in _types(tensor["dtype"])]
        if len(tensor["shape"]) > 1:
            variants.append(("columns first", tensor | {"contiguous": False, "strides": _columns(tensor["shape"])}))
        if tensor["shape"] and max(tensor["shape"]) > 1:
            variants.append(("repeated", tensor | {"contiguous": False, "strides": [0] * len(tensor["shape"])}))
        for name, variant in variants:
            changed = base.copy()
            changed.tensors[value] = variant
            yield f"input {place}: {name}", changed


def _others(argument: Any) -> Iterator[Any]:
    """Other arguments than this one. PyTorch takes any number for an enumeration, and reads beyond its tables."""
    named = isinstance(argument, str) and argument.startswith("torch.")
    for other in ARGUMENTS:
        if named and isinstance(other, (int, float)):
            continue
        if type(other) is not type(argument) or other != argument:
            yield other
    if isinstance(argument, list):
        yield [argument]
        if argument:
            yield argument[1:]
            yield [*argument, argument[0]]
            yield [None, *argument[1:]]
            if isinstance(argument[0], int):
                yield [argument[0] + 1, *argument[1:]]
                yield [-argument[0] - 1, *argument[1:]]
    elif isinstance(argument, dict):
        yield [argument]
        yield [argument, argument]
    elif isinstance(argument, (int, float)) and not isinstance(argument, bool):
        yield argument + 1
        yield -argument
        yield float(argument) if isinstance(argument, int) else int(argument)


def _arguments(base: Call) -> Iterator[tuple[str, Call]]:
    for index, argument in enumerate(base.args):
        for other in _others(argument):
            changed = base.copy()
            changed.args[index] = other
            yield f"argument {index} is {other!r}", changed
        for place, value in enumerate(base.tensors):
            if argument != {"value": value}:
                changed = base.copy()
                changed.args[index] = {"value": value}
                yield f"argument {index} is input {place}", changed
    for extra in (None, 1, True, 0.5):
        changed = base.copy()
        changed.args.append(extra)
        yield f"one more argument, {extra!r}", changed
    changed = base.copy()
    changed.args.pop()
    yield "without its last argument", changed


def _keywords(base: Call) -> Iterator[tuple[str, Call]]:
    for key, argument in base.kwargs.items():
        changed = base.copy()
        del changed.kwargs[key]
        yield f"without {key}", changed
        for other in _others(argument):
            changed = base.copy()
            changed.kwargs[key] = other
            yield f"{key} is {other!r}", changed
    for key, argument in KEYWORDS:
        if key not in base.kwargs:
            changed = base.copy()
            changed.kwargs[key] = argument
            yield f"{key} is {argument!r}", changed


def _outputs(base: Call) -> Iterator[tuple[str, Call]]:
    for index, output in enumerate(base.outputs):
        if output is None:
            continue
        variants = [(name, _reshaped(output, shape), None) for name, shape in _shapes(output["shape"])]
        variants += [(dtype, output | {"dtype": dtype}, None) for dtype in _types(output["dtype"])]
        several = output["shape"] and max(output["shape"]) > 1
        if len(output["shape"]) > 1:
            columns = {"contiguous": False, "strides": _columns(output["shape"])}
            variants.append(("columns first", output | columns, None))
        if several and not base.is_view():
            strides = {"contiguous": False, "strides": [0] * len(output["shape"])}
            variants.append(("in one place", output | strides, "elements of an output overlap"))
        if output.get("over") is not None:
            offset = (output.get("offset") or 0) + 1
            variants.append(("one element further", output | {"offset": offset}, None))
        if index > 0 and base.outputs[0] and output.get("over") is None and several:
            variants.append(("in the bytes of output 0", output | {"beside": 0}, "two outputs overlap"))
        for name, variant, wrong in variants:
            changed = base.copy()
            changed.outputs[index] = variant
            changed.lies, changed.wrong = True, wrong
            yield f"output {index}: {name}", changed
        if len(base.outputs) > 1:
            changed = base.copy()
            changed.outputs[index] = None
            changed.lies = True
            yield f"output {index}: not used", changed
    changed = base.copy()
    changed.outputs.append({"shape": [2], "dtype": "f32"})
    changed.lies, changed.wrong = True, "the operator has fewer outputs"
    yield "one more output", changed
