"""The kernel goldens agree with PyTorch: every case is run again from its files.

Invariant: the inputs are rebuilt from shape, strides and offset alone, as any reader of the files has to do.

Tier: quick, since it takes less than a second.
"""

import json

import interpreter
import pytest
import rules
import torch
from conftest import ROOT
from safetensors import safe_open
from safetensors.torch import load_file

KERNELS = sorted(path.name.removesuffix(".json") for path in (ROOT / "corpus" / "kernels").glob("*.json"))
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6, "equal_nan": True}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(corpus, name):
    graph = interpreter.read(corpus / "kernels" / f"{name}.json")
    rules.check(graph)
    stored = load_file(corpus / "kernels" / f"{name}.safetensors")
    given = {}
    for node in graph["nodes"]:
        if node["op"] == "placeholder":
            [output] = node["outputs"]
            given[node["name"]] = _rebuild(output, stored[f"value.{output['id']}"], graph["storages"][output["storage"]])
        else:
            assert node["op"] == name
    values = _run(graph, given, corpus / "kernels" / f"{name}.safetensors")
    assert set(stored) == {f"value.{node['outputs'][0]['id']}" for node in graph["nodes"] if node["op"] == "placeholder"} | {
        f"value.{value}" for value in graph["outputs"]
    }
    for value in graph["outputs"]:
        torch.testing.assert_close(values[value], stored[f"value.{value}"], **TOLERANCE)


def _run(graph, given, weights):
    """Runs all cases; those of optimizers take their step and learning rate from the metadata of the tensors' file."""
    with safe_open(weights, "pt") as stored:
        metadata = json.loads((stored.metadata() or {}).get("cases", "{}"))
    if not metadata:
        return interpreter.run(graph, given, keep=True)
    placeholders = [node for node in graph["nodes"] if node["op"] == "placeholder"]
    values = {}
    for node in graph["nodes"]:
        if node["op"] != "placeholder":
            read = [source for source in placeholders if source["outputs"][0]["id"] in node["inputs"]]
            values |= interpreter.run({"nodes": [*read, node]}, given, keep=True, **metadata[node["name"]])
    return values


def _rebuild(output, content, size):
    storage = torch.zeros(size // content.element_size(), dtype=content.dtype)
    if output.get("contiguous", True):
        strides = content.stride()
    else:
        strides = output["strides"]
    offset = output.get("offset", 0)
    shape = [1 if stride == 0 else extent for extent, stride in zip(output["shape"], strides, strict=True)]
    storage.as_strided(shape, strides, offset).copy_(content[tuple(slice(0, extent) for extent in shape)])
    return storage.as_strided(output["shape"], strides, offset)
