"""Writes cases by hand, each a tiny step or graph with one thing wrong, into the folders of their targets.

Invariant: running this again gives the same bytes; what is wrong with a case is the name of its folder.
"""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Json = dict[str, Any]


def graph_of(seed: str) -> Json:
    """The training graph of a seed."""
    return json.loads(gzip.decompress((HERE / "seeds" / seed / "train.json.gz").read_bytes()))


def packed(graph: Json) -> bytes:
    """A graph as the bytes of its file."""
    return gzip.compress(json.dumps(graph).encode(), mtime=0)


def node_of(graph: Json, op: str) -> Json:
    """The first call of an operator."""
    return next(node for node in graph["nodes"] if node["op"] == op)


def add_copy(graph: Json, op: str, change: Callable[[Json, Json], None]) -> None:
    """Adds the first call of an operator again, with storages of its own and one thing wrong; nothing reads it."""
    nodes = graph["nodes"]
    place = next(i for i, node in enumerate(nodes) if node["op"] == op)
    copy = json.loads(json.dumps(nodes[place]))
    copy["name"] = "added"
    copy.pop("differentiates", None)
    for index, output in enumerate(copy["outputs"]):
        if output is not None:
            output["id"] = 1_000_000 + index
            graph["storages"].append(graph["storages"][output["storage"]])
            output["storage"] = len(graph["storages"]) - 1
    if "seed_slot" in copy:
        copy["seed_slot"] = 1000
    change(graph, copy)
    nodes.insert(place + 1, copy)


def make_room(graph: Json, output: Json) -> None:
    """Makes the storage of an output large enough for any shape."""
    graph["storages"][output["storage"]] = 1 << 16


def other_shape(index: int, shape: Callable[[list[int]], list[int]]) -> Callable[[Json, Json], None]:
    """Gives an output another shape."""

    def change(graph: Json, node: Json) -> None:
        output = node["outputs"][index]
        output["shape"] = shape(output["shape"])
        output.pop("strides", None)
        output.pop("contiguous", None)
        make_room(graph, output)

    return change


def other_type(graph: Json, node: Json) -> None:
    """Calls the first output boolean."""
    node["outputs"][0]["dtype"] = "bool"


def overlapping(graph: Json, node: Json) -> None:
    """Puts all elements of the first output in one place."""
    output = node["outputs"][0]
    output["strides"], output["contiguous"] = [0] * len(output["shape"]), False


def one_storage(graph: Json, node: Json) -> None:
    """Puts all outputs into the storage of the first."""
    for output in node["outputs"][1:]:
        output["storage"] = node["outputs"][0]["storage"]


def larger(shape: list[int]) -> list[int]:
    """Twice as many rows."""
    return [2 * shape[0], *shape[1:]]


def smaller(shape: list[int]) -> list[int]:
    """The last extent less one."""
    return [*shape[:-1], shape[-1] - 1]


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"

CALLS: list[tuple[str, str, str, Callable[[Json, Json], None]]] = [
    ("gelu-into-booleans", "transformer", "aten.gelu.default", other_type),
    ("gelu-into-one-place", "transformer", "aten.gelu.default", overlapping),
    ("dropout-of-one-storage", "dropout", "aten.native_dropout.default", one_storage),
    ("dropout-mask-too-large", "dropout", "aten.native_dropout.default", other_shape(1, larger)),
    ("embedding-of-more-rows", "transformer", "aten.embedding.default", other_shape(0, larger)),
    ("layer-norm-too-small", "perceptron", "aten.native_layer_norm.default", other_shape(0, smaller)),
    ("layer-norm-gradient-too-large", "perceptron", "aten.native_layer_norm_backward.default", other_shape(0, larger)),
    ("softmax-too-large", "mixture", "aten._softmax.default", other_shape(0, larger)),
    ("log-softmax-gradient-too-small", "mixture", "aten._log_softmax_backward_data.default", other_shape(0, smaller)),
    ("attention-too-large", "transformer", f"{ATTENTION}.default", other_shape(0, larger)),
    ("attention-gradient-too-small", "transformer", f"{ATTENTION}_backward.default", other_shape(1, smaller)),
    ("loss-of-several-elements", "perceptron", "aten.nll_loss_forward.default", other_shape(0, lambda _: [4])),
    ("total-weight-of-several-elements", "perceptron", "aten.nll_loss_forward.default", other_shape(1, lambda _: [4])),
    ("cat-too-small", "mixture", "aten.cat.default", other_shape(0, smaller)),
]


def write_step(name: str, seed: str, graph: Json, step: Json | None = None) -> None:
    """Writes a step's folder, without its evaluation."""
    folder = HERE / "execute" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    document = step or json.loads((HERE / "seeds" / seed / "step.json").read_text())
    document["evaluation"] = None
    data = document["data"]["file"]
    shutil.copy(HERE / "seeds" / seed / data, folder / data)
    (folder / "train.json.gz").write_bytes(packed(graph))
    (folder / "step.json").write_text(json.dumps(document, indent=1) + "\n")


def write_graph(target: str, name: str, graph: Json) -> None:
    """Writes a graph alone."""
    folder = HERE / target / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graph.json").write_bytes(packed(graph))


def unwritten_bytes() -> Json:
    """A graph that reads what lies after a tensor's elements, in a storage that is larger than the tensor."""
    graph = graph_of("perceptron")
    producer = node_of(graph, "aten.gelu.default")
    made = producer["outputs"][0]
    extent = made["shape"][0] * made["shape"][1]
    graph["storages"][made["storage"]] = 8 * extent
    view = {
        "name": "added", "op": "aten.as_strided.default", "phase": "forward", "inputs": [made["id"]],
        "args": [{"value": made["id"]}, [extent], [1], extent],
        "outputs": [{"id": 1_000_000, "shape": [extent], "dtype": "f32", "storage": made["storage"], "offset": extent}],
    }
    storage = len(graph["storages"])
    graph["storages"].append(4 * extent)
    reader = {
        "name": "reader", "op": "aten.relu.default", "phase": "forward", "inputs": [1_000_000],
        "args": [{"value": 1_000_000}],
        "outputs": [{"id": 1_000_001, "shape": [extent], "dtype": "f32", "storage": storage}],
    }
    place = graph["nodes"].index(producer)
    graph["nodes"][place + 1 : place + 1] = [view, reader]
    graph["outputs"].append(1_000_001)
    if "output_names" in graph:
        graph["output_names"].append("beyond")
    return graph


def main() -> None:
    """Writes them all."""
    for name, seed, op, change in CALLS:
        graph = graph_of(seed)
        add_copy(graph, op, change)
        write_step(name, seed, graph)
    write_graph("execute", "unwritten-bytes", unwritten_bytes())
    graph = graph_of("transformer")
    next(node for node in graph["nodes"] if node["name"] == "target")["outputs"][0]["shape"] = [1, 6]
    write_step("fewer-targets-than-windows", "transformer", graph)
    for name, field, value in [
        ("rate-below-zero", "learning_rate", -1.0),
        ("optimizer-of-no-kind", "kind", "nobody's"),
    ]:
        step = json.loads((HERE / "seeds" / "perceptron" / "step.json").read_text())
        step["optimizer"][field] = value
        write_step(name, "perceptron", graph_of("perceptron"), step)
    graph = graph_of("perceptron")
    for node in graph["nodes"]:
        if node["op"] != "placeholder":
            node["seconds"] = 1e308
    write_graph("graph", "seconds-beyond-any-sum", graph)
    graph = graph_of("perceptron")
    graph["name"] = graph["nodes"][0]["name"] = "\x1b[2Jname\u202e\u0000"
    write_graph("graph", "names-with-escapes", graph)


if __name__ == "__main__":
    main()
