"""`tightfit.export`: from a PyTorch model to the files of one training step; its code reads as a list of the steps.

Invariant: the model's parameters, buffers, modes and hooks are afterwards what they were before; on failure no file
has changed; the same model and options give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from . import given
from .artifacts import write_all
from .batch import ordered, pair, resized
from .capture import capture
from .devices import kind_of
from .errors import ExportError
from .executable import check_graph, check_model
from .extents import LEAST
from .fold import fold
from .graph import producer, to_gzip, to_json
from .measure import measured
from .memoryless import is_memoryless, made_fake
from .optimizer import resolve
from .recapture import DIMENSIONS, compare, recaptures
from .simplify import simplify
from .step_json import REST, WEIGHTS, Initialisation, check_batch, data_entry, document, recipes, state_dict_of
from .translate import translate
from .weights import writing


def export(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    example_batch: tuple[Any, Any] | Mapping[str, Any],
    *,
    optimizer: str | dict[str, Any] | torch.optim.Optimizer | type[torch.optim.Optimizer] | None = "adamw",
    out: str | Path,
    name: str,
    description: str = "",
    learning_rate: float | None = None,
    data: dict[str, Any] | None = None,
    initialisation: Initialisation | None = None,
    evaluation_batch: tuple[Any, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    execute: bool = True,
    measure: bool = False,
    check_size: int | bool = True,
    device: str | torch.device | None = None,
) -> dict[str, torch.Tensor]:
    """Writes one training step of `model` under the loss `loss_fn(model(inputs), targets)`.

    `example_batch` is `(inputs, targets)`; its shapes are fixed in the graphs. Inputs that are a tuple or a list are
    the model's arguments, those of a dict its keyword arguments; a dict alone is `(inputs, None)`. Numbers, text and
    `None` in it are part of the step. With `loss_fn=None` the model computes its loss and returns it: alone, as the
    first of several results, or as `loss`, as transformers models do.

    A model in training mode is captured with the modes that its modules have, one in evaluation mode as if
    `model.train()` had been called. Activation checkpointing within the model is not part of the graph: a plan decides
    what is recomputed.

    `optimizer` is `"adamw"`, `"sgd"`, a dict `{"kind": …, option: …}`, or AdamW, Adam or SGD of `torch.optim`, as an
    instance or a class: options then follow its parameter groups, and the learning rate is its own unless
    `learning_rate` overrides it. Optimizers whose updates the engine would compute differently are refused.
    `initialisation(fqn, tensor)` returns a recipe for how a parameter or buffer starts, or `None` to store the tensor's
    present contents.

    With `execute=True`, inputs and targets are one tensor each, and a step that the engine cannot execute is refused.
    `out` is a folder and receives `train.json.gz`, `eval.json.gz` (of `evaluation_batch`'s shape if given),
    `step.json`, `weights.safetensors` if some tensor has no recipe, and `rest.safetensors` if the model's state has
    tensors that the step does not read. `tightfit.load` reads what was trained back into a `state_dict`.

    With `execute=False`, `out` is one file ending in `.json` or `.json.gz` and receives the training graph alone, for
    planning: the model may live on the `meta` device or on fake tensors, without memory, and have any dtype;
    `optimizer=None` makes the gradients outputs. `device` is where the step is to run; by default the model's device,
    or `"cpu"` for a model without memory. For `"cuda"`, which need not be present, the graph holds the operators that
    PyTorch runs on a GPU; for the processor those of Core ATen.

    With `measure=True` as well, each call of that graph is run on `device` with made-up inputs, one call at a time, and
    its seconds are written into the graph, where they take the place of the planner's prediction. This takes about a
    tenth of a second for each different call and the memory of the largest one. Updates of parameters are measured as
    PyTorch's fused updates, one parameter each. A warning names the calls that cannot be run this way; they have no
    seconds, and the planner predicts them.

    So that plans for another batch or length can be made from the file, the step is captured at a small and at a large
    batch and length as well, and compared node by node with what `Graph.at` makes of the training graph. The file says
    what was seen; where there was a difference, other sizes are refused later. With `check_size=N` a batch of *N*
    samples is compared as well, and a difference raises `ExportError`; with `check_size=False` nothing is, which saves
    the time of four captures or more.

    Returns the tensors that the graph reads and the model does not have, by their names in the graph: buffers of the
    loss (`loss.weight`), and constants that the forward pass creates (`constant.…`). `arguments` takes them; most
    models have none.

    Raises `ExportError`, and `OptionError` if an option has the wrong type.
    """
    if not isinstance(model, nn.Module):
        raise ExportError(f"{type(model).__name__} is no torch.nn.Module; give the model itself")
    if isinstance(loss_fn, type):
        raise ExportError(f"loss_fn is the class {loss_fn.__name__}; give one of it, as in {loss_fn.__name__}()")
    if loss_fn is not None and not callable(loss_fn):
        raise ExportError(f"loss_fn is {type(loss_fn).__name__}; give a function of what the model returns and the "
                          "targets, or None where the model returns its loss")
    for option, called in ((name, "name"), (description, "description")):
        given.text(option, called)
    for option, called in ((execute, "execute"), (measure, "measure")):
        given.flag(option, called)
    if not isinstance(check_size, bool):
        given.whole(check_size, "check_size", least=LEAST)
    path = given.path(out, "out")
    chosen = resolve(optimizer, learning_rate, model, execute=execute)
    batch = _apart(ordered(pair(example_batch)))
    where = _device(device, model, batch, measure=measure, execute=execute)
    evaluation = batch if evaluation_batch is None else _apart(ordered(pair(evaluation_batch)))
    traced, (batch, evaluation) = made_fake(model, (batch, evaluation))

    def captured(batch: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return _graph(traced, loss_fn, batch, name, chosen, training=True, execute=execute,
                      on_cuda=not execute and where.type == "cuda")

    if not execute:
        if not path.name.endswith((".json", ".json.gz")):
            raise ExportError(f"out={path.name!r}; with execute=False name one file ending in .json or .json.gz")
        graph, tensors = captured(batch)
        _compared(graph, captured, batch, check_size)
        if measure:
            graph = measured(graph, where)
        write_all({path: to_json(graph).encode() if path.name.endswith(".json") else to_gzip(graph)})
        return _foreign(graph, tensors, model)

    if chosen is None:
        raise ExportError("an executable step needs an optimizer; use execute=False for a graph that ends in gradients")
    if data is None:
        raise ExportError("an executable step needs data=…; use execute=False for a graph to plan with")
    check_model(traced, batch)
    entry = data_entry(data, path)
    check_batch(entry, batch, "example_batch")
    check_batch(entry, evaluation, "evaluation_batch")

    def evaluated(batch: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return _graph(traced, loss_fn, batch, f"{name}-eval", None, training=False)

    train, tensors = captured(batch)
    evaluate, more = evaluated(evaluation)
    check_graph(train)
    check_graph(evaluate)
    _compared(train, captured, batch, check_size)
    # How many samples an evaluation takes at once is no matter of the training's batch.
    _compared(evaluate, evaluated, evaluation, bool(check_size), ("length",))
    files: dict[Path, Any] = {path / "train.json.gz": to_gzip(train), path / "eval.json.gz": to_gzip(evaluate)}
    parameters, initial = recipes([train, evaluate], tensors | more, initialisation)
    differs, rest = state_dict_of(traced, parameters)
    made_by = {"producer": producer()} | (provenance or {})
    step = document(name, description, parameters, chosen, entry, made_by, differs)
    files[path / "step.json"] = (json.dumps(step, indent=2, allow_nan=False) + "\n").encode()
    stored = {path / WEIGHTS: initial, path / REST: rest}
    files |= {file: writing(held) for file, held in stored.items() if held}
    write_all(files, stale=tuple(file for file, held in stored.items() if not held))
    return _foreign(train, tensors, model)


def _compared(graph: dict[str, Any], captured: Callable[[Any], Any], batch: Any, check_size: int | bool,
              dimensions: Sequence[str] = DIMENSIONS) -> None:
    """Captures the step at other sizes of its batch, along these dimensions, and records in `graph` what was seen."""
    def again(dimension: int, now: int, size: int) -> dict[str, Any]:
        return captured(resized(batch, dimension, size, now=now))[0]

    if check_size is False:
        return
    found = recaptures(graph, again, dimensions)
    graph |= {"recaptures": found} if found else {}
    if check_size is not True:
        compare(graph, again, check_size)


def _foreign(graph: dict[str, Any], tensors: dict[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    read = {node["parameter"] for node in graph["nodes"] if node["phase"] == "buffer"}
    return {name: tensor for name, tensor in tensors.items() if name in read and name not in own}


def _graph(model, loss_fn, batch, name, optimizer, *, training: bool, execute: bool = True,
           on_cuda: bool = False) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """One graph document, and the initial values of its parameters and buffers."""
    captured = capture(model, loss_fn, batch, training=training, executable=execute, on_cuda=on_cuda)
    if execute:
        fold(captured)
    simplify(captured)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    if isinstance(loss_fn, nn.Module):
        tensors |= {f"loss.{key}": tensor for key, tensor in loss_fn.named_buffers()}
    decomposed = "none" if on_cuda else "core"
    graph = translate(captured, name, optimizer, tensors, keep_unused=training, decompositions=decomposed)
    return graph, tensors


def _device(device: str | torch.device | None, model: nn.Module, batch: Any, *, measure: bool,
            execute: bool) -> torch.device:
    """The device on which the step is to run and its calls are measured."""
    if execute and measure:
        raise ExportError(
            "measure=True is for graphs to plan with: give execute=False with it; the engine measures the calls of an "
            "executable step by itself, when `tightfit plan`, `train` or `calibrate` first meets them"
        )
    if execute and device is not None:
        raise ExportError(f"device={str(device)!r} is for graphs to plan with: give execute=False with it; the engine runs "
                          "an executable step on processors")
    try:
        found = torch.device(_home(model, batch, measure=measure) if device is None else device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ExportError(f"device={device!r} is no device; use \"cpu\" or \"cuda\"") from error
    if found.type not in ("cpu", "cuda") and (measure or device is not None):
        raise ExportError(f"steps are captured and measured for cpu and cuda, not for {found}; say device=…")
    count = kind_of(found).count()
    if measure and (found.index or 0) >= count:
        raise ExportError(f"there is no {found} here, PyTorch sees {count} of its kind; say another device=…, or leave "
                          "measure=True out")
    return found


def _home(model: nn.Module, batch: Any, *, measure: bool) -> str:
    """The device of the model and its batch; the processor if they have no memory."""
    leaves = [*model.parameters(), *model.buffers(), *pytree.tree_leaves(batch)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(map(is_memoryless, tensors)):
        return "cpu"
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1 and measure:
        raise ExportError(f"the model and its batch live on {' and '.join(devices)}; say device=… where to measure")
    return devices[0] if len(devices) == 1 else "cpu"


def _apart(batch: tuple[Any, Any]) -> tuple[Any, Any]:
    """The batch as a run provides it: contiguous, with no tensor a view of another."""
    def own(leaf: Any) -> Any:
        is_plain = isinstance(leaf, torch.Tensor) and not leaf.requires_grad
        return leaf.clone(memory_format=torch.contiguous_format) if is_plain else leaf

    return pytree.tree_map(own, batch)
