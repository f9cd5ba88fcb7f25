"""`tightfit.load`: what `tightfit train` saved, as the `state_dict` of the model that was exported.

Invariant: every key of the model's `state_dict` that the step names is present, tied parameters included, with the type
and shape that it was exported with, or a `WeightsError` says what is missing or damaged; no file changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from . import given, reading
from .errors import GraphFileError, WeightsError
from .graph import DTYPES
from .step_json import FORMAT, REST, WEIGHTS

# The format that the program notes in the files that it saves.
_SAVED = "tightfit-weights/1"
# Key of the metadata's checksum; a tensor's checksum has this key, a dot and its name.
_CHECKSUM = "sha256"
_TYPES = {name: dtype for dtype, name in DTYPES.items()}

# A tensor's type and shape.
_Kind = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class _Step:
    """What `step.json` says about its graphs and about the model's state."""

    name: str
    training: Path
    evaluation: Path | None
    # What the graphs read, by the graphs' names.
    parameters: tuple[str, ...]
    # Keys of the model's state whose tensor has another name in the graphs.
    tied: Mapping[str, str]
    # Names in the graphs that are not keys of the model's state.
    foreign: frozenset[str]


def load(step: str | os.PathLike[str], saved: str | os.PathLike[str] | None = None) -> dict[str, torch.Tensor]:
    """The parameters and buffers of an exported step after training, for `model.load_state_dict`.

    `step` is the folder that `tightfit.export` wrote, and `saved` the file of `tightfit train STEP --save FILE`;
    without it, the only such file in the folder.

        tightfit.export(model, loss_fn, batch, out="my-step", name="my-step", data=…)
        # tightfit train my-step --budget 60% --steps 1000 --save my-step/trained.safetensors
        model.load_state_dict(tightfit.load("my-step"))

    Keys are those of `model.state_dict()`: tied parameters appear under each of their names, as one tensor, and what
    the step does not read is as it was exported. Tensors are on the processor. The optimizer's state is not part of it:
    it is in the same file, by parameter (`….exp_avg`, `….momentum`), and `--resume` continues with it.

    Raises `WeightsError`, and `OptionError` if `step` or `saved` is not a path.
    """
    folder = given.path(step, "step")
    named = None if saved is None else given.path(saved, "saved")
    described = _described(folder / "step.json")
    path = _only_saved(folder, described.name) if named is None else named
    metadata, found = _tensors(path, f"train with `tightfit train {folder} --save {path}`", "save it again")
    if metadata.get("format") != _SAVED:
        raise WeightsError(f"{path} was not saved by `tightfit train`; name the file that followed --save")
    if metadata.get("step_name") != described.name:
        raise WeightsError(f"{path} was saved by a run of {metadata.get('step_name')!r}, and {folder} is "
                           f"{described.name!r}; name the weights of this step")
    own = [name for name in described.parameters if name not in described.foreign]
    needed = dict.fromkeys([*own, *described.tied.values()])
    trained, kinds = _kinds(described, needed, folder)
    # What only the evaluation reads is not trained.
    _check(path, found, {key: kinds[key] for key in needed if key in trained or key in found},
           f"which {folder} reads", "name the weights that this step saved, or train it again if it was exported again")
    untrained = [key for key in needed if key not in found]
    if untrained:
        again = "export the step again, and train it"
        initial = _tensors(folder / WEIGHTS, again, again)[1]
        _check(folder / WEIGHTS, initial, {key: kinds[key] for key in untrained}, f"which {path} does not have either",
               again)
        found |= {key: initial[key] for key in untrained}
    state = {key: found[key] for key in own} | {key: found[name] for key, name in described.tied.items()}
    return state | _unread(folder / REST, state)


def _described(path: Path) -> _Step:
    """The content of a `step.json`, checked completely here: later code can rely on its structure."""
    content = _read(reading.step, path, "give the folder that tightfit.export wrote")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise WeightsError(f"{path} describes no step of the format {FORMAT}; export the step again")
    name, training, evaluation = content.get("name"), content.get("training"), content.get("evaluation")
    parameters, differs = content.get("parameters"), content.get("state_dict", {})
    tied, foreign = (differs.get("tied", {}), differs.get("foreign", [])) if isinstance(differs, dict) else ({}, [])
    parts = [("name", str, name), ("training", str, training), ("evaluation", str | None, evaluation),
             ("parameters", dict, parameters), ("state_dict", dict, differs), ("tied", dict, tied),
             ("foreign", list, foreign)]
    wrong = [f"{part!r} is {'missing' if value is None else 'of the type ' + type(value).__name__}"
             for part, kind, value in parts if not isinstance(value, kind)]
    if not wrong:
        # Values may be anything, including unhashable ones.
        wrong = [f"{key!r} is tied to what 'parameters' lacks" for key, value in tied.items()
                 if not isinstance(value, str) or value not in parameters]
        wrong += ["'foreign' names what 'parameters' lacks" for value in foreign
                  if not isinstance(value, str) or value not in parameters]
        wrong += [f"{key!r} is in 'parameters' and tied to another" for key in tied
                  if key in parameters and key not in foreign]
    if wrong:
        raise WeightsError(f"{path} is damaged: {wrong[0]}; export the step again")
    return _Step(name, path.parent / training, path.parent / evaluation if evaluation is not None else None,
                 tuple(parameters), tied, frozenset(foreign))


def _kinds(described: _Step, needed: Iterable[str], folder: Path) -> tuple[dict[str, _Kind], dict[str, _Kind]]:
    """What the training graph reads, and what either graph reads; checks that `step.json` lacks none of it."""
    known, trained = set(described.parameters), _read_by(described.training)
    kinds = trained if described.evaluation is None else _read_by(described.evaluation) | trained
    for name in kinds:
        if name not in known:
            raise WeightsError(f"{folder / 'step.json'} is damaged: 'parameters' lacks {name!r}, which a graph of the "
                               "step reads; export the step again")
    for name in needed:
        if name not in kinds:
            raise WeightsError(f"{described.training} is damaged: it does not read {name!r}, which step.json names; "
                               "export the step again")
    return trained, kinds


def _read_by(path: Path) -> dict[str, _Kind]:
    """The type and the shape of the parameters and buffers that a graph reads, by name."""
    content = _read(reading.graph, path, "export the step again")
    found: dict[str, _Kind] = {}
    try:
        for node in content["nodes"]:
            if node["phase"] in ("parameter", "buffer"):
                name, output = node["parameter"], node["outputs"][0]
                shape = tuple(output["shape"])
                if not isinstance(name, str) or not all(type(size) is int for size in shape):
                    raise TypeError("a tensor's name or shape is none")
                found[name] = _TYPES[output["dtype"]], shape
    except (LookupError, TypeError) as error:
        raise WeightsError(f"{path} is damaged ({error}); export the step again") from error
    return found


def _read(read: Callable[[Path], Any], path: Path, otherwise: str) -> Any:
    """The content of a file; `otherwise` is the advice if it cannot be read."""
    try:
        return read(path)
    except (GraphFileError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged ({error}); export the step again") from error
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror or error}; {otherwise}") from error


def _check(path: Path, found: Mapping[str, torch.Tensor], kinds: Mapping[str, _Kind], which: str, advice: str) -> None:
    """Refuses tensors that are missing, or of another type or shape."""
    wrong = [key for key, kind in kinds.items()
             if key not in found or (found[key].dtype, tuple(found[key].shape)) != kind]
    if wrong:
        key, more = wrong[0], f", and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
        said = f"has no {key!r}" if key not in found else \
            f"has {key!r} as {_said(found[key].dtype, found[key].shape)} and not as {_said(*kinds[key])}"
        raise WeightsError(f"{path} {said}, {which}{more}; {advice}")


def _said(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _unread(path: Path, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a model's state that no graph reads; there is no file if there are none."""
    if not os.path.lexists(path):
        return {}
    found = _tensors(path, "export the step again", "export the step again")[1]
    both = [key for key in found if key in state]
    if both:
        raise WeightsError(f"{path} is damaged: it has {both[0]!r}, which the step reads; export the step again")
    return found


def _only_saved(folder: Path, name: str) -> Path:
    """The one file in a folder that a run of the step saved."""
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in (WEIGHTS, REST) and _metadata(path).get("step_name") == name:
            found.append(path)
    if not found:
        raise WeightsError(f"no trained weights lie in {folder}; train with `tightfit train {folder} --save "
                           f"{folder / 'trained.safetensors'}`, or name the file: tightfit.load(…, saved=…)")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise WeightsError(f"several runs were saved in {folder}: {names}; name one of them: tightfit.load(…, saved=…)")
    return found[0]


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError):
        return {}


def _tensors(path: Path, absent: str, damaged: str) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The metadata and the tensors of a file; `absent` and `damaged` are the advice in those cases."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata, tensors = file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}
    except FileNotFoundError:
        raise WeightsError(f"{path} is not there; {absent}") from None
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors ({error}); it is damaged or no file of weights, "
                           f"{damaged}") from error
    # Files from other programs or earlier versions have no checksums.
    if any(key.startswith(_CHECKSUM) for key in metadata):
        if metadata.get(_CHECKSUM) != _seal(metadata):
            raise WeightsError(f"{path} is damaged: its header is not what was saved; {damaged}")
        for key, tensor in tensors.items():
            if hashlib.sha256(_bytes(tensor)).hexdigest() != metadata.get(f"{_CHECKSUM}.{key}"):
                raise WeightsError(f"{path} is damaged: {key!r} is not what was saved, bit for bit; {damaged}")
    return metadata, tensors


def _seal(metadata: Mapping[str, str]) -> str:
    """The checksum of all other metadata, serialised as the program does: sorted by key, without spaces."""
    rest = {key: value for key, value in metadata.items() if key != _CHECKSUM}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
