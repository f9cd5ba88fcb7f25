"""Data parallelism of two processes over gloo around a compiled model and around the same model in eager: `seen` starts
both, and returns what each rank saw.

Invariant: the ranks have different batches and equal models; runs are compared rank by rank, with bytes counted in each
process on its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
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

STEPS = 20


def train(run: loops.Run, rank: int, views: bool) -> None:
    """Steps with clipping; in every second one, two batches of which only the last one is synchronized."""
    model = loops.Net()
    optimizer = torch.optim.AdamW(model.parameters())
    run.compiled(model, optimizer)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=views)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 4 < 2)
        for micro in range(1 + step % 2):
            x, y = loops.batch(100 * rank + 2 * step + micro)
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
    """What two fresh processes see, by rank: with gradients of their own, and with gradients in the buckets."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), f"file://{folder}/store"]
        files = [(open(f"{folder}/{rank}.out", "w+"), open(f"{folder}/{rank}.err", "w+")) for rank in range(2)]
        ranks = [subprocess.Popen([*command, str(rank)], stdout=out, stderr=err)
                 for rank, (out, err) in enumerate(files)]
        try:
            for rank, process in enumerate(ranks):
                if process.wait(timeout=600) != 0:
                    raise RuntimeError(Path(f"{folder}/{rank}.err").read_text()[-4000:])
            return [json.loads(Path(f"{folder}/{rank}.out").read_text().splitlines()[-1]) for rank in range(2)]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            for file in (file for pair in files for file in pair):
                file.close()


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
