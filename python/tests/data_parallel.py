"""Data parallelism of two processes over gloo around a compiled model and around the same model in eager: `seen` starts
both, and returns each rank's results.

Invariant: the ranks have different batches, in rows too, and equal models; runs are compared rank by rank, with bytes counted
separately in each process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import allocator
import loops
from fresh import Fresh

STEPS = 20
# Rows of the batches, in which the ranks differ.
ROWS = (64, 64, 48, 33)


def train(run: loops.Run, rank: int, views: bool) -> None:
    """Steps with clipping; in every second one, two batches of which only the last one is synchronized."""
    model = loops.Net()
    optimizer = torch.optim.AdamW(model.parameters())
    run.compiled(model, optimizer)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=views)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 4 < 2)
        for micro in range(1 + step % 2):
            x, y = loops.batch(100 * rank + 2 * step + micro, ROWS[(step + micro + rank) % len(ROWS)])
            waits = parallel.no_sync() if micro < step % 2 else contextlib.nullcontext()
            with run.measured(), waits:
                loss = functional.cross_entropy(parallel(x), y)
                loss.backward()
            run.record("loss", loss)
            del loss
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.state(model)
        optimizer.step()
        if step % 5 == 4:
            parallel.eval()
            with torch.no_grad(), run.measured():
                run.record("evaluated", parallel(x))
            parallel.train()


def once(rank: int, budget: int | str | None, views: bool) -> dict[str, Any]:
    """One run from the same seed."""
    torch._dynamo.reset()
    torch.manual_seed(rank)
    run = loops.Run(budget)
    train(run, rank, views)
    return run.report()


def compared(rank: int, views: bool) -> dict[str, Any]:
    """Eager, the smallest budget, and one between that and eager's peak."""
    eager, least = once(rank, None, views), once(rank, "min", views)
    budget = least["planned"] + max(0, max(eager["peaks"]) - least["planned"]) // 2
    return {"eager": eager, "min": least, "budget": budget, "fitted": once(rank, budget, views)}


def seen() -> list[dict[str, Any]]:
    """The results of two fresh processes, by rank: with separate gradients, and with gradients in the buckets."""
    with tempfile.TemporaryDirectory() as folder:
        script = str(Path(__file__).resolve())
        ranks = [Fresh(script, f"file://{folder}/store", str(rank)) for rank in range(2)]
        try:
            found = []
            for process in ranks:
                code, printed = process.finish(timeout=600)
                if code != 0:
                    raise RuntimeError(process.said()[-4000:])
                found.append(json.loads(printed.splitlines()[-1]))
            return found
        finally:
            for process in ranks:
                process.kill()


def main() -> None:
    store, rank = sys.argv[1], int(sys.argv[2])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    allocator.install()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    found = {str(views): compared(rank, views) for views in (False, True)}
    distributed.destroy_process_group()
    print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
