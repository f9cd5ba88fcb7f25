"""Loops that people write, unchanged, around a compiled model: eager's own bits, within the budget on every step.

Invariant: each loop is run by the same code in eager and compiled, in a fresh process that counts every byte, and
everything that it records is compared; a call that no plan runs is an exception, so none falls back to eager. Every
change runs each loop at one budget; `TIGHTFIT_LOOPS=all` runs each with as few bytes as possible, too.

Tier: quick with a part of the cases, 76 s; full with all of them.
"""

import copy
import gc
import io
import linecache
import pickle
import sys
import weakref

import allocator
import data_parallel
import loops
import pytest
import torch
import transformers
import zoo
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from tier import FULL, cases

tightfit = zoo.use_tightfit()
if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)
REASON = allocator.unavailable()
counted = pytest.mark.skipif(REASON is not None, reason=str(REASON))

TRAINER = [name for name in loops.LOOPS if name.startswith(("trainer", "resumed"))]
PLAIN = [name for name in loops.LOOPS if name not in TRAINER]


def seen(name: str) -> dict:
    return loops.seen([name], FULL)[name]


def judge(found: dict) -> None:
    """Checks that a loop's runs have eager's records, and that each step under a budget stays within it."""
    eager = found["eager"]
    assert "error" not in eager and eager["records"] and eager["peaks"], eager.get("trace")
    for mode in ("fitted", "min") if "min" in found else ("fitted",):
        run = found[mode]
        assert "error" not in run, f"{mode}: {run['trace']}"
        assert run["plans"] > 0
        differing = [theirs[0] for ours, theirs in zip(run["records"], eager["records"], strict=True) if ours != theirs]
        assert differing == [], f"{mode}: {len(differing)} records differ from eager's"
    over = [peak for peak in found["fitted"]["peaks"] if peak > found["budget"]]
    assert over == [], f"steps over the budget of {found['budget']}"
    assert found["fitted"]["planned"] <= found["budget"]


@counted
@pytest.mark.parametrize("name", PLAIN)
def test_a_loop_is_eagers_and_fits(name):
    judge(seen(name))


@counted
@pytest.mark.parametrize("name", cases("trainer_gpt2", full=[name for name in TRAINER if name != "trainer_gpt2"]))
def test_transformers_trainer_is_eagers_and_fits(name):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    found = seen(name)
    judge(found)
    if name != "resumed":
        steps = [what for what, _ in found["eager"]["records"]]
        assert "loss at 20" in steps and "eval_loss at 20" in steps


@counted
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no distributed package")
def test_data_parallelism_of_two_processes_is_eagers_and_fits():
    ranks = data_parallel.seen()
    for views in ("False", "True"):
        for rank in ranks:
            judge(rank[views])
        # The ranks have different batches, and the same parameters.
        first, second = (dict(rank[views]["fitted"]["records"]) for rank in ranks)
        assert first["first.weight"] == second["first.weight"] and first["loss"] != second["loss"]


# Rarer things that loops do, compared in this process.


def made(*, budget=None, evaluation=None, **options) -> nn.Module:
    """A model from a fixed seed, which also seeds its random numbers; compiled if there is a budget."""
    torch.manual_seed(0)
    model = loops.Net(**options)
    return model if budget is None else tightfit.compile(model, budget=budget, deadline=0.1, evaluation=evaluation)


def loss_of(model: nn.Module, seed: int = 0) -> torch.Tensor:
    x, y = loops.batch(seed)
    return functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(model: nn.Module, eager: nn.Module) -> None:
    """Asserts that gradients and state are equal bit for bit."""
    for ours, theirs in ((gradients(model), gradients(eager)), (model.state_dict(), eager.state_dict())):
        assert list(ours) == list(theirs)
        for name, tensor in theirs.items():
            assert (ours[name] is None) == (tensor is None), name
            assert tensor is None or torch.equal(ours[name], tensor), name


def test_a_retained_graph_runs_twice_where_the_budget_suffices():
    eager, model = made(), made(budget="1GiB")
    for one in (eager, model):
        torch.manual_seed(1)
        loss = loss_of(one)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert_same(model, eager)


def test_a_graph_is_retained_behind_one_that_was_not():
    model = made(budget="1GiB")
    loss_of(model).backward()
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    loss.backward()


def test_two_calls_in_one_backward_pass_are_added_up_as_autograd_does():
    eager, model = made(), made(budget="1GiB")
    for one in (eager, model):
        torch.manual_seed(1)
        for seed in range(3):
            (loss_of(one, seed) + loss_of(one, seed + 7)).backward()
    assert_same(model, eager)


class Halves(nn.Module):
    """Two products with the halves of one parameter: backward passes read parts of it, not the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.both = nn.Linear(loops.WIDTH, 16), nn.Parameter(torch.randn(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        return sum((h @ half).sum() for half in self.both.chunk(2, 1))


@pytest.mark.parametrize("calls", [3, 4])
@pytest.mark.parametrize("there", [False, True])
def test_any_number_of_calls_in_one_backward_pass_is_added_up_as_autograd_does(calls, there):
    """The first of them makes gradients; for the others these are no earlier ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    inputs = [torch.randn(256, 64) for _ in range(calls)]

    def gradients(model: nn.Module) -> list[torch.Tensor]:
        if there:
            model(inputs[0]).square().mean().backward()
        sum(model(one).square().mean() * (index + 1) / 3 for index, one in enumerate(inputs)).backward()
        return [parameter.grad for parameter in model.parameters()]

    wanted = gradients(copy.deepcopy(model))
    assert all(map(torch.equal, gradients(tightfit.compile(model, "64MiB")), wanted))


@pytest.mark.parametrize(("model", "name"), [(loops.Net, "head.weight"), (Halves, "both")])
def test_a_parameter_that_changes_between_the_passes_is_noticed(model, name):
    model = tightfit.compile(model(), budget="min", deadline=0.1)
    loss = model(loops.batch(0)[0]).sum()
    with torch.no_grad():
        model.get_parameter(name).mul_(2)
    with pytest.raises(RuntimeError, match=f"'{name}', which this backward pass needs, was changed in place"):
        loss.backward()


class Shown(nn.Module):
    """Returns a loss and what it comes from, two views of one memory, and the batch. What it comes
    from is logits, which may be capped before the loss, or a result that any backward pass reads."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.table, self.head = kind, nn.Embedding(96, 8), nn.Linear(8, 96, bias=False)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = self.head(self.table(words))
        shown = logits.tanh() if self.kind == "read" else logits
        scores = 3 * (shown / 3).tanh() if self.kind == "capped" else shown
        return functional.cross_entropy(scores.flatten(0, 1), words.flatten()), shown, shown.flatten(0, 1), words


WORDS = torch.arange(640).remainder(96).view(4, 160)
CHANGES = [
    lambda shown, flat: shown.fill_(0),
    lambda shown, flat: shown[..., :9].fill_(float("-inf")),
    lambda shown, flat: flat.fill_(0),
    lambda shown, flat: shown.detach().fill_(0),
    lambda shown, flat: torch.neg(flat, out=flat.detach()),
]


def shown_by(kind: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return tightfit.compile(Shown(kind), **options) if options else Shown(kind)


def gradients_after(model: nn.Module, change=None) -> list[torch.Tensor]:
    """The gradients of a step between whose passes two of its outputs are changed."""
    model.zero_grad()
    loss, shown, flat, _ = model(WORDS)
    if change is not None:
        with torch.no_grad():
            change(shown, flat)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(("kind", "options"), [
    ("read", {"budget": "1GiB"}), ("capped", {"budget": "min", "split": "off"}), ("plain", {"budget": "min", "split": 4})])
def test_an_output_that_changes_between_the_passes_is_noticed_where_it_is_read(kind, options):
    model, wanted = shown_by(kind, **options), gradients_after(shown_by(kind))
    for change in CHANGES:
        with pytest.raises(RuntimeError, match=r"an output of Shown, of shape .* 96\], which this backward pass needs"):
            gradients_after(model, change)
        assert all(map(torch.equal, gradients_after(model), wanted))


@pytest.mark.parametrize("kind", ["plain", "capped"])
def test_an_output_that_no_backward_pass_reads_may_change(kind):
    model, wanted = shown_by(kind, budget="1GiB", split="off"), gradients_after(shown_by(kind))
    for change in CHANGES:
        assert all(map(torch.equal, gradients_after(model, change), wanted))


def test_an_output_that_changes_between_two_backward_passes_is_noticed():
    model = shown_by("read", budget="1GiB", differentiable_outputs=True)
    loss, shown, flat, _ = model(WORDS)
    (loss + flat.sum()).backward(retain_graph=True)
    (loss + shown.sum()).backward(retain_graph=True)
    shown.detach().zero_()
    with pytest.raises(RuntimeError, match="an output of Shown"):
        loss.backward()


def test_a_batch_that_is_an_output_and_changes_is_noticed_by_its_name():
    words = WORDS.clone()
    loss, *_, output = shown_by("plain", budget="1GiB")(words)
    assert output.data_ptr() == words.data_ptr()
    output.zero_()
    with pytest.raises(RuntimeError, match="'words', which this backward pass needs, was changed in place"):
        loss.backward()


@pytest.mark.parametrize(("kind", "is_read"), [("read", True), ("plain", False)])
def test_an_output_that_is_let_go_is_kept_as_long_as_a_backward_pass_may_read_it(kind, is_read):
    loss, *outputs = shown_by(kind, budget="1GiB", split="off")(WORDS)
    storage = StorageWeakRef(outputs[0].untyped_storage())
    del outputs
    assert storage.expired() is not is_read
    loss.backward()
    assert storage.expired()


def test_an_interrupt_leaves_the_random_numbers_where_they_are():
    """Interrupts at each line of the generated backward pass."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16, use_cache=False,
                                     bos_token_id=None, eos_token_id=None)
    model = tightfit.compile(transformers.GPT2LMHeadModel(config), budget="min")
    tokens = torch.randint(0, 32, (4, 16))

    def interrupted(at: int) -> bool:
        lines = 0

        def line(frame, event, argument):
            nonlocal lines
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if event == "line" and not text.startswith("finally"):
                lines += 1
                if lines == at:
                    raise KeyboardInterrupt
            return line

        def call(frame, event, argument):
            return line if frame.f_code.co_filename.startswith("<tightfit") else None

        loss = model(input_ids=tokens, labels=tokens).loss
        before = torch.get_rng_state()
        kept = sys.gettrace()
        sys.settrace(call)
        try:
            loss.backward()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(kept)
        assert torch.equal(torch.get_rng_state(), before), at
        return lines >= at

    interrupted(10**9)
    [step] = model._compiled_call_impl.backend.steps
    assert any("go_back" in plan.code.source for plan in step.made)
    count = 1
    while interrupted(count):
        count += 7
    assert count > 50


def test_a_retained_graph_beyond_the_budget_is_refused_and_the_step_goes_on():
    least = made(budget="min")
    loss_of(least).backward()
    eager, model = made(), made(budget=tightfit.plans(least)[0].peak)
    for one in (eager, model):
        torch.manual_seed(1)
        loss = loss_of(one)
        if one is model:
            with pytest.raises(tightfit.BudgetExceeded, match="retain_graph"):
                loss.backward(retain_graph=True)
        loss.backward()
    assert_same(model, eager)


def saved_and_loaded(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded])
def test_a_copy_is_the_model_as_it_was_built(copied):
    model = made(budget="1GiB")
    loss_of(model).backward()
    other = copied(model)
    assert type(other) is loops.Net and list(other.state_dict()) == list(made().state_dict())
    with pytest.raises(tightfit.CompileError, match="not compiled"):
        tightfit.plans(other)
    for one in (other, model):
        one.zero_grad()
        torch.manual_seed(1)
        loss_of(one).backward()
    assert_same(model, other)


@pytest.mark.parametrize("where", ["gradient", "forward"])
def test_a_loop_goes_on_after_an_interrupt(where):
    def interrupt(*_):
        raise KeyboardInterrupt

    def run(model):
        torch.manual_seed(1)
        for step in range(3):
            model.zero_grad()
            hook = None
            if step == 1:
                hook = model.first.weight.register_hook(interrupt) if where == "gradient" else None
            try:
                loss = loss_of(model, step)
                if step == 1 and where == "forward":
                    interrupt()
                loss.backward()
            except KeyboardInterrupt:
                loss = None
            if hook is not None:
                hook.remove()
        loss = None
        return model

    model = run(made(budget="min"))
    assert_same(model, run(made()))
    gc.collect()
    assert model._compiled_call_impl.backend.ledger.others() == {}


def test_a_model_is_loaded_and_converted_between_steps():
    def run(model):
        torch.manual_seed(1)
        loss_of(model, 0).backward()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        loss_of(model, 1).backward()
        model.double()
        loss_of(model, 2).backward()
        model.float()
        loss_of(model, 3).backward()
        return model

    assert_same(run(made(budget="min")), run(made()))


def test_a_parameter_changed_before_its_backward_pass_is_an_error():
    for model in (made(), made(budget="min")):
        loss = loss_of(model)
        with torch.no_grad():
            model.head.weight.add_(1)
        with pytest.raises(RuntimeError, match="version 2"):
            loss.backward()


def test_state_of_optimizers_counts_once_it_is_there():
    model = made(budget="1GiB")
    held = model._compiled_call_impl.backend.ledger.others
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model).backward()
    assert held() == {}
    optimizer.step()
    trained = sum(parameter.nbytes for parameter in model.parameters())
    [(reason, size)] = held().items()
    assert "optimizer" in reason and 2 * trained <= size <= 2 * trained + 64 * len(list(model.parameters()))
    del optimizer
    gc.collect()
    assert held() == {}


def test_gradients_that_a_call_does_not_compute_count():
    model = made(budget="1GiB", evaluation="planned")
    loss_of(model).backward()
    before = tightfit.plans(model)[-1].peak
    model.first.requires_grad_(False)
    with torch.no_grad():
        loss_of(model)
    held = sum(parameter.nbytes for parameter in model.parameters())
    # Parameters, and a gradient of each of them, also exist during an evaluation.
    assert 2 * held < tightfit.plans(model)[-1].peak < before


def test_a_second_derivative_is_refused():
    model = made(budget="1GiB")
    loss = loss_of(model)
    with pytest.raises(tightfit.CompileError, match="create_graph=True"):
        torch.autograd.grad(loss, [model.head.weight], create_graph=True)
    loss.backward()


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_prepares_a_compiled_model(precision):
    accelerate = pytest.importorskip("accelerate")

    def run(model):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        torch.manual_seed(1)
        for step in range(4):
            with accelerator.accumulate(prepared):
                accelerator.backward(loss_of(prepared, step))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
        return accelerator.unwrap_model(prepared)

    model = made(budget="min")
    assert_same(run(model), run(made()))
    assert len(tightfit.plans(model)) > 1


def test_a_model_that_is_let_go_is_gone():
    model = made(budget="1GiB")
    loss_of(model).backward()
    with torch.no_grad():
        loss_of(model)
    gone = [weakref.ref(model.first.weight), weakref.ref(model.first.weight.grad),
            weakref.ref(model.statistics.running_mean)]
    replaced = weakref.ref(model.head.weight)
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
    loss_of(model)
    assert replaced() is None
    gone.append(weakref.ref(model.head.weight))
    del model
    gc.collect()
    assert [reference() for reference in gone] == [None] * len(gone)


def test_what_stands_around_the_model_is_refused():
    with pytest.raises(tightfit.CompileError, match="model.module"):
        tightfit.compile(nn.DataParallel(made()), budget="1GiB")
