"""The sum of the seconds that `export(measure=True)` writes into a graph, next to the step's own time in PyTorch.

Invariant: prints figures and judges none; both are of the same model, batch, optimizer and threads, in one process.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "corpus" / "steps"))

import torch  # noqa: E402

import gpt  # noqa: E402


def eager_seconds(model: gpt.Gpt, window: torch.Tensor, steps: int) -> list[float]:
    """The seconds of each of several training steps, after two that do not count."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    seconds = []
    for _ in range(steps + 2):
        began = time.perf_counter()
        gpt.loss(model(window[:, :-1]), window[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return seconds[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    shape = gpt.Shape(layers=options.layers, width=options.width, heads=4, window=256, batch=options.batch, dropout=0.1)
    model = gpt.Gpt(shape)
    window = torch.randint(0, shape.vocabulary, (shape.batch, shape.window + 1))
    eager = eager_seconds(model, window, options.steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        began = time.perf_counter()
        gpt.tightfit.export(model, gpt.loss, (window[:, :-1], window[:, 1:]), out=path, name="gpt", execute=False, measure=True)
        took = time.perf_counter() - began
        nodes = json.loads(path.read_text(encoding="utf-8"))["nodes"]
    measured = [node["seconds"] for node in nodes if "seconds" in node]
    print(json.dumps({
        "producer": "torch " + torch.__version__,
        "threads": options.threads,
        "nodes": len(measured),
        "export_seconds": took,
        "sum_of_seconds": sum(measured),
        "eager_median_seconds": statistics.median(eager),
        "eager_seconds": eager,
        "sum_over_eager": sum(measured) / statistics.median(eager),
    }))


if __name__ == "__main__":
    main()
