"""Builds `step.json`: which graphs make a training step, how its tensors start, and what data it reads.

Invariant: every parameter and buffer placeholder of either graph has exactly one recipe, and the weights file holds
exactly those tensors whose recipe is `{"file": …}`.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import ExportError
from .memoryless import is_memoryless
from .optimizer import Optimizer

FORMAT = "tightfit-step/1"
WEIGHTS = "weights.safetensors"
# File of the tensors that a model's `state_dict` has and neither graph reads.
REST = "rest.safetensors"

Recipe = dict[str, Any]
Initialisation = Callable[[str, torch.Tensor], Recipe | None]

_RECIPES = {"normal": {"mean", "std"}, "uniform": {"low", "high"}, "constant": None, "file": None}

def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_fraction(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"last_fraction"}:
        return False
    return _is_number(value["last_fraction"]) and 0 < value["last_fraction"] < 1


def _is_remainder(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"every", "remainder"}:
        return False
    every, remainder = value["every"], value["remainder"]
    return type(every) is int and type(remainder) is int and every > 1 and 0 <= remainder < every


# For each field of the data, its meaning in words, and the test of a value.
_COUNT = ("a whole number above 0", _is_count)
_FIELDS = {
    "file": ("a path", lambda value: isinstance(value, str | os.PathLike)),
    "batch": _COUNT,
    "sampling_seed": ("a whole number from 0 to 2^32 - 1", lambda value: type(value) is int and 0 <= value < 1 << 32),
}
_DATA_FIELDS = {
    "bytes": _FIELDS | {
        "window": _COUNT,
        "validation": ('{"last_fraction": f} with f between 0 and 1', _is_fraction),
    },
    "table": _FIELDS | {
        "features": _COUNT,
        "scale": ("a finite number", _is_number),
        "evaluation_batch": ("a whole number above 0, or None", lambda value: value is None or _is_count(value)),
        "validation": ('{"every": n, "remainder": r} with n above 1 and r below n', _is_remainder),
    },
}


def recipes(graphs: list[dict[str, Any]], tensors: dict[str, torch.Tensor],
            initialisation: Initialisation | None) -> tuple[dict[str, Recipe], dict[str, torch.Tensor]]:
    """The recipe of every parameter and buffer of `graphs`, and the tensors that are stored as they are."""
    names = dict.fromkeys(
        node["parameter"] for graph in graphs for node in graph["nodes"] if node["phase"] in ("parameter", "buffer")
    )
    chosen: dict[str, Recipe] = {}
    stored: dict[str, torch.Tensor] = {}
    for name in names:
        tensor = tensors[name]
        recipe = initialisation(name, tensor) if initialisation is not None else None
        chosen[name] = {"file": WEIGHTS} if recipe is None else _checked(name, recipe)
        if "file" in chosen[name]:
            stored[name] = _stored(name, tensor)
    return chosen, stored


def state_dict_of(model: nn.Module, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """How the `state_dict` of a model differs from what the graphs read by these names: `tied`, keys whose tensor has
    another name in the graphs, and `foreign`, names that are not keys; and the tensors that no graph reads."""
    state = model.state_dict(keep_vars=True)
    known = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    names = list(names)
    name_of = {key: known.get(id(tensor), key) for key, tensor in state.items()}
    tied = {key: name for key, name in name_of.items() if name != key and name in names}
    foreign = [name for name in names if name_of.get(name) != name]
    rest = {key: _stored(key, tensor) for key, tensor in state.items()
            if isinstance(tensor, torch.Tensor) and name_of[key] not in names}
    differs = {key: part for key, part in (("tied", tied), ("foreign", foreign)) if part}
    return differs, rest


def _stored(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if is_memoryless(tensor):
        raise ExportError(
            f"{name!r} has no memory of its own, so there are no values to begin with: build the model on the CPU, or "
            "give it memory with to_empty(device=\"cpu\") and load its weights; or let initialisation=… give every "
            "tensor a recipe; or export with execute=False, a graph to plan with"
        )
    return tensor.detach()


def _checked(name: str, recipe: Recipe) -> Recipe:
    if not isinstance(recipe, dict) or len(recipe) != 1 or next(iter(recipe)) not in _RECIPES:
        raise ExportError(f"initialisation of {name!r} returned {recipe!r}; return one of {', '.join(_RECIPES)}, or None")
    [(kind, options)] = recipe.items()
    expected = _RECIPES[kind]
    if expected is not None and (not isinstance(options, dict) or set(options) != expected):
        raise ExportError(f"initialisation {kind!r} of {name!r} needs exactly {', '.join(sorted(expected))}; got {options!r}")
    if kind == "file" and options != WEIGHTS:
        raise ExportError(f"initialisation of {name!r} names file {options!r}; use {WEIGHTS!r} or return None")
    return recipe


def data_entry(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The step's data, with the file's SHA-256; its path is relative to the step's folder."""
    kind = data.get("kind") if isinstance(data, dict) else data
    if not isinstance(kind, str) or kind not in _DATA_FIELDS:
        raise ExportError(f"data kind {kind!r} is not known; use one of {', '.join(_DATA_FIELDS)}")
    fields = _DATA_FIELDS[kind]
    missing = sorted(set(fields) - set(data))
    if missing:
        raise ExportError(f"data of kind {kind!r} lacks {', '.join(missing)}")
    unknown = sorted(set(data) - set(fields) - {"kind", "sha256"})
    if unknown:
        raise ExportError(f"data of kind {kind!r} has no {', '.join(unknown)}; its fields are {', '.join(fields)}")
    for field, (what, holds) in fields.items():
        if not holds(data[field]):
            raise ExportError(f"data field {field!r} is {data[field]!r}; give {what}")
    path = Path(os.path.normpath(folder.absolute() / data["file"]))  # the folder need not exist yet
    if not path.is_file():
        raise ExportError(f"the data file {data['file']!r} is not there: seen from the step's folder it is {path}; "
                          f"{_where_else(data['file'], folder)}")
    found = _digest(path)
    if data.get("sha256", found) != found:
        raise ExportError(f"the data file {data['file']!r} has SHA-256 {found}, not {data['sha256']}; check its version")
    return {**data, "file": os.fspath(data["file"]), "sha256": found}


def check_batch(data: dict[str, Any], batch: tuple[torch.Tensor, torch.Tensor], of: str) -> None:
    """Refuses a batch, given as the argument `of`, that is not what such data provides. Without a batch of its own the
    evaluation uses the example's."""
    inputs, targets = batch
    rows = data["batch"] if of == "example_batch" else data.get("evaluation_batch")
    if rows is None:
        rows = len(inputs) if inputs.dim() else 0
    if data["kind"] == "bytes":
        given = {"inputs": ((rows, data["window"]), torch.int64), "targets": ((rows, data["window"]), torch.int64)}
    else:
        given = {"inputs": ((rows, data["features"]), torch.float32), "targets": ((rows,), torch.int64)}
    for (name, (shape, dtype)), tensor in zip(given.items(), (inputs, targets), strict=True):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ExportError(
                f"the {name} of {of} are {list(tensor.shape)} of {tensor.dtype}, but data of kind {data['kind']!r} gives "
                f"{list(shape)} of {dtype}: change the fields of data, or give such a batch and have the model's forward "
                "bring it into the form that it needs"
            )


def _where_else(file: str, folder: Path) -> str:
    """Advice if a data file does not exist at its path: the path may have been meant relative to the working folder."""
    if not Path(file).is_file():
        return "write it first, or name the one that there is"
    return f"write {os.path.relpath(Path(file).absolute(), folder.absolute())!r} for the one that lies in this folder"


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def document(name: str, description: str, parameters: dict[str, Recipe], optimizer: Optimizer,
             data: dict[str, Any], provenance: dict[str, Any], state_dict: dict[str, Any]) -> dict[str, Any]:
    """The whole of `step.json`."""
    return {
        "format": FORMAT,
        "name": name,
        "description": description,
        "training": "train.json.gz",
        "evaluation": "eval.json.gz",
        "parameters": parameters,
        **({"state_dict": state_dict} if state_dict else {}),
        "optimizer": {"kind": optimizer.kind, "learning_rate": optimizer.learning_rate},
        "data": data,
        "provenance": provenance,
    }
