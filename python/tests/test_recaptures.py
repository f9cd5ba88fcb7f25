"""What a model computes with its batch size or length is known from a second capture, or refused by name.

Invariant: what is compared was captured by PyTorch at that size. Sizes, widths and constants of the models are alike on
purpose: nothing follows from a number that happens to be equal.

Tier: quick, 15 s.
"""

import json
import math
import warnings

import pytest
import torch
import zoo
from torch import nn
from torch.nn import functional

tightfit = zoo.use_tightfit()

N, S, D = 4, 6, 4  # the batch is as large as the width


class Of(nn.Module):
    """A layer, and a loss of what it makes."""

    def __init__(self, loss) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(D, D), loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.layer(x))


def exported(path, loss, batch=N, length=S, **options):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tightfit.export(Of(loss), None, {"x": torch.randn(batch, length, D)}, out=path, name="of", execute=False, **options)
    return tightfit.read_graph(path)


# Losses that use the batch size n and the length s in some way of which it is known what it is at others.
KNOWN = {
    "divided by the batch size": lambda x: x.square().sum() / x.shape[0],
    "divided by a constant that is the batch size": lambda x: x.square().sum() / N,
    "divided by a constant that is a number of elements": lambda x: x.square().sum() / (N * S),
    "multiplied by the batch size": lambda x: x.square().mean() * x.shape[0],
    "a mean over the batch by hand": lambda x: (x.sum(0) / x.shape[0]).square().sum(),
    "one less than the batch size": lambda x: x.square().sum() / (x.shape[0] - 1),
    "a standard deviation over the batch": lambda x: x.std(0).sum(),
    "a variance with two degrees of freedom less": lambda x: x.var(0, correction=2).sum(),
    "halved": lambda x: x.square().mean() * 0.5,
    "scaled as attention is": lambda x: ((x @ x.mT) / math.sqrt(D)).softmax(-1).square().sum(),
    "scaled by the length": lambda x: ((x @ x.mT) / x.shape[1]).softmax(-1).square().sum(),
    "a temperature": lambda x: (x * (0.1 * x.shape[0])).logsumexp(-1).sum(),
    "a limit": lambda x: x.clamp(max=float(x.shape[0])).sum(),
    "a limit that is constant": lambda x: x.clamp(max=float(N)).sum(),
    "positions from the end": lambda x: (x * (x.shape[1] - 1 - torch.arange(x.shape[1]))[:, None]).sum(),
    "the last position": lambda x: (x * (torch.arange(x.shape[1]) == x.shape[1] - 1)[:, None]).sum(),
    "shares of the positions": lambda x: (x * (torch.arange(x.shape[1]) / x.shape[1])[:, None]).sum(),
    "the first two": lambda x: x[:, :2].square().mean(),
    "all but the first": lambda x: (x[:, 1:] - x[:, :-1]).square().mean(),
    "the third": lambda x: x[:, 2].square().mean(),
    "smooth": lambda x: functional.smooth_l1_loss(x, x.flip(1), beta=0.25),
}
# And of which it is not, along these dimensions.
UNKNOWN = {
    "a half of the length": (lambda x: x[:, :x.shape[1] // 2].square().mean(), {"length"}),
    "as many zeros as half of the length": (lambda x: functional.pad(x, (0, 0, 0, x.shape[1] // 2)).square().mean(), {"length"}),
    "rounded up to a multiple of four": (lambda x: functional.pad(x, (0, 0, 0, -x.shape[1] % 4)).square().mean(), {"length"}),
    "the largest half of the batch": (lambda x: x.topk(x.shape[0] // 2, 0).values.sum(), {"batch"}),
    "a root": (lambda x: x.square().sum() / math.sqrt(x.shape[0]), {"batch"}),
    "a logarithm": (lambda x: (x * math.log(x.shape[1])).square().mean(), {"length"}),
    "pairs of samples": (lambda x: x.square().sum() / (x.shape[0] * (x.shape[0] - 1) / 2), {"batch"}),
    "as captured only": (lambda x: x.reshape(N, -1).square().sum(), {"batch"}),
}


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_other_sizes_are_as_captured_or_refused(name, tmp_path):
    loss, unknown = UNKNOWN.get(name) or (KNOWN[name], set())
    graph = exported(tmp_path / "step.json", loss)
    for axis, sizes in ({"batch": (3, 8, 9), "length": (5, 12, 21)}).items():
        if axis in unknown:
            with pytest.raises(tightfit.OptionError, match=f"not known what the step is with another {axis}"):
                graph.at(**{axis: sizes[0]})
            continue
        for size in sizes:
            other = exported(tmp_path / "other.json", loss, **{axis: size}, check_size=False)
            assert graph.at(**{axis: size}).difference(other) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_work_grows_along_each_axis(device, tmp_path):
    """The products of attention grow with the square of the length, whichever operator computes them."""
    def attention(x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).square().sum()

    graph = exported(tmp_path / "step.json", attention, device=device)
    other = exported(tmp_path / "other.json", attention, length=18, device=device, check_size=False)
    assert graph.at(length=18).difference(other) is None


def attend(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    heads = torch.cat((x, x), -1).unflatten(-1, (1, 8)).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, bias)


def image(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (2, 3)).permute(0, 3, 1, 2)


# What PyTorch computes with operators of their own on CUDA, and along which dimensions it is known.
ON_CUDA = {
    "attention in float32": (attend, {"batch", "length"}),
    "attention with a bias": (lambda x: attend(x, x[:, None, :, :1] - x[:, None, :, :1].mT), {"batch", "length"}),
    "a norm": (lambda x: x.norm(dim=-1), {"batch", "length"}),
    "a norm over the length": (lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True), {"batch", "length"}),
    "rolled": (lambda x: x.roll(1, 1) * x.roll((1, -1), (0, 2)), {"batch", "length"}),
    "unbound": (lambda x: x.unbind(2)[0] * x.unbind(2)[2], {"batch", "length"}),
    "a patch": (lambda x: x.select_scatter(x[:, 0], 1, 2), {"batch", "length"}),
    "shuffled pixels": (lambda x: functional.pixel_shuffle(image(x), 2), {"batch"}),
    "interpolated": (lambda x: functional.interpolate(image(x), scale_factor=2.0, mode="nearest"), {"batch"}),
    "binary cross entropy": (lambda x: functional.binary_cross_entropy_with_logits(x, x.detach().sigmoid()), {"batch", "length"}),
    "squares": (lambda x: functional.mse_loss(x, x.detach() + 1), {"batch", "length"}),
    "smooth": (lambda x: functional.smooth_l1_loss(x, x.detach() + 1, reduction="none"), {"batch", "length"}),
    "added at": (lambda x: torch.zeros(3, S, D).index_add(0, torch.arange(x.shape[0]) % 3, x), {"batch"}),
    "looked up": (lambda x: torch.ops.aten._unsafe_index(x, [None, torch.tensor([0, 2, 2])]), {"batch"}),
}


@pytest.mark.parametrize("name", ON_CUDA)
def test_operators_of_cuda(name, tmp_path):
    of, known = ON_CUDA[name]
    options = {"device": "cuda"}
    graph = exported(tmp_path / "step.json", lambda x: of(x).square().sum(), length=32 if "attention" in name else S, **options)
    for axis in known:
        size = 64 if axis == "length" and "attention" in name else 8
        other = exported(tmp_path / "other.json", lambda x: of(x).square().sum(),
                         **{"length": 32 if "attention" in name else S} | {axis: size}, check_size=False, **options)
        assert graph.at(**{axis: size}).difference(other) is None


def cut(x: torch.Tensor) -> torch.Tensor:
    return x[:, :64].square().mean()


def test_a_limit_beyond_the_captured_sizes_is_seen(tmp_path):
    """Below 64, the slice takes everything, and leaves no node."""
    graph = exported(tmp_path / "step.json", cut, length=20)
    other = exported(tmp_path / "other.json", cut, length=40, check_size=False)
    assert graph.at(length=40).difference(other) is None
    with pytest.raises(tightfit.OptionError, match="not known what the step is with a length of 80, only with 3 to 48: with 96, "):
        graph.at(length=80)


def test_a_limit_below_the_captured_size_is_seen(tmp_path):
    graph = exported(tmp_path / "step.json", cut, length=80)
    assert graph.at(length=300).difference(exported(tmp_path / "other.json", cut, length=300, check_size=False)) is None
    with pytest.raises(tightfit.OptionError, match="not known what the step is with a length of 50, only with 80 to 3[0-9][0-9]: with "):
        graph.at(length=50)


def test_sizes_that_no_capture_is_near_are_answered_with_a_note(tmp_path):
    graph = exported(tmp_path / "step.json", KNOWN["halved"])
    with pytest.warns(UserWarning, match="captured with a batch of 4 to 272, and with 300 it is taken to be alike"):
        graph.at(batch=300)


@pytest.mark.parametrize("factor", [0.1, 0.3])
def test_a_number_that_follows_from_both_sizes_is_refused_once_both_change(factor, tmp_path):
    """Also where both grow by as much, so that no order of the two tells."""
    graph = exported(tmp_path / "step.json", lambda x: x.square().sum() * (factor * x.shape[0] * x.shape[1]), 8, 16)
    with pytest.raises(tightfit.OptionError):
        graph.at(batch=20, length=40)
    with pytest.raises(tightfit.OptionError):
        graph.at(length=40).at(batch=20)


def test_two_sizes_at_once_are_as_captured(tmp_path):
    graph = exported(tmp_path / "step.json", KNOWN["divided by a constant that is the batch size"])
    other = exported(tmp_path / "other.json", KNOWN["divided by a constant that is the batch size"], 9, 5, check_size=False)
    with pytest.warns(UserWarning, match="not with both at once"):
        assert graph.at(batch=9, length=5).difference(other) is None
    mean = exported(tmp_path / "mean.json", lambda x: x.square().sum() / (x.shape[0] * x.shape[1]))
    expected = exported(tmp_path / "other.json", lambda x: x.square().sum() / (x.shape[0] * x.shape[1]), 9, 5)
    assert mean.at(batch=9, length=5).difference(expected) is None
    assert mean.at(batch=9).at(length=5).at(batch=3).difference(mean.at(batch=3, length=5)) is None


def test_a_graph_that_was_captured_once_says_so(tmp_path):
    graph = exported(tmp_path / "step.json", KNOWN["halved"], check_size=False)
    with pytest.warns(UserWarning, match="captured with another batch"):
        graph.at(batch=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported(tmp_path / "step.json", KNOWN["halved"]).at(batch=8)


def test_the_file_holds_what_was_seen(tmp_path):
    exported(tmp_path / "step.json", KNOWN["divided by the batch size"])
    seen = json.loads((tmp_path / "step.json").read_text())["recaptures"]
    assert {item["number"] for item in seen["batch"]["numbers"]} == {seen["batch"]["size"]}
    assert set(seen["length"]) == {"size", "between"}
    assert seen["batch"]["between"] == [N, 272]


def test_multiples_of_the_size_are_known_where_others_differ(tmp_path):
    def middle(x: torch.Tensor) -> torch.Tensor:
        return x[x.shape[0] // 2].square().sum()

    graph = exported(tmp_path / "step.json", middle)
    assert graph.at(batch=3 * N).difference(exported(tmp_path / "other.json", middle, 3 * N)) is None
    with pytest.raises(tightfit.OptionError, match=f"with a batch of 9, only with multiples of {N}: with 15, node `select` has the number 7 instead of 2"):
        graph.at(batch=9)


def test_multiples_of_eight_are_known_where_others_differ(tmp_path):
    def padded(x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x, (0, 0, 0, -x.shape[1] % 8)).square().mean()

    graph = exported(tmp_path / "step.json", padded, length=16)
    other = exported(tmp_path / "other.json", padded, length=32, check_size=False)
    assert graph.at(length=32).difference(other) is None
    with pytest.raises(tightfit.OptionError, match="with a length of 33, only with multiples of 8"):
        graph.at(length=33)
