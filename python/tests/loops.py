"""Training loops as people write them, each once: run in eager, and with the model compiled under a budget, in one
fresh process whose every byte is counted. `python loops.py clipping scaler` prints the results as JSON; `seen` does
that from another process.

Invariant: a loop is the same code in both modes; it knows of the compilation only where it calls `Run.compiled`, which
does nothing in eager. The seeds are set before each run, so runs differ only in what the compilation changes. Peaks are
bytes beyond those that the process held before the loop began, in forward and backward pass without the optimizer's own
step.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import allocator
import fresh
import measured
import zoo

WIDTH, CLASSES = 64, 32


class Run:
    """One run of a loop: what it records, and its peaks."""

    def __init__(self, budget: int | str | None) -> None:
        self.budget = budget
        self.records: list[tuple[str, str | None]] = []
        self.peaks: list[int] = []
        self.models: list[nn.Module] = []
        # The budget, once several models share it.
        self.shared: Any = None
        gc.collect()
        self.base = allocator.current()

    def compiled(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> nn.Module:
        """The model, compiled if this run does that."""
        if self.budget is None:
            return model
        self.models.append(model)
        return zoo.use_tightfit().compile(model, budget=self.budget, optimizer=optimizer, deadline=0.1, **options)

    def together(self, *models: nn.Module, **options: Any) -> None:
        """Compiles models that share the budget, if this run compiles."""
        if self.budget is not None and self.shared is None:
            self.shared = zoo.use_tightfit().Budget(self.budget)
        for model in models if self.budget is not None else ():
            self.models.append(model)
            zoo.use_tightfit().compile(model, budget=self.shared, deadline=0.1, **options)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measures the peak of the code inside."""
        allocator.reset_peak()
        yield
        self.peaks.append(allocator.peak() - self.base)

    def record(self, name: str, value: torch.Tensor | float | None) -> None:
        """Records something to compare: a tensor by its bits."""
        if isinstance(value, torch.Tensor) or value is None:
            self.records.append((name, measured.digest(value)))
        else:
            self.records.append((name, repr(value)))

    def state(self, model: nn.Module, *, gradients: bool = True) -> None:
        """Records a model's gradients and its state, with the state of PyTorch's generator."""
        for name, parameter in model.named_parameters():
            if gradients:
                self.record(f"{name}.grad", parameter.grad)
            self.record(name, parameter)
        for name, buffer in model.named_buffers():
            self.record(name, buffer)
        self.record("generator", torch.get_rng_state())

    def report(self) -> dict[str, Any]:
        """The results, ready for JSON."""
        plans = [plan for model in self.models for plan in zoo.use_tightfit().plans(model)]
        return {"records": self.records, "peaks": self.peaks, "plans": len(plans),
                "planned": max((plan.peak for plan in plans), default=0)}


class Net(nn.Module):
    """A block with norm, dropout and statistics between two linear layers; the loss is outside."""

    def __init__(self, dropout: float = 0.1, width: int = WIDTH, statistics: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(width, 4 * width)
        self.norm = nn.LayerNorm(4 * width)
        self.drop = nn.Dropout(dropout)
        self.second = nn.Linear(4 * width, width)
        self.statistics = nn.BatchNorm1d(width) if statistics else nn.Identity()
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(functional.gelu(self.norm(self.first(x))))
        return self.head(torch.tanh(self.statistics(self.second(h))))


class Tokens(nn.Module):
    """A language model of one block whose head is its embedding; it returns its loss and the logits."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.block(self.embedding(tokens)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


class Adapted(nn.Module):
    """A frozen linear layer with a trained one of low rank in parallel."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def batch(seed: int, rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes. The default generator is left as it was."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, WIDTH, generator=generator),
            torch.randint(0, CLASSES, (rows,), generator=generator))


def words(seed: int, rows: int = 8, window: int = 24) -> torch.Tensor:
    """Tokens, one more than the window."""
    return torch.randint(0, 256, (rows, window + 1), generator=torch.Generator().manual_seed(seed))


# The loops. Their names say what they do beyond forward, backward and step.


def clipping(run: Run) -> None:
    """Accumulation over four batches, gradients that are set to zero instead of to none, clipping, a schedule."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    run.compiled(model, optimizer)
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for micro in range(4):
            x, y = batch(4 * step + micro)
            with run.measured():
                loss = functional.cross_entropy(model(x), y) / 4
                loss.backward()
            run.record("loss", loss)
        run.record("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        run.state(model)
        optimizer.step()
        schedule.step()


def between(run: Run) -> None:
    """Gradients are reset between forward and backward pass, both ways."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.compiled(model, optimizer)
    for step in range(5):
        x, y = batch(step)
        with run.measured():
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss.backward()
        run.record("loss", loss)
        run.state(model)
        optimizer.step()


def evaluated(run: Run) -> None:
    """Evaluation in three ways between the steps, forward passes without a backward pass, and a smaller last batch."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    run.compiled(model, optimizer)
    for step in range(4):
        model.train()
        x, y = batch(step, rows=64 if step < 3 else 24)
        with run.measured():
            functional.cross_entropy(model(x), y).backward()
        run.state(model)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        for guard in (torch.no_grad, torch.inference_mode, contextlib.nullcontext):
            with run.measured(), guard():
                output = model(x)
            run.record(guard.__name__, output)
            del output
        model.train()
        with run.measured():
            model(x)
        with torch.no_grad(), run.measured():
            run.record("statistics change", model(x))
        run.state(model)


def autocast(run: Run, dropout: float = 0.0) -> None:
    model = Tokens(dropout)
    optimizer = torch.optim.AdamW(model.parameters())
    run.compiled(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        tokens = words(step)
        with run.measured():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss, _ = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
        run.record("loss", loss)
        run.state(model)
        optimizer.step()


def autocast_with_dropout(run: Run) -> None:
    autocast(run, dropout=0.3)


def half(run: Run) -> None:
    """Parameters in 16 bits, with dropout."""
    model = Net(0.3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.compiled(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step)
        x = x.bfloat16()
        with run.measured():
            loss = functional.cross_entropy(model(x).float(), y)
            loss.backward()
        run.record("loss", loss)
        run.state(model)
        optimizer.step()


def scaler(run: Run) -> None:
    """A gradient scaler that skips a step whose gradients are infinite."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    run.compiled(model, optimizer)
    for step in range(5):
        optimizer.zero_grad()
        x, y = batch(step)
        factor = float("inf") if step == 2 else 1.0
        with run.measured():
            loss = functional.cross_entropy(model(x), y) * factor
            scale.scale(loss).backward()
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
        run.record("scale", scale.get_scale())
        run.state(model)


def two_forwards(run: Run) -> None:
    """Two forward passes, then their backward passes, in either order, and as one sum."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    run.compiled(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        (x, y), (z, w) = batch(step), batch(100 + step)
        with run.measured():
            first = functional.cross_entropy(model(x), y)
            second = functional.cross_entropy(model(z), w)
            if step == 2:
                (first + second).backward()
            else:
                for loss in (first, second) if step == 0 else (second, first):
                    loss.backward()
        run.state(model)
        optimizer.step()


def frozen(run: Run) -> None:
    """Low-rank adapters in parallel to frozen layers; one of them is later frozen as well, and then unfrozen."""
    model = Net(statistics=False).requires_grad_(False)
    model.first, model.second = Adapted(model.first), Adapted(model.second)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    run.compiled(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        model.first.down.requires_grad_(step != 2)
        x, y = batch(step)
        with run.measured():
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
        run.record("loss", loss)
        run.state(model)
        optimizer.step()


def tied(run: Run) -> None:
    """Tied parameters, and a batch whose tensors share one storage."""
    model = Tokens()
    optimizer = torch.optim.AdamW(model.parameters())
    run.compiled(model, optimizer)
    for step in range(3):
        tokens = words(step)
        with run.measured():
            loss, logits = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
        run.record("loss", loss)
        run.record("logits", logits)
        del loss, logits
        run.state(model)
        optimizer.step()
        optimizer.zero_grad()


def shapes(run: Run) -> None:
    """Eleven shapes of batches, and the first one again."""
    model = Tokens(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.compiled(model, optimizer)
    for step in range(12):
        tokens = words(step, window=8 + 2 * (step % 11))
        optimizer.zero_grad()
        with run.measured():
            loss = model(tokens[:, :-1], tokens[:, 1:])[0]
            loss.backward()
        run.record("loss", loss)
        run.state(model)
        optimizer.step()


def held_outputs(run: Run) -> None:
    """Outputs that the loop in turn holds during the backward pass, drops before it, and keeps until the next step."""
    model = Net()
    run.compiled(model)
    kept = None
    for step in range(6):
        x, y = batch(step)
        with run.measured():
            output = model(x)
            loss = functional.cross_entropy(output, y)
            if step % 3 == 1:
                del output
            elif step % 3 == 2:
                kept = output.detach()
            loss.backward()
        run.state(model)
        run.record("loss", loss)
        output = loss = None
    run.record("kept", kept)


def batch_gradient(run: Run) -> None:
    """A batch that requires a gradient, once with parameters and once without."""
    model = Net()
    run.compiled(model)
    for step in range(4):
        x, y = batch(step)
        x.requires_grad_()
        model.requires_grad_(step != 2)
        with run.measured():
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
        run.record("batch", x.grad)
        run.state(model)


def hooks(run: Run) -> None:
    """Hooks on parameters, which change or read gradients, are added and removed."""
    model = Net()
    run.compiled(model)
    seen = []
    for step in range(5):
        x, y = batch(step)
        if step == 1:
            changing = model.first.weight.register_hook(lambda gradient: 2 * gradient)
        elif step == 2:
            reading = model.head.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
        elif step == 3:
            changing.remove()
        elif step == 4:
            reading.remove()
        with run.measured():
            functional.cross_entropy(model(x), y).backward()
        run.state(model)
    run.record("seen", float(len(seen)))
    for value in seen:
        run.record("seen", value)


def asked(run: Run) -> None:
    """`torch.autograd.grad` and `backward(inputs=…)`, between ordinary backward passes."""
    model = Net()
    run.compiled(model)
    some = [model.first.weight, model.head.bias]
    for step in range(6):
        x, y = batch(step)
        with run.measured():
            loss = functional.cross_entropy(model(x), y)
            if step % 3 == 0:
                loss.backward()
            elif step % 3 == 1:
                for gradient in torch.autograd.grad(loss, some):
                    run.record("asked", gradient)
            else:
                loss.backward(inputs=some)
        run.state(model)


# Loops of transformers' Trainer.


def sentences(count: int, seed: int) -> list[list[int]]:
    """Sentences of 6 to 24 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, 25, (count,), generator=generator).tolist()
    return [torch.randint(3, 200, (length,), generator=generator).tolist() for length in lengths]


def padded(examples: list[list[int]]) -> dict[str, torch.Tensor]:
    """A batch padded to the longest sentence, rounded up to a multiple of eight."""
    window = -(-max(map(len, examples)) // 8) * 8
    tokens = torch.tensor([[*example, *[0] * (window - len(example))] for example in examples])
    present = tokens != 0
    return {"input_ids": tokens, "attention_mask": present.long(), "labels": tokens.masked_fill(~present, -100)}


def language_model(kind: str) -> nn.Module:
    """A small model of transformers with random weights, dropout on."""
    import transformers

    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=2, n_embd=WIDTH, n_head=2, n_positions=32, vocab_size=256, bos_token_id=1, eos_token_id=2,
            use_cache=False))
    return transformers.BertForMaskedLM(transformers.BertConfig(
        num_hidden_layers=2, hidden_size=WIDTH, num_attention_heads=2, intermediate_size=4 * WIDTH, vocab_size=256,
        max_position_embeddings=32))


def trainer_of(run: Run, kind: str, folder: str, **options: Any) -> Any:
    """A Trainer with accumulation, clipping, a schedule with warm-up, evaluation and checkpoints."""
    import transformers

    class Measured(transformers.Trainer):
        """The peak of forward and backward pass of each batch."""

        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            with run.measured():
                return super().training_step(*args, **kwargs)

    arguments = transformers.TrainingArguments(**{
        "output_dir": folder, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": 4, "max_grad_norm": 0.5, "learning_rate": 1e-3, "warmup_steps": 5,
        "max_steps": 20, "eval_strategy": "steps", "eval_steps": 5, "save_steps": 10, "logging_steps": 1,
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 0, "dataloader_pin_memory": False, **options,
    })
    model = run.compiled(language_model(kind), "adamw")
    return Measured(model=model, args=arguments, train_dataset=sentences(128, 1), eval_dataset=sentences(16, 2),
                    data_collator=padded)


def _trained(run: Run, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(run, kind, folder)
        trainer.train()
        trained(run, trainer)


def trained(run: Run, trainer: Any) -> None:
    """Records what a Trainer logged, and the model."""
    for entry in trainer.state.log_history:
        for name in ("loss", "eval_loss", "grad_norm", "learning_rate"):
            if name in entry:
                run.record(f"{name} at {entry['step']}", entry[name])
    run.state(trainer.model, gradients=False)


def trainer_gpt2(run: Run) -> None:
    _trained(run, "gpt2")


def trainer_bert(run: Run) -> None:
    _trained(run, "bert")


def resumed(run: Run) -> None:
    """A Trainer resumes from a checkpoint of the other mode."""
    with tempfile.TemporaryDirectory() as folder:
        first = Run("min" if run.budget is None else None)
        trainer_of(first, "gpt2", folder, max_steps=4, save_steps=2, eval_strategy="no").train()
        del first
        gc.collect()
        checkpoint = f"{folder}/checkpoint-2"
        trainer = trainer_of(run, "gpt2", folder, max_steps=4, save_steps=2, eval_strategy="no")
        trainer.train(resume_from_checkpoint=checkpoint)
        trained(run, trainer)


class Deep(nn.Module):
    """Blocks whose activations take far more than their parameters."""

    def __init__(self, blocks: int, out: int = WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
                                    for _ in range(blocks))
        self.head = nn.Linear(WIDTH, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def rows(seed: int, count: int = 2048) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def adversaries(run: Run) -> None:
    """A generator and a discriminator that share the budget; the generator's loss goes through the discriminator."""
    generator, discriminator = Deep(4), Deep(3, out=1)
    run.together(generator, discriminator)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, discriminator)]
    loss = functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(2048, 1), torch.zeros(2048, 1)
    for step in range(4):
        real, noise = rows(step), rows(100 + step)
        with run.measured():
            fake = generator(noise)
            optimizers[1].zero_grad()
            judged = loss(discriminator(real), ones) + loss(discriminator(fake.detach()), zeros)
            judged.backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            fooled = loss(discriminator(fake), ones)
            fooled.backward()
            optimizers[0].step()
        run.record("losses", judged + fooled)
        for model in (generator, discriminator):
            run.state(model)


def distilled(run: Run) -> None:
    """A student that learns from a frozen teacher."""
    teacher, student = Deep(6).requires_grad_(False).eval(), Deep(4)
    run.together(teacher, student)
    optimizer = torch.optim.AdamW(student.parameters())
    for step in range(4):
        x = rows(step)
        with run.measured():
            with torch.no_grad():
                wanted = teacher(x)
            optimizer.zero_grad()
            loss = functional.mse_loss(student(x), wanted)
            loss.backward()
        run.record("loss", loss)
        run.state(student)
        optimizer.step()


def contrastive(run: Run) -> None:
    """Two encoders and one loss of both their outputs."""
    first, second = Deep(4), Deep(3)
    run.together(first, second)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
    for step in range(4):
        x, y = rows(step, 1024), rows(100 + step, 1024)
        optimizer.zero_grad()
        with run.measured():
            one, other = functional.normalize(first(x)), functional.normalize(second(y))
            loss = (one - other).square().mean() - (one - other.roll(1, 0)).square().mean()
            loss.backward()
        run.record("loss", loss)
        for model in (first, second):
            run.state(model)
        optimizer.step()


def views(run: Run) -> None:
    """One encoder, called for two views of the batch before the backward pass."""
    encoder = Deep(4)
    run.together(encoder)
    optimizer = torch.optim.AdamW(encoder.parameters())
    for step in range(4):
        x, y = rows(step, 1024), rows(100 + step, 1024)
        optimizer.zero_grad()
        with run.measured():
            loss = functional.mse_loss(encoder(x), encoder(y))
            loss.backward()
        run.record("loss", loss)
        run.state(encoder)
        optimizer.step()


def blockwise(run: Run) -> None:
    """A model whose blocks were compiled one by one."""
    model = Deep(6, out=CLASSES)
    run.together(*model.blocks)
    optimizer = torch.optim.AdamW(model.parameters())
    classes = torch.arange(2048) % CLASSES
    for step in range(4):
        x = rows(step)
        optimizer.zero_grad()
        with run.measured():
            loss = functional.cross_entropy(model(x), classes)
            loss.backward()
        run.record("loss", loss)
        run.state(model)
        optimizer.step()


def actor_and_critic(run: Run) -> None:
    """An actor whose loss goes through the critic, which is trained in turn."""
    actor, critic = Deep(4), Deep(4, out=1)
    run.together(actor, critic)
    acts, criticizes = torch.optim.AdamW(actor.parameters()), torch.optim.AdamW(critic.parameters())
    for step in range(4):
        x, reward = rows(step), torch.ones(2048, 1)
        with run.measured():
            with torch.no_grad():
                action = actor(x)
            criticizes.zero_grad()
            missed = functional.mse_loss(critic(action), reward)
            missed.backward()
        criticizes.step()
        with run.measured():
            acts.zero_grad()
            gained = -critic(actor(x)).mean()
            gained.backward()
        acts.step()
        run.record("losses", missed + gained)
        for model in (actor, critic):
            run.state(model)


LOOPS: dict[str, Callable[[Run], None]] = {loop.__name__: loop for loop in (
    clipping, between, evaluated, autocast, autocast_with_dropout, half, scaler, two_forwards, frozen, tied,
    shapes, held_outputs, batch_gradient, hooks, asked, trainer_gpt2, trainer_bert, resumed,
    adversaries, distilled, contrastive, views, blockwise, actor_and_critic,
)}

# The usual budget of a loop as a share of eager's peak, and the exceptions: some loops hold two forward passes at once,
# or gradients besides `.grad`, and where everything is small, the room reserved for small things is not negligible.
SHARE = 0.95
SHARES = {"half": 1.25, "two_forwards": 1.1, "asked": 1.3, "batch_gradient": 1.0, "frozen": 1.1, "trainer_gpt2": 0.85,
          "trainer_bert": 0.85, "resumed": 0.85}
# Models that share a budget.
SHARES |= dict.fromkeys(("adversaries", "distilled", "contrastive", "views", "blockwise", "actor_and_critic"), 0.6)


# In the measuring process.


def once(name: str, budget: int | str | None) -> dict[str, Any]:
    """One run of a loop from the same seed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    run = Run(budget)
    try:
        LOOPS[name](run)
    except Exception as error:  # noqa: BLE001: any exception is a result
        figures = {key: getattr(error, key) for key in ("smallest", "needed") if hasattr(error, key)}
        return {**run.report(), "error": type(error).__name__, "message": str(error), **figures,
                "trace": traceback.format_exc()}
    return run.report()


def compared(name: str, least: bool) -> dict[str, Any]:
    """A loop in eager and at its budget, and if `least` also with as few bytes as possible."""
    eager = once(name, None)
    budget = int(SHARES.get(name, SHARE) * max(eager["peaks"], default=0))
    found = {"eager": eager, "budget": budget, "fitted": once(name, budget)}
    return found | {"min": once(name, "min")} if least else found


def seen(names: list[str], least: bool) -> dict[str, Any]:
    """The results of a fresh process for these loops, by name."""
    done = fresh.run(str(Path(__file__).resolve()), *names, *(["--least"] if least else []))
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("names", nargs="*", choices=[[], *LOOPS])
    parser.add_argument("--least", action="store_true", help="run with as few bytes as possible, too")
    options = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(2)
    allocator.install()
    print(json.dumps({name: compared(name, options.least) for name in options.names or LOOPS}), file=out, flush=True)


if __name__ == "__main__":
    main()
