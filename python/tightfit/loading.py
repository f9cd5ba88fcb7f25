"""`tightfit.load`: what `tightfit train` saved, as the `state_dict` of the model that was exported.

Invariant: every key of the model's `state_dict` is there, tied parameters included, with the type and the shape that it
was exported with, or an exception says what is missing; no file changes.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .errors import WeightsError
from .step_json import FORMAT, REST, WEIGHTS

# What the program writes into the files that it saves.
_SAVED = "tightfit-weights/1"


def load(step: str | os.PathLike[str], saved: str | os.PathLike[str] | None = None) -> dict[str, torch.Tensor]:
    """The parameters and buffers of an exported step after training, for `model.load_state_dict`.

    `step` is the folder that `tightfit.export` wrote, and `saved` the file of `tightfit train STEP --save FILE`;
    without it, the one such file that lies in the folder.

        tightfit.export(model, loss_fn, batch, out="my-step", name="my-step", data=…)
        # tightfit train my-step --budget 60% --steps 1000 --save my-step/trained.safetensors
        model.load_state_dict(tightfit.load("my-step"))

    Keys are those of `model.state_dict()`: tied parameters are there under each of their names, as one tensor, and what
    the step does not read is as it was exported. Tensors are on the processor. The optimizer's state is not part of it:
    it lies in the same file, by parameter (`….exp_avg`, `….momentum`), and `--resume` goes on with it.

    Raises `WeightsError`.
    """
    folder = Path(step)
    described = _described(folder)
    name, recipes, differs = described["name"], described["parameters"], described.get("state_dict", {})
    path = _only_saved(folder, name) if saved is None else Path(saved)
    metadata, found = _tensors(path)
    if metadata.get("format") != _SAVED:
        raise WeightsError(f"{path} was not saved by `tightfit train`; name the file that followed --save")
    if metadata.get("step_name") != name:
        raise WeightsError(f"{path} was saved by a run of {metadata.get('step_name')!r}, and {folder} is {name!r}; "
                           "name the weights of this step")
    own = [key for key in recipes if key not in differs.get("foreign", ())]
    trained = _trained(folder / described.get("training", "train.json.gz"))
    wrong = [key for key in own if key in trained and (key not in found or list(found[key].shape) != trained[key])]
    if wrong:
        said = f"has no {wrong[0]!r}" if wrong[0] not in found else \
            f"has {wrong[0]!r} as {list(found[wrong[0]].shape)} and not as {trained[wrong[0]]}"
        more = f", and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
        raise WeightsError(f"{path} {said}, which {folder} trains{more}; name the weights that this step saved, or "
                           "train it again if it was exported anew")
    # What only the evaluation reads is no part of what is trained.
    initial = {} if all(key in found for key in own) else _tensors(folder / WEIGHTS)[1]
    lost = [key for key in own if key not in found and key not in initial]
    if lost:
        raise WeightsError(f"neither {path} nor {folder / WEIGHTS} has {lost[0]!r}; export the step again, and "
                           "train it")
    state = {key: found[key] if key in found else initial[key] for key in own}
    state |= {key: state[first] for key, first in differs.get("tied", {}).items()}
    if (folder / REST).is_file():
        state |= _tensors(folder / REST)[1]
    return state


def _described(folder: Path) -> dict[str, Any]:
    path = folder / "step.json"
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror}; give the folder that tightfit.export wrote") from error
    except ValueError as error:
        raise WeightsError(f"{path} is damaged ({error}); export the step again") from error
    parts = {"name": str, "parameters": dict}
    if not isinstance(described, dict) or described.get("format") != FORMAT \
            or not all(isinstance(described.get(part), kind) for part, kind in parts.items()):
        raise WeightsError(f"{path} describes no step of the format {FORMAT}; export the step again")
    return described


def _trained(path: Path) -> dict[str, list[int]]:
    """The shapes of the parameters and buffers that a training graph reads, by name."""
    try:
        nodes = json.loads(gzip.decompress(path.read_bytes()))["nodes"]
        return {node["parameter"]: node["outputs"][0]["shape"] for node in nodes
                if node["phase"] in ("parameter", "buffer")}
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror or error}; export the step again") from error
    except (ValueError, LookupError, TypeError, EOFError, zlib.error) as error:
        raise WeightsError(f"{path} is damaged ({error}); export the step again") from error


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


def _tensors(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The metadata and the tensors of a file."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}
    except FileNotFoundError:
        raise WeightsError(f"{path} is not there; train with `tightfit train STEP --save {path}`") from None
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors ({error}); it is damaged or no file of weights, save "
                           "it again") from error
