"""Synthetic joint graphs in tightfit-graph/1. Invariant: the same arguments give the same bytes, as
long as zlib packs alike.

Two families. *Small* graphs, each operator with one output, costs in milliseconds and sizes in units of one mebibyte:
chains, transformers, U-nets, for some of which the optimum at half the peak is proven (optima.json). *Transformers* of
any number of layers with real proportions of sizes, operations and traffic, to see how time grows with the graph.

    python3 generate.py                      writes everything that lies beside this file
    python3 generate.py --layers 6700 OUT    writes one transformer of that many layers (30 nodes each) to OUT
"""

import argparse
import gzip
import json
import pathlib
import random

UNIT = 1 << 20  # bytes


class Sketch:
    """The forward half of a small graph. Operators are told by their index."""

    def __init__(self):
        self.operators = []

    def add(self, inputs, size, cost, saves=None, saves_output=False, weight_cost=0.0):
        """One operator. `saves`: which inputs its gradient reads (default all); `saves_output`: it reads the output
        too; `weight_cost`: cost of the gradient of its weight, 0 where it has none."""
        saves = [True] * len(inputs) if saves is None else saves
        self.operators.append((list(inputs), size, cost, saves, saves_output, weight_cost))
        return len(self.operators) - 1

    def joint(self):
        """Rows (phase, inputs, size, cost) of forward and backward. Gradients are made in the reverse order of the
        operators; where an operator's output has several readers, their gradients are added up one by one."""
        rows = [("forward", inputs, size, cost) for inputs, size, cost, *_ in self.operators]

        def backward(inputs, size, cost):
            rows.append(("backward", sorted(set(inputs)), size, cost))
            return len(rows) - 1

        last = len(self.operators) - 1
        _, size, cost, *_ = self.operators[last]
        gradient = {last: backward([last], size, cost * 0.5)}
        for index in range(last, -1, -1):
            if index not in gradient:
                continue
            inputs, _, cost, saves, saves_output, weight_cost = self.operators[index]
            saved = [value for value, kept in zip(inputs, saves) if kept] + ([index] if saves_output else [])
            distinct = list(dict.fromkeys(inputs))
            for value in distinct:
                its_inputs, its_size, its_cost, *_ = self.operators[value]
                if not its_inputs:
                    continue  # the batch needs no gradient
                part = backward([gradient[index], *saved], its_size, cost / len(distinct))
                if value in gradient:
                    part = backward([gradient[value], part], its_size, 0.02 * its_cost + 1e-3)
                gradient[value] = part
            if weight_cost:
                # Updates its weight at once, so nothing is left to hold.
                backward([gradient[index], *saved], 0, weight_cost)
        return rows


def chain(length):
    draw, sketch = random.Random(0), Sketch()
    x = sketch.add([], draw.randint(4, 12), 0.1)
    for _ in range(length):
        x = sketch.add([x], draw.randint(2, 12), draw.choice([1, 1, 2, 4, 8]))
    return sketch


def small_transformer(blocks):
    sketch, h = Sketch(), 64
    x = sketch.add([], h, 0.3)
    for _ in range(blocks):
        norm = sketch.add([x], h, 0.15)
        query, key, value = (sketch.add([norm], h, 1.0, weight_cost=1.0) for _ in range(3))
        attention = sketch.add([query, key, value], h, 1.6, saves_output=True)
        projection = sketch.add([attention], h, 1.0, weight_cost=1.0)
        dropout = sketch.add([projection], h, 0.1, [False], True)
        middle = sketch.add([x, dropout], h, 0.15, [False, False])
        norm = sketch.add([middle], h, 0.15)
        up = sketch.add([norm], 4 * h, 4.0, weight_cost=4.0)
        gelu = sketch.add([up], 4 * h, 0.4)
        down = sketch.add([gelu], h, 4.0, weight_cost=4.0)
        dropout = sketch.add([down], h, 0.1, [False], True)
        x = sketch.add([middle, dropout], h, 0.15, [False, False])
    x = sketch.add([x], h, 0.15)
    logits = sketch.add([x], 6 * h, 6.0, weight_cost=6.0)
    sketch.add([logits], 1, 0.4)
    return sketch


def unet(depth, repeats):
    sketch, cost = Sketch(), 8.0

    def block(x, size):
        for _ in range(repeats):
            x = sketch.add([x], size, cost, weight_cost=cost)  # convolution
            x = sketch.add([x], size, cost * 0.05)  # normalization
            x = sketch.add([x], size, cost * 0.03, [False], True)  # activation
        return x

    size, skips = 256, []
    x = sketch.add([], size // 4, 0.1)
    for _ in range(depth):
        x = block(x, size)
        skips.append((x, size))
        x = sketch.add([x], size // 4 or 1, 0.1)
        size = max(1, size // 2)
    x = block(x, size)
    for skip, size in reversed(skips):
        x = sketch.add([x], size, cost * 0.5, weight_cost=cost * 0.5)
        x = sketch.add([x, skip], 2 * size, 0.2, [False, False])
        x = block(x, size)
    sketch.add([x], 1, 0.2)
    return sketch


SMALL = {
    "chain24": lambda: chain(24),
    "chain50": lambda: chain(50),
    "tf2": lambda: small_transformer(2),
    "unet2_1": lambda: unet(2, 1),
    "unet3_1": lambda: unet(3, 1),
}


def small_graph(name):
    nodes, storages = [], []
    for index, (phase, inputs, size, cost) in enumerate(SMALL[name]().joint()):
        storages.append(size * UNIT)
        output = {"id": index, "shape": [size * UNIT], "dtype": "u8", "storage": index}
        seconds = round(round(cost, 5) * 1e-3, 8)
        nodes.append({"name": f"n{index}", "op": "synthetic", "phase": phase, "inputs": inputs, "outputs": [output], "seconds": seconds})
    return graph(name, [""], storages, nodes, [])


class Transformer:
    """A transformer of bf16 tensors, operator by operator. Values are told by their id."""

    WIDTH, BATCH, WINDOW = 1024, 4, 1024

    def __init__(self, layers):
        self.storages, self.nodes = [], []
        self.modules = ["", *(f"h.{layer}" for layer in range(layers))]
        tokens, width = self.BATCH * self.WINDOW, self.WIDTH
        activation, square = 2 * tokens * width, 2 * width * width  # bytes
        product = 2 * tokens * width * width  # operations
        scores = 4 * self.BATCH * self.WINDOW**2 * width
        statistics = 8 * tokens

        def one(op, phase, module, inputs, size, flops=0):
            return self.node(op, phase, module, inputs, [size], flops)[0]

        weights = [
            [one("placeholder", "parameter", layer + 1, [], count * square) for count in (3, 1, 4, 4)] for layer in range(layers)
        ]
        x = one("placeholder", "input", 0, [], activation)
        tangent = one("placeholder", "tangent", 0, [], 4)
        saved = []
        for layer in range(layers):
            qkv_weight, projection_weight, up_weight, down_weight = weights[layer]

            def forward(op, inputs, sizes, flops=0, module=layer + 1):
                return self.node(op, "forward", module, inputs, sizes, flops)

            norm_1, statistics_1 = forward("ln", [x], [activation, statistics])
            (qkv,) = forward("mm", [norm_1, qkv_weight], [3 * activation], 3 * product)
            attention, logsumexp = forward("attn", [qkv], [activation, 64 * tokens], scores)
            (projection,) = forward("mm", [attention, projection_weight], [activation], product)
            dropped, mask = forward("drop", [projection], [activation, activation // 2])
            (middle,) = forward("add", [x, dropped], [activation])
            norm_2, statistics_2 = forward("ln", [middle], [activation, statistics])
            (up,) = forward("mm", [norm_2, up_weight], [4 * activation], 4 * product)
            (gelu,) = forward("gelu", [up], [4 * activation])
            (down,) = forward("mm", [gelu, down_weight], [activation], 4 * product)
            (after,) = forward("add", [middle, down], [activation])
            saved.append((x, norm_1, statistics_1, qkv, attention, logsumexp, mask, middle, norm_2, statistics_2, up, gelu))
            x = after
        self.outputs = [one("sum", "forward", 0, [x], 4)]
        gradient = one("expand", "backward", 0, [tangent], activation)
        for layer in reversed(range(layers)):
            qkv_weight, projection_weight, up_weight, down_weight = weights[layer]
            x, norm_1, statistics_1, qkv, attention, logsumexp, mask, middle, norm_2, statistics_2, up, gelu = saved[layer]

            def backward(op, inputs, size, flops=0, module=layer + 1):
                return one(op, "backward", module, inputs, size, flops)

            def weight_gradient(inputs, count):
                self.outputs.append(backward("mm", inputs, count * square, count * product))

            d_gelu = backward("mm", [gradient, down_weight], 4 * activation, 4 * product)
            weight_gradient([gradient, gelu], 4)
            d_up = backward("gelub", [d_gelu, up], 4 * activation)
            d_norm = backward("mm", [d_up, up_weight], activation, 4 * product)
            weight_gradient([d_up, norm_2], 4)
            d_middle = backward("lnb", [d_norm, middle, statistics_2], activation)
            d_middle = backward("add", [gradient, d_middle], activation)
            d_projection = backward("dropb", [d_middle, mask], activation)
            d_attention = backward("mm", [d_projection, projection_weight], activation, product)
            weight_gradient([d_projection, attention], 1)
            d_qkv = backward("attnb", [d_attention, qkv, attention, logsumexp], 3 * activation, scores // 2 * 5)
            d_norm = backward("mm", [d_qkv, qkv_weight], activation, 3 * product)
            weight_gradient([d_qkv, norm_1], 3)
            d_x = backward("lnb", [d_norm, x, statistics_1], activation)
            gradient = backward("add", [d_middle, d_x], activation)

    def node(self, op, phase, module, inputs, sizes, flops):
        """Ids of its outputs, one of each size, each in a storage of its own."""
        node = {"name": f"n{len(self.nodes)}", "op": op, "phase": phase, "module": module}
        if inputs:
            node["inputs"] = inputs
        ids = range(len(self.storages), len(self.storages) + len(sizes))
        node["outputs"] = [{"id": id, "shape": [size // 2], "dtype": "bf16", "storage": id} for id, size in zip(ids, sizes)]
        if op != "placeholder":
            traffic = {"flops": flops, "bytes_read": sum(self.storages[value] for value in inputs), "bytes_written": sum(sizes)}
            node.update({key: number for key, number in traffic.items() if number})
        self.storages.extend(sizes)
        self.nodes.append(node)
        return list(ids)


def transformer(layers):
    made = Transformer(layers)
    return graph(f"transformer-{layers}", made.modules, made.storages, made.nodes, made.outputs)


def graph(name, modules, storages, nodes, outputs):
    return {
        "format": "tightfit-graph/1",
        "name": name,
        "source": {"producer": "corpus/synthetic/generate.py"},
        "modules": modules,
        "storages": storages,
        "nodes": nodes,
        "outputs": outputs,
    }


def write(graph, path):
    text = json.dumps(graph, separators=(",", ":")).encode()
    # Neither time nor name in the header, so that the bytes depend on the graph alone.
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text)
    print(f"{path}: {len(graph['nodes'])} nodes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, help="write one transformer of this many layers")
    parser.add_argument("out", nargs="?", type=pathlib.Path, help="where to: a file with --layers, else a folder")
    arguments = parser.parse_args()
    if arguments.layers is not None:
        if arguments.out is None:
            parser.error("--layers needs a file to write to")
        write(transformer(arguments.layers), arguments.out)
        return
    folder = arguments.out or pathlib.Path(__file__).parent
    for name in SMALL:
        write(small_graph(name), folder / f"{name}.json.gz")
    for layers in (370, 1850):
        write(transformer(layers), folder / f"transformer-{layers}.json.gz")


if __name__ == "__main__":
    main()
