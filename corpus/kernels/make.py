"""Writes the kernel goldens: per operator a graph of calls and PyTorch's own inputs and results for each.

Invariant: `NAME.json` holds one node per case, whose inputs are placeholders and whose results are all outputs;
`NAME.safetensors` holds `value.<id>` for each of them, in logical order. Cases are those of a small GPT and a small
perceptron as the exporter writes them, then those of `cases.py`; re-running gives the same bytes.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python"), str(HERE.parent / "steps")]

import torch  # noqa: E402
from torch import fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import cases  # noqa: E402
import gpt  # noqa: E402
from golden import Goldens  # noqa: E402
from tightfit.capture import Capture, capture  # noqa: E402
from tightfit.simplify import simplify  # noqa: E402


class Recorder(fx.Interpreter):
    """Runs a capture on real tensors and keeps each distinct pattern of arguments of each operator."""

    def __init__(self, captured: Capture, goldens: Goldens) -> None:
        super().__init__(captured.module)
        self.goldens = goldens
        self.seen: set[str] = set()

    def run_node(self, node: fx.Node):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        random = torch.Tag.nondeterministic_seeded in node.target.tags and "attention" not in str(node.target)
        pattern = repr((node.target, fx.node.map_aggregate((args, kwargs), _pattern)))
        if not random and pattern not in self.seen:
            self.seen.add(pattern)
            several = isinstance(node.meta["val"], (tuple, list))
            used = {user.args[1] for user in node.users} if several else None
            self.goldens.record(node.target, *args, used=used, label=f"graph_{node.name}", **kwargs)
        return super().run_node(node)


def _pattern(argument):
    if isinstance(argument, torch.Tensor):
        return f"{argument.dtype}{tuple(argument.shape)}{argument.stride()}{argument.storage_offset()}"
    return argument


def record_graphs(goldens: Goldens) -> None:
    """The calls of exported graphs, at sizes that are multiples of nothing."""
    torch.manual_seed(1)
    shape = gpt.Shape(layers=2, width=20, heads=2, window=11, batch=3, dropout=0.1, vocabulary=23)
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.window))
    perceptron = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 11), nn.ReLU(), nn.Linear(11, 5))
    pixels, labels = torch.randn(9, 7), torch.randint(0, 5, (9,))
    for model, loss, batch in (
        (gpt.Gpt(shape), gpt.loss, (tokens, tokens.roll(-1, 1))),
        (perceptron, functional.cross_entropy, (pixels, labels)),
    ):
        tensors = dict(model.named_parameters())
        for training in (True, False):
            captured = capture(model, loss, batch, training=training)
            simplify(captured)
            names = {node: name for name, node in captured.parameters.items()}
            inputs = dict(zip(captured.inputs, batch, strict=True))
            values = [
                tensors[names[node]].detach() if node in names else inputs.get(node, torch.empty(0))
                for node in captured.graph.find_nodes(op="placeholder")
            ]
            with torch.no_grad():
                Recorder(captured, goldens).run(*values, enable_io_processing=False)


def main() -> None:
    torch.set_num_threads(1)
    goldens = Goldens()
    record_graphs(goldens)
    cases.record(goldens)
    for stale in [*HERE.glob("*.json"), *HERE.glob("*.safetensors")]:
        stale.unlink()
    total = 0
    for path, content in goldens.files(HERE).items():
        path.write_bytes(content)
        total += len(content)
    print(json.dumps({"operators": len(goldens.operators), "cases": goldens.count, "bytes": total}))


if __name__ == "__main__":
    main()
