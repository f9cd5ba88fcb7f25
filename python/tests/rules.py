"""The rules of `tightfit-graph/1` that every exported graph must keep, checked from the JSON alone.

Invariant: shares no code with the exporter.
"""

from typing import Any

SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u8": 1, "bool": 1}
PHASES = ["parameter", "buffer", "state", "input", "forward", "loss", "backward", "optimizer"]


def check(graph: dict[str, Any]) -> None:
    """Asserts every rule; the message names the node."""
    assert graph["format"] == "tightfit-graph/1"
    assert graph["modules"][0] == "" and len(set(graph["modules"])) == len(graph["modules"])
    uncalled = set(graph.get("uncalled", []))
    produced: dict[int, dict] = {}
    phase_of: dict[str, str] = {}
    latest: dict[int, int] = {}
    newest: dict[int, int] = {}
    version: dict[int, int] = {}
    slots, names = [], set()
    for node in graph["nodes"]:
        name = node["name"]
        assert name not in names, f"{name}: not unique"
        names.add(name)
        assert node["phase"] in PHASES, f"{name}: phase {node['phase']}"
        assert 0 <= node.get("module", 0) < len(graph["modules"]), f"{name}: module"
        module = graph["modules"][node.get("module", 0)]
        assert node["phase"] not in ("forward", "loss", "backward") or module not in uncalled, f"{name}: runs in {module!r}, which is never called"
        if "differentiates" in node:
            linked = phase_of.get(node["differentiates"])
            assert node["phase"] == "backward" and linked in ("forward", "loss"), f"{name}: differentiates a {linked} node"
        phase_of[name] = node["phase"]
        assert node["op"] == "placeholder" or node["op"].startswith(("aten.", "tightfit.")), f"{name}: {node['op']}"
        assert node["inputs"] == _mentioned(node), f"{name}: inputs differ from args"
        for value in node["inputs"]:
            assert value in produced, f"{name}: reads {value} before it is produced"
            storage = produced[value]["storage"]
            assert version[value] == latest.get(storage, 0), f"{name}: reads {value} after its storage was overwritten"
        outputs = [output for output in node["outputs"] if output is not None]
        assert outputs, f"{name}: produces nothing"
        read = {produced[value]["storage"] for value in node["inputs"]}
        if node["op"] == "placeholder":
            assert not node["inputs"], f"{name}: placeholder with inputs"
            assert (node["phase"] in ("parameter", "buffer", "state")) == ("parameter" in node), f"{name}: parameter"
        for output in outputs:
            storage = output["storage"]
            if node.get("mutates"):
                assert storage in read, f"{name}: mutates a storage that it does not read"
                latest[storage] = latest.get(storage, 0) + 1
            elif storage not in read:
                assert storage not in newest, f"{name}: storage {storage} is produced twice"
            newest[storage] = output["id"]
            assert output["id"] not in produced, f"{name}: value {output['id']} is produced twice"
            produced[output["id"]] = output
            version[output["id"]] = latest.get(storage, 0)
            _check_extent(name, output, graph["storages"][storage])
        view = not node.get("mutates") and node["inputs"] and all(output["storage"] in read for output in outputs)
        cost = node.get("flops", 0) + node.get("bytes_read", 0) + node.get("bytes_written", 0)
        assert not (cost and (view or node["op"] == "placeholder")), f"{name}: a view or placeholder has a cost"
        if node.get("random"):
            slots.append(node["seed_slot"])
        else:
            assert "seed_slot" not in node, f"{name}: a seed slot without random numbers"
    assert slots == list(range(len(slots))), f"seed slots {slots}"
    assert set(graph["outputs"]) <= set(produced)


def check_training(graph: dict[str, Any], states: int = 2) -> None:
    """The rules of a graph that ends in an optimizer."""
    producer = {output["id"]: node for node in graph["nodes"] for output in node["outputs"] if output is not None}
    parameters = {node["outputs"][0]["id"] for node in graph["nodes"] if node["phase"] == "parameter"}
    phases = [PHASES.index(node["phase"]) for node in graph["nodes"] if node["op"] != "aten.copy_.default"]
    assert phases == sorted(phases), "phases are out of order"
    updated = []
    for node in graph["nodes"]:
        if node["phase"] != "optimizer":
            continue
        assert node.get("mutates") and node["op"].startswith("tightfit."), node["name"]
        parameter, gradient, *state = (argument["value"] for argument in node["args"])
        assert len(state) == states == len(node["outputs"]) - 1, node["name"]
        assert producer[parameter]["phase"] == "parameter", node["name"]
        assert producer[gradient]["phase"] == "backward", f"{node['name']}: gradient is from {producer[gradient]['name']}"
        for value in state:
            assert producer[value]["parameter"].startswith(producer[parameter]["parameter"] + "."), node["name"]
        shapes = {tuple(output["shape"]) for output in node["outputs"]}
        assert len(shapes) == 1, node["name"]
        updated.append(parameter)
    assert len(set(updated)) == len(updated) and set(updated) <= parameters
    [loss] = graph["outputs"]
    assert producer[loss]["phase"] == "loss"


def _mentioned(node: dict[str, Any]) -> list[int]:
    def walk(argument: Any) -> list[int]:
        if isinstance(argument, dict):
            if set(argument) == {"value"}:
                return [argument["value"]]
            return [value for item in argument.values() for value in walk(item)]
        return [value for item in argument for value in walk(item)] if isinstance(argument, list) else []

    return list(dict.fromkeys(walk(node.get("args", [])) + walk(node.get("kwargs", {}))))


def _check_extent(name: str, output: dict[str, Any], capacity: int) -> None:
    shape = output["shape"]
    standard = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        standard[axis] = standard[axis + 1] * max(shape[axis + 1], 1)
    contiguous = output.get("contiguous", True)
    assert contiguous or "strides" in output, f"{name}: value {output['id']} lacks strides"
    strides = standard if contiguous else output["strides"]
    last = output.get("offset", 0) + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape:
        assert (last + 1) * SIZES[output["dtype"]] <= capacity, f"{name}: value {output['id']} leaves its storage"
