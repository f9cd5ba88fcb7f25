"""`tightfit.largest`: the largest batch that fits, and the one with the most samples per second.

Tier: quick, 45 s.
"""

import copy
import random

import pytest
import torch
import zoo
from models import Pixels, labelled
from torch import nn
from torch.nn import functional

tightfit = zoo.use_tightfit()
if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)
from tightfit.training import sizing  # noqa: E402
from tightfit.training.bracketing import Search, Tried  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

WORDS, LONGEST = 64, 24


class Words(nn.Module):
    """Attention over words, with positions from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(WORDS, 32), nn.Embedding(LONGEST, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, WORDS)

    def forward(self, words):
        found = self.embedding(words) + self.positions(torch.arange(words.shape[1]))
        for layer in self.layers:
            found = layer(found)
        return functional.cross_entropy(self.head(found[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def words(rows: int, length: int = 20) -> dict:
    return {"words": torch.randint(0, WORDS, (rows, length))}


def pixels(rows: int) -> dict:
    return labelled(rows, 32)


def runs(model: nn.Module, batch: dict, budget: int) -> bool:
    """Whether two training steps run within a budget."""
    model = tightfit.compile(copy.deepcopy(model), budget, optimizer="adamw")
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        for _ in range(2):
            optimizer.zero_grad()
            model(**batch).backward()
            optimizer.step()
    except tightfit.InfeasibleBudget:
        return False
    return all(plan.peak <= budget for plan in tightfit.plans(model))


class Said(nn.Module):
    """Words whose logits are larger than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(2000, 16), nn.Linear(16, 2000)

    def forward(self, words):
        return functional.cross_entropy(self.head(self.embedding(words)).flatten(0, 1), words.flatten())


def test_more_rows_fit_in_chunks():
    torch.manual_seed(0)
    batch = {"words": torch.randint(2000, (8, 64))}
    most = {split: tightfit.largest(Said(), batch, 16 << 20, machine="a100-80gb", split=split, deadline=0.05).size
            for split in ("off", "auto", "16:totals")}
    assert 1.5 * most["off"] < most["auto"] < most["16:totals"]


@pytest.mark.parametrize(("kind", "batch", "budget"), [(Words, words, 3 << 20), (Pixels, pixels, 5 << 20)])
def test_the_largest_batch_trains_and_the_next_one_does_not(kind, batch, budget, recwarn):
    torch.manual_seed(0)
    model, given = kind(), batch(4)
    before = copy.deepcopy(model.state_dict())
    found = tightfit.largest(model, given, budget, optimizer="adamw")
    assert found.size > 16
    assert found.limit is None
    assert found.fastest in [one.size for one in found.tried if one.fits]
    # Nothing was run, and nothing is marked.
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any("dynamo" in name for tensor in given.values() for name in vars(tensor))
    torch._dynamo.reset()
    assert runs(model, batch(found.size), budget)
    torch._dynamo.reset()
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        # By the graph of a capture at that size.
        tightfit.plan(model, batch(found.size + 1), budget, optimizer="adamw", deadline=0.25)
    if found.is_proven:
        assert refused.value.needed > budget


def test_what_is_said_of_a_size_is_what_planning_says_there():
    torch.manual_seed(0)
    model, budget = Words(), 2 << 20
    found = tightfit.largest(model, words(4), budget, machine="h100-80gb")
    for one in found.tried[:: len(found.tried) // 3]:
        torch._dynamo.reset()
        if one.fits:
            plan = tightfit.plan(model, words(one.size), budget, machine="h100-80gb")
            assert one.unplanned_seconds == pytest.approx(plan.unplanned_seconds, rel=1e-9)
            # Without a plan, a step holds the same; with one, the search may have taken another way.
            assert one.recomputed or plan.recomputed or one.peak == plan.peak
            assert one.per_second == one.size / one.seconds


def test_a_length_ends_where_positions_do():
    found = tightfit.largest(Words(), words(2, 8), "64MiB", axis="length", machine="h100-80gb")
    assert (found.size, found.limit, found.is_proven) == (LONGEST, LONGEST, True)
    assert "beyond which Words cannot be captured" in str(found)


def test_a_compiled_model_says_what_it_can_be_called_with():
    torch.manual_seed(0)
    model, budget = Words(), 1 << 20
    tightfit.compile(model, budget, deadline=0.1)
    with pytest.raises(tightfit.OptionError, match="has varied"):
        tightfit.plans(model).largest()
    for rows, length in [(4, 10), (4, 12), (6, 12), (5, 9)]:
        model(**words(rows, length)).backward()
        model.zero_grad()
    with pytest.raises(tightfit.OptionError, match="such as batch=8"):
        tightfit.plans(model).largest()
    with pytest.raises(tightfit.OptionError, match="not rows="):
        tightfit.plans(model).largest(rows=8)
    longest = tightfit.plans(model).largest(batch=4)
    assert (longest.axis, longest.size, longest.limit) == ("length", LONGEST, LONGEST)
    found = tightfit.plans(model).largest(length=20)
    assert found.axis == "batch"
    assert found.size > 6
    model(**words(found.size, 20)).backward()
    model.zero_grad()
    with pytest.raises(tightfit.InfeasibleBudget):
        model(**words(3 * found.size, 20))


class Masked(nn.Module):
    """Has a table of the pairs that attention sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("seen", torch.ones(32, 32).tril())

    def forward(self, inputs, unread=None):
        found = self.layer(inputs)
        length = inputs.shape[1]
        scores = (found @ found.transpose(1, 2)).masked_fill(self.seen[:length, :length] == 0, float("-inf"))
        return (scores.softmax(-1) @ found).sum()


def test_the_whole_of_a_table_may_be_used():
    found = tightfit.largest(Masked(), torch.randn(2, 8, 8), "8MiB", axis="length", machine="h100-80gb")
    assert (found.size, found.limit) == (32, 32)


def test_what_the_graph_does_not_read_counts():
    model, budget = Masked(), 128 << 10
    found = tightfit.largest(model, (torch.randn(4, 8, 8), torch.randn(4, 8, 8)), budget)
    assert found.size < tightfit.largest(model, torch.randn(4, 8, 8), budget).size
    torch._dynamo.reset()
    tightfit.compile(model, budget)
    model(torch.randn(found.size, 8, 8), torch.randn(found.size, 8, 8)).backward()


def test_other_models_of_a_budget_count():
    budget = tightfit.Budget(256 << 10)
    other = tightfit.compile(nn.Linear(64, 128), budget, optimizer="adamw")
    found = tightfit.largest(Masked(), torch.randn(4, 8, 8), budget)
    assert found.size < tightfit.largest(Masked(), torch.randn(4, 8, 8), 256 << 10).size
    del other


class Folding(nn.Module):
    """Takes multiples of sixteen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, inputs, mask=None):
        found = self.layer(inputs.reshape(inputs.shape[0], -1, 16, 16)).tanh()
        return found.sum() if mask is None else found.sum() * mask.mean()


def test_sizes_between_multiples_are_left_out():
    found = tightfit.largest(Folding(), torch.randn(2, 32, 16), "512KiB", axis="length", machine="h100-80gb")
    assert found.size % 16 == 0
    assert found.size > 256
    assert found.limit is None


def test_inputs_that_nothing_compares_have_one_size():
    found = tightfit.largest(Folding(), (torch.randn(2, 32, 16), torch.ones(2, 3)), "512KiB", machine="h100-80gb")
    assert found.size > 4


def test_positions_that_the_table_does_not_have_are_refused():
    with pytest.raises(tightfit.CompileError, match="cannot be planned with a length of 30"):
        tightfit.largest(Words(), words(2, 30), "64MiB", axis="length")


class Branching(nn.Module):
    """Takes another path from fifty rows on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs):
        found = self.layer(inputs)
        return (found.exp() if len(inputs) < 50 else torch.tanh(found).sin()).sum()


def test_sizes_at_which_the_model_takes_another_path_are_captured_anew():
    model = Branching()
    found = tightfit.largest(model, torch.randn(4, 8), "192KiB")
    assert found.size > 50
    torch._dynamo.reset()
    plan = tightfit.plan(model, torch.randn(found.size, 8), "192KiB")
    assert plan.peak <= 192 << 10


def test_a_model_without_memory_is_sized_for_a_machine():
    with torch.device("meta"):
        model, batch = Words(), torch.zeros(4, 20, dtype=torch.long)
    found = tightfit.largest(model, {"words": batch}, "16MiB", optimizer="adamw", machine="h100-80gb")
    assert found.size > 200
    assert "the largest batch size within 16.00 MiB" in str(found)
    assert found._repr_html_().count("<tr>") == len(found.tried) + 1


class Reshaping(nn.Module):
    """Is for four rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs, other=None):
        return self.layer(inputs).reshape(4, -1).sum()


@pytest.mark.parametrize(("batch", "budget", "options", "error", "said"), [
    (torch.randn(4, 8), "1MiB", {}, "CompileError", "makes a constant of the batch size"),
    (torch.randn(1, 8), "1MiB", {}, "OptionError", "of 2 or more"),
    (torch.randn(4, 8), "min", {}, "OptionError", "no largest batch"),
    (torch.randn(4, 8), "1MiB", {"axis": "rows"}, "OptionError", "axis='rows'"),
    (torch.randn(8), "1MiB", {"axis": "length"}, "OptionError", "the length is unknown"),
    ((torch.randn(4, 8), torch.randn(5, 8)), "1MiB", {}, "OptionError", "4 and 5"),
])
def test_what_has_no_largest_size_is_refused(batch, budget, options, error, said):
    with pytest.raises(getattr(tightfit, error), match=said):
        tightfit.largest(Reshaping(), batch, budget, **options)


def test_a_budget_that_is_too_small_for_any_size_is_refused():
    with pytest.raises(tightfit.InfeasibleBudget, match="Branching with a batch size of 2: no schedule needs less than"):
        tightfit.largest(Branching(), torch.randn(64, 8), "1KiB")


@pytest.mark.parametrize("seed", range(40))
def test_the_search_ends_at_the_largest_size(seed):
    drawn = random.Random(seed)
    fixed, slope, bend = drawn.randrange(1000), drawn.randrange(1, 50), drawn.choice([0.0, 0.01, 1.0])
    room = fixed + drawn.randrange(2 * slope, 10**6)
    limit = drawn.choice([None, drawn.randrange(2, 5000)])

    def needed(size: int) -> int:
        return int(fixed + slope * size + bend * size * size)

    asked = []

    def try_(size: int, is_near: bool, is_patient: bool) -> Tried | None:
        asked.append(size)
        if limit is not None and size > limit:
            return None
        smallest = int(needed(size) * drawn.uniform(1, 1.3)) if is_near and drawn.random() < 0.9 else None
        return Tried(size, peak=needed(size) if needed(size) <= room else None, needed=needed(size), smallest=smallest)

    search = Search(try_, room)
    found = search.run(drawn.randrange(2, min(limit or 4000, 4000) + 1))
    fits = [size for size in range(1, limit or 10**6) if needed(size) <= room]
    expected = max((size for size in (*fits, limit or 0) if needed(size) <= room), default=0)
    assert (found or 0) == (expected if expected >= 2 else 0)
    assert len(asked) == len(set(asked)) <= 45


def test_gradients_count_if_the_loop_adds_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that just exist: a loop that drops them does so before its next step."""
    counted: list[frozenset[int]] = []
    document = sizing.document

    def noted(joint, name, *, accumulated, between):
        counted.append(accumulated)
        return document(joint, name, accumulated=accumulated, between=between)

    monkeypatch.setattr(sizing, "document", noted)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    compiled = tightfit.compile(model, "1MiB", deadline=0.1)
    for drops, count in [(True, 0), (False, 4)]:
        for rows in (4, 6):
            compiled(torch.randn(rows, 8)).sum().backward()
            if drops and rows == 4:
                model.zero_grad()
        tightfit.plans(compiled).largest()
        assert {len(one) for one in counted} == {count}
        counted.clear()
        model.zero_grad() if drops else None


def test_a_model_that_returns_nothing_has_no_largest_batch() -> None:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> None:
            self.layer(x)

    with pytest.raises(tightfit.CompileError):
        tightfit.largest(Forgetful(), {"x": torch.randn(4, 4)}, "1MiB")
