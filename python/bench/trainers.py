"""Training loops of other libraries around a compiled model, which is one line more: their seconds, compared with eager.

The loops are those of Transformers' `Trainer` (bfloat16, gradient checkpointing, padding to the longest text, evaluation,
and generation after each evaluation), of accelerate (accumulation), and of Lightning (validation), if it is installed. All
train a small GPT-2 on texts of 8 to 128 tokens.

Each run is a fresh process, with an empty cache of costs and plans; eager and tightfit take turns. The budget is a share of
the most bytes that eager holds, as PyTorch's allocator counts them. Printed are the median of the seconds of the whole
loop, of its second half, in which nothing is captured any more, and of each without and with tightfit; the most bytes
held, and whether the parameters have eager's bits at the end.
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
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests"), str(ROOT / "python" / "bench")]

import allocator  # noqa: E402
import measured  # noqa: E402
from tables import head, mb, paired, row  # noqa: E402

WORDS, ROWS, LONGEST = 1024, 8, 128
HEAD = ("loop", "eager s", "tightfit s", "÷ eager", "second half: ÷ eager", "eager MB", "budget MB", "tightfit MB", "bits are eager's")


def model_of() -> torch.nn.Module:
    """A small GPT-2 without dropout."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, n_positions=2 * LONGEST, vocab_size=WORDS, bos_token_id=1,
                                     eos_token_id=2, pad_token_id=0, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


def texts(count: int) -> list[list[int]]:
    """Texts of different lengths."""
    drawn = random.Random(0)
    return [[drawn.randrange(3, WORDS) for _ in range(drawn.randint(8, LONGEST))] for _ in range(count)]


def padded(given: list[list[int]]) -> dict[str, torch.Tensor]:
    """A batch, padded to its longest text."""
    length = max(map(len, given))
    tokens = torch.tensor([text + [0] * (length - len(text)) for text in given])
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": tokens.masked_fill(tokens == 0, -100)}


class Clock:
    """The seconds of a loop, and of its second half."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.taken = 0
        self.began = self.half = time.perf_counter()

    def step(self) -> None:
        """Called after each step."""
        self.taken += 1
        if self.taken == self.steps // 2:
            self.half = time.perf_counter()

    def found(self) -> dict[str, float]:
        """The figures, at the end of the loop."""
        now = time.perf_counter()
        return {"whole": now - self.began, "half": now - self.half}


# The loops.


def trainer(model: torch.nn.Module, steps: int, clock: Clock) -> None:
    """Transformers' Trainer."""
    import transformers

    class Told(transformers.TrainerCallback):
        """Counts steps, and generates after evaluations."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step()

        def on_evaluate(self, *_: Any, model: Any, **__: Any) -> None:
            model.eval()
            with torch.no_grad():
                model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=16, do_sample=False)
            model.train()

    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(
            folder, per_device_train_batch_size=ROWS, per_device_eval_batch_size=ROWS, max_steps=steps, bf16=True, use_cpu=True,
            gradient_checkpointing=True, eval_strategy="steps", eval_steps=max(steps // 4, 1), save_strategy="no", report_to=[],
            disable_tqdm=True, logging_strategy="no", seed=0)
        known = transformers.Trainer(model, options, train_dataset=texts(ROWS * steps), eval_dataset=texts(ROWS * 4),
                                     data_collator=padded, callbacks=[Told()])
        known.train()


def accelerated(model: torch.nn.Module, steps: int, clock: Clock) -> None:
    """accelerate's loop, with accumulation over two batches."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(texts(ROWS * steps), batch_size=ROWS, collate_fn=padded)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        clock.step()


def lightning(model: torch.nn.Module, steps: int, clock: Clock) -> None:
    """Lightning's Trainer, with validation."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        """The model, its loss and its optimizer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            clock.step()
            return self.model(**batch).loss

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.log("loss", self.model(**batch).loss, batch_size=ROWS)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    known = pl.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                       enable_model_summary=False, val_check_interval=max(steps // 2, 1), num_sanity_val_steps=0)
    train, check = (DataLoader(texts(count), batch_size=ROWS, collate_fn=padded) for count in (ROWS * steps, ROWS * 4))
    known.fit(Module(), train, check)


LOOPS: dict[str, Callable[[torch.nn.Module, int, Clock], None]] = {"Trainer": trainer, "accelerate": accelerated, "Lightning": lightning}

SHARES = {"Trainer": 1.0, "accelerate": 0.6, "Lightning": 0.6}


# In the measuring process.


def run(options: argparse.Namespace) -> dict[str, Any]:
    """One loop."""
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(1)
    allocator.install()
    model = model_of()
    if options.budget:
        import tightfit

        tightfit.compile(model, options.budget, optimizer="adamw")
    clock = Clock(options.steps)
    LOOPS[options.loop[0]](model, options.steps, clock)
    return clock.found() | {"peak": allocator.peak(), "bits": [measured.digest(parameter) for parameter in model.parameters()]}


# In the process that prints.


def measure(loop: str, steps: int, budget: int = 0) -> dict[str, Any]:
    """What a fresh process finds."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--measures", "--loop", loop, "--steps", str(steps), "--budget", str(budget)]
        done = subprocess.run(words, env={**os.environ, "XDG_CACHE_HOME": folder}, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def is_installed(loop: str) -> bool:
    """Whether the library of a loop is there."""
    import importlib.util

    module = {"Trainer": "transformers", "accelerate": "accelerate", "Lightning": "pytorch_lightning"}[loop]
    return importlib.util.find_spec(module) is not None


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", action="append", choices=list(LOOPS), help="this loop; may be repeated")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, help="budget, as a share of the most that eager holds; 0.6 without it, and 1 "
                        "where eager checkpoints")
    parser.add_argument("--budget", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--measures", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measures:
        print(json.dumps(run(options)))
        return
    print(f"One thread, PyTorch {torch.__version__}, {options.steps} steps, medians of {options.rounds} rounds.\n")
    head(HEAD)
    for loop in options.loop or LOOPS:
        if not is_installed(loop):
            row(loop, "not installed", *["–"] * (len(HEAD) - 2))
            continue
        eager, ours, budget = [], [], 0
        for _ in range(options.rounds):
            eager.append(measure(loop, options.steps))
            budget = budget or int((options.share or SHARES[loop]) * eager[0]["peak"])
            ours.append(measure(loop, options.steps, budget))
        whole, half = ([[found[key] for found in runs] for runs in (ours, eager)] for key in ("whole", "half"))
        row(loop, f"{statistics.median(whole[1]):.1f}", f"{statistics.median(whole[0]):.1f}", f"{paired(*whole):.2f}",
            f"{paired(*half):.2f}", mb(eager[0]["peak"]), mb(budget), mb(max(found["peak"] for found in ours)),
            "yes" if ours[0]["bits"] == eager[0]["bits"] else "no")


if __name__ == "__main__":
    main()
