"""Random language models with random losses, whole and in chunks, run by PyTorch and trained by the engine.

Invariant: with sums at once every bit is that of the step as it is, on one thread, if products of some rows have the bits
of these rows of the whole; with totals, no error against float64 is more than twice that of the step as it is. What cannot
be divided is refused by the name of a node of the step. Layers are divided likewise. The engine computes the same bits on any number of threads, and,
if sums are at once or only products sum over rows, those of the step as it is.

Tier: quick with ten seeds, 15 s; full with 144. `TIGHTFIT_SEEDS=1000-2000` tries others.
"""

import json
import math
import os
import re
import subprocess

import pytest
import tightfit
import torch
from safetensors.torch import load_file
from torch import fx, nn

import drawn
from tier import cases

BIN = os.environ.get("TIGHTFIT_BIN")
pytestmark = pytest.mark.skipif(not BIN, reason="TIGHTFIT_BIN does not name the program; `cargo xtask ci python` does")

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = ("f16", "bf16", "f32")
CHUNK = re.compile(r"(.+)\.(?:chunk|part)\d+")


def seeds(quick: int, full: int) -> list:
    asked = os.environ.get("TIGHTFIT_SEEDS")
    if asked:
        return list(range(*map(int, asked.split("-"))))
    return cases(*range(quick), full=list(range(quick, full)))


@pytest.fixture(autouse=True)
def on_one_thread():
    torch.set_num_threads(1)


class Refused(Exception):
    """The step cannot be divided."""


def split(path, parts: str) -> dict:
    """The graph in parts."""
    made = path.with_suffix(".split.json")
    command = [BIN, "plan", path, "--budget", "16GiB", "--planner", "none", "--split", parts, "--emit", "graph", "-o", made]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode == 2:
        raise Refused(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    return json.loads(made.read_text())


def blamed(refusal: str) -> str | None:
    """The node that a refusal names; `None` if there are too few rows, or no product of matrices."""
    if "rows are too few" in refusal or "no product of matrices" in refusal:
        return None
    found = re.search("node `(.+?)`", refusal)
    assert found, refusal
    return found[1]


class Run(fx.Interpreter):
    """A run that knows which node it is at, and whose empty tensors hold no number that could be right by chance."""

    def run_node(self, n: fx.Node):
        self.node = n
        return super().run_node(n)

    def call_function(self, target, args, kwargs):
        found = super().call_function(target, args, kwargs)
        return found.fill_(math.nan) if target is torch.ops.aten.empty.memory_format else found

    @property
    def called(self) -> str:
        """The node's name in the file."""
        return self.node.meta["tightfit"]["name"]


class Recorded(Run):
    """A run that keeps what products read and make."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.products: dict[str, list[torch.Tensor]] = {}

    def call_function(self, target, args, kwargs):
        found = super().call_function(target, args, kwargs)
        if target in PRODUCTS:
            self.products[self.called] = [found.clone(), *(given.clone() for given in args)]
        return found


class Rows(Run):
    """A run in chunks in which a product of the rows that the whole's had makes what that made; it lists those that would
    have made other bits. A product of other rows makes what it makes."""

    def __init__(self, module: fx.GraphModule, whole: Recorded) -> None:
        super().__init__(module)
        self.whole, self.first = whole.products, dict.fromkeys(whole.products, 0)
        self.differing: list[str] = []

    def call_function(self, target, args, kwargs):
        found = super().call_function(target, args, kwargs)
        chunk = CHUNK.fullmatch(self.called) if target in PRODUCTS else None
        whole = self.whole.get(chunk[1], []) if chunk else []
        if not whole or len(args) + 1 != len(whole) or found.shape == whole[0].shape:
            return found
        first, rows = self.first[chunk[1]], len(found)
        self.first[chunk[1]] += rows
        made, *read = (each if each.shape == part.shape else each[first:first + rows]
                       for each, part in zip(whole, (found, *args), strict=True))
        if equal(found, made) or not all(map(equal, args, read)):
            return found
        self.differing.append(f"{target} {chunk[0]} {[list(each.shape) for each in args]} {found.dtype}, of {len(whole[0])} rows")
        return made.clone()


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Every bit."""
    bits = BITS[one.element_size()]
    is_alike = one.shape == other.shape and one.dtype == other.dtype
    return is_alike and torch.equal(one.contiguous().view(bits), other.contiguous().view(bits))


def ran(interpreter: fx.Interpreter, case: drawn.Case) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        made = interpreter.run(*tightfit.arguments(interpreter.module, case.model, case.batch))
    return dict(zip(interpreter.module.meta["output_names"], made, strict=True))


def errors(case: drawn.Case, made: dict, whole: dict) -> list[str]:
    """Results whose error is more than twice that of the whole's, and where few roundings may be lucky, more than one."""
    exact, terms = case.exact()
    found = []
    for name, tensor in exact.items():
        error, other = ((it[name].double() - tensor).norm().item() for it in (made, whole))
        size = terms if name == "loss" else tensor.norm().item() / tensor.numel() ** 0.5
        # A number that is learned has a gradient of one term from each chunk, which is rounded, and they nearly cancel.
        roundings = case.plan.chunks if tensor.numel() == 1 and name != "loss" else 1
        if not error <= 2 * other + roundings * case.eps * size:
            found.append(f"{name}: {error}, whole {other}")
    return found


def undivided(graph: dict, plan: drawn.Plan) -> list[str]:
    """What makes a number for each row and each word, and does not only show some that are less."""
    sizes = {plan.rows * words for words in (plan.words, plan.words - 7 * ("fewer" in plan.shaped))}
    made = [(node["name"], output) for node in graph["nodes"] for output in node["outputs"] if output is not None]
    return [name for name, output in made if output["dtype"] in FLOATS and math.prod(output["shape"]) in sizes
            and graph["storages"][output["storage"]] >= min(sizes)]


def differences(case: drawn.Case, folder, *all_parts: str) -> dict[str, list[str]]:
    """What is otherwise in these parts than it should be, and products of few rows that have other bits than the whole's."""
    path = folder / "graph.json"
    tightfit.export(case.model, case.loss, case.batch, optimizer=None, out=path, name="words", execute=False, check_size=False)
    recorded = Recorded(tightfit.to_fx(path))
    whole = ran(recorded, case)
    found: dict[str, list[str]] = {"bits": [], "errors": [], "products": [], "whole": []}
    for parts in all_parts:
        graph = split(path, parts)
        divided = tightfit.to_fx(graph)
        made = ran(Run(divided), case)
        assert made.keys() == whole.keys()
        found["errors"] += errors(case, made, whole)
        if "totals" in parts:
            found["whole"] = undivided(graph, case.plan) if case.plan.is_plain else []
        else:
            rows = Rows(divided, recorded)
            again = ran(rows, case)
            found["products"] += rows.differing
            found["bits"] += [name for name in whole if not equal(again[name], whole[name])]
            if not rows.differing:
                found["bits"] += [f"{name}, run as it is" for name in whole if not equal(made[name], whole[name])]
    return found


@pytest.mark.parametrize("seed", seeds(8, 120))
def test_random_losses_in_chunks_are_those_of_the_whole(seed, tmp_path):
    case = drawn.Case.of(drawn.plan_of(seed), seed)
    try:
        found = differences(case, tmp_path, f"{case.plan.chunks}", f"{case.plan.chunks}:totals")
    except Refused as refused:
        nodes = {node["name"] for node in json.loads((tmp_path / "graph.json").read_text())["nodes"]}
        assert case.plan.obstacles and blamed(str(refused)) in nodes | {None}, (case.plan, str(refused))
        return
    assert not found["bits"] and not found["errors"] and not found["whole"], (case.plan, found)


@pytest.mark.parametrize("seed", seeds(4, 80))
def test_random_layers_in_chunks_are_those_of_the_whole(seed, tmp_path):
    case = drawn.Case.of(drawn.with_layers(drawn.plan_of(seed), seed), seed)
    try:
        found = differences(case, tmp_path, f"1+{case.plan.chunks}")
    except Refused as refused:
        blamed(str(refused))
        assert case.plan.may_be_too_few, (case.plan, str(refused))
        return
    # Chunks of sequences do not end where loops over vectors do.
    assert not found["errors"] and (not found["bits"] or case.plan.rows < drawn.LEAST), (case.plan, found)


class Logits(nn.Module):
    """What the engine trains: a model that returns one tensor."""

    def __init__(self, words: nn.Module) -> None:
        super().__init__()
        self.words = words

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.words(words)["logits"]


def executable(case: drawn.Case, corpus, folder):
    """A step for the engine."""
    samples, length = case.plan.shape
    data = {"kind": "bytes", "file": str(corpus / "data" / "kjv.txt"), "window": length, "batch": samples, "sampling_seed": 1,
            "validation": {"last_fraction": 0.1}}
    batch = (torch.zeros(case.plan.shape, dtype=torch.int64), torch.zeros(case.plan.shape, dtype=torch.int64))
    tightfit.export(Logits(case.model), lambda logits, targets: case.loss({"logits": logits}, {"targets": targets}), batch,
                    optimizer={"kind": "sgd", "momentum": 0.9}, learning_rate=1e-2, out=folder / "step", name="words", data=data,
                    check_size=False)
    return folder / "step"


def trained(step, parts: str, threads: int, budget: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of three steps, and the weights after them."""
    saved = step.parent / "saved"
    command = [BIN, "train", step, "--budget", budget, "--steps", 3, "--iterations", 3, "--roofline", "--threads", threads,
               "--split", parts, "--eval-batches", 0, "--allow-outside", "--json", "--save", saved]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode == 2:
        raise Refused(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    lines = map(json.loads, ran.stdout.splitlines())
    return [line["loss"] for line in lines if "loss" in line], load_file(saved)


def same(one, other) -> bool:
    (losses, weights), (others, of_other) = one, other
    is_alike = losses == others and weights.keys() == of_other.keys()
    return is_alike and all(equal(weights[name], of_other[name]) for name in weights)


def trained_in_parts(case: drawn.Case, step, budget: str, *all_parts: str) -> list[str]:
    """What is otherwise in these parts than it should be."""
    whole = trained(step, "off", 1, "100%")
    found = [] if same(trained(step, "off", 2, budget), whole) else ["off on two threads"]
    for parts in all_parts:
        one, two = (trained(step, parts, threads, budget) for threads in (1, 2))
        found += [] if same(one, two) else [f"{parts} on two threads"]
        # Where rows have an obstacle, chunks have sequences, which do not end where blocks do.
        if "totals" not in parts or not (case.plan.sums or case.plan.obstacles):
            found += [] if same(one, whole) else [parts]
            continue
        torch.testing.assert_close(one[0], whole[0], rtol=1e-6, atol=0)
        torch.testing.assert_close(one[1], whole[1], rtol=1e-5, atol=1e-6)
    return found


@pytest.mark.parametrize("seed", seeds(2, 24))
def test_random_steps_train_in_chunks_as_they_do_whole(seed, corpus, tmp_path):
    case = drawn.Case.of(drawn.plan_of_engine(seed), seed)
    try:
        step = executable(case, corpus, tmp_path)
    except tightfit.errors.ExportError:
        # The engine has no norm of rows that lie apart.
        assert case.plan.obstacles, case.plan
        return
    try:
        asked = (f"{case.plan.chunks}", f"{case.plan.chunks}:totals")
        assert trained_in_parts(case, step, "min" if seed % 2 else "100%", *asked) == [], case.plan
    except Refused as refused:
        blamed(str(refused))
        assert case.plan.obstacles, (case.plan, str(refused))


@pytest.mark.parametrize("seed", seeds(1, 16))
def test_random_steps_train_with_layers_in_chunks_as_they_do_whole(seed, corpus, tmp_path):
    case = drawn.Case.of(drawn.with_layers(drawn.plan_of_engine(seed), seed), seed)
    try:
        step = executable(case, corpus, tmp_path)
    except tightfit.errors.ExportError:
        assert case.plan.obstacles or {"mixed", "near heads"} & set(case.plan.layers), case.plan
        return
    try:
        assert trained_in_parts(case, step, "min" if seed % 2 else "100%", f"1+{case.plan.chunks}") == [], case.plan
    except Refused as refused:
        blamed(str(refused))
        assert case.plan.may_be_too_few, (case.plan, str(refused))
