"""Loops whose batches vary in rows and length: what they cost with `tightfit.compile` and in eager, in processor
seconds.

Each run is a fresh process with one thread and an empty cache of costs and plans; all take the same batches. Budgets are
a share of the most bytes that an eager step of the largest batch holds, as PyTorch's allocator counts them. Printed are
the seconds of all steps, those of the first step with `torch.compile(backend="aot_eager")` where the same dimensions are
marked; the number of captures and plans; the median of the ratio of seconds to eager's where a shape comes again; the
growth of the process's memory after the first step, beyond eager's; the most bytes of a step, in percent of the budget;
and whether losses and gradients have eager's bits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests"), str(ROOT / "python" / "bench")]

import allocator  # noqa: E402
import measured  # noqa: E402
from tables import head, mb, row  # noqa: E402

LONGEST, ROWS, WORDS = 256, 8, 1024
HEAD = ("model", "lengths", "steps", "eager s", "tightfit s", "aot_eager, first step s", "captures", "plans", "again, × eager",
        "more memory MB", "peak % of budget", "bits are eager's")


def model_of(name: str) -> torch.nn.Module:
    """A language model of six layers."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    given = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024, "vocab_size": WORDS,
             "max_position_embeddings": 2 * LONGEST}
    if name == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**given))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**given, num_key_value_heads=4, use_cache=False))


def batch(rows: int, length: int, seed: int) -> dict[str, torch.Tensor]:
    """Tokens that are their own labels."""
    tokens = torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens, "labels": tokens.clone()}


def shapes(lengths: int, steps: int) -> list[tuple[int, int]]:
    """The rows and the length of each batch."""
    drawn = random.Random(0)
    known = drawn.sample(range(8, LONGEST + 1), lengths)
    return [(drawn.randint(1, ROWS), drawn.choice(known)) for _ in range(steps)]


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# In the measuring process.


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All steps of one mode."""
    torch.set_num_threads(1)
    allocator.install()
    model = model_of(options.model)
    call = model
    if options.mode == "tightfit":
        import tightfit

        call = tightfit.compile(model, options.budget)
    elif options.mode == "aot":
        call = torch.compile(model, backend="aot_eager", fullgraph=True)
    given = shapes(options.lengths[0], options.steps)
    if options.mode == "largest":
        given = [(ROWS, LONGEST)]
    seconds, peaks, bits = [], [], []
    for step, (rows, length) in enumerate(given[:1] if options.mode == "aot" else given):
        inputs = batch(rows, length, step)
        if options.mode == "aot":
            for tensor in inputs.values():
                torch._dynamo.maybe_mark_dynamic(tensor, [0, 1])
        torch.manual_seed(step)
        model.zero_grad()
        allocator.reset_peak()
        began = time.process_time()
        loss = call(**inputs).loss
        loss.backward()
        seconds.append(time.process_time() - began)
        peaks.append(allocator.peak())
        bits.append([measured.digest(loss), *(measured.digest(parameter.grad) for parameter in model.parameters())])
        if step == 0:
            first = resident()
    found = {"seconds": seconds, "peak": max(peaks), "growth": resident() - first, "bits": bits}
    if options.mode == "tightfit":
        backend = model._compiled_call_impl.backend
        found |= {"captures": len(backend.runs), "plans": len(tightfit.plans(model))}
    return found


# In the process that prints.


def measure(mode: str, model: str, lengths: int, steps: int, budget: int = 0) -> dict[str, Any]:
    """The results of one mode, from a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--mode", mode, "--model", model, "--lengths", str(lengths), "--steps", str(steps),
                 "--budget", str(budget)]
        done = subprocess.run(words, env={**os.environ, "XDG_CACHE_HOME": folder}, check=True,
                              stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def again(seconds: list[float], eager: list[float], given: list[tuple[int, int]]) -> float:
    """The median, over steps whose shape came before, of the ratio of seconds."""
    seen: set[tuple[int, int]] = set()
    ratios = []
    for one, other, shape in zip(seconds, eager, given, strict=True):
        if shape in seen:
            ratios.append(one / other)
        seen.add(shape)
    return statistics.median(ratios) if ratios else float("nan")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=["llama", "bert"], help="this model; may be repeated")
    parser.add_argument("--lengths", action="append", type=int, help="number of different lengths; may be repeated")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.5, help="budget, as a share of eager's peak")
    parser.add_argument("--mode", choices=["eager", "tightfit", "aot", "largest"], help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode:
        options.model = options.model[0]
        print(json.dumps(run(options)))
        return
    print(f"One thread, PyTorch {torch.__version__}; budgets are {options.share:g} of eager's peak at {ROWS} rows of "
          f"{LONGEST} tokens.\n")
    head(HEAD)
    for model in options.model or ["llama", "bert"]:
        most = measure("largest", model, 1, 1)["peak"]
        first = measure("aot", model, 1, 1)["seconds"][0]
        for lengths in options.lengths or [20, 200]:
            budget = int(options.share * most)
            eager = measure("eager", model, lengths, options.steps)
            ours = measure("tightfit", model, lengths, options.steps, budget)
            ratio = again(ours["seconds"], eager["seconds"], shapes(lengths, options.steps))
            row(model, lengths, options.steps, f"{sum(eager['seconds']):.1f}", f"{sum(ours['seconds']):.1f}", f"{first:.1f}",
                ours["captures"], ours["plans"], f"{ratio:.2f}", mb(ours["growth"] - eager["growth"]),
                f"{100 * ours['peak'] / budget:.1f}", "yes" if ours["bits"] == eager["bits"] else "no")


if __name__ == "__main__":
    main()
