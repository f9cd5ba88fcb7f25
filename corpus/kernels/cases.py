"""Cases beyond those of the exported graphs: neighbours in Core ATen, and the awkward shapes of each operator.

Invariant: inputs come from one seeded generator per operator, so that adding a case for one changes no other.
"""

import zlib
from typing import Any

import torch
from golden import Goldens

aten = torch.ops.aten
F32, I64, BOOL = torch.float32, torch.int64, torch.bool


class _Source:
    """Seeded inputs."""

    def __init__(self, name: str) -> None:
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def real(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def positive(self, *shape: int) -> torch.Tensor:
        return self.real(*shape).abs() + 0.1

    def index(self, bound: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, bound, shape, generator=self.generator)

    def mask(self, *shape: int) -> torch.Tensor:
        return self.real(*shape) > 0

    def layouts(self) -> dict[str, torch.Tensor]:
        """One tensor of shape [3, 5, 7] in each layout that real graphs produce, and odd sizes."""
        return {
            "contiguous": self.real(3, 5, 7),
            "permuted": self.real(7, 3, 5).permute(1, 2, 0),
            "transposed": self.real(3, 7, 5).transpose(1, 2),
            "expanded": self.real(3, 1, 7).expand(3, 5, 7),
            "sliced": self.real(3, 9, 14)[:, 2:7, 3:10],
            "strided": self.real(3, 5, 14)[:, :, ::2],
        }


EDGES = [0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 88.0, -88.0, 104.0, -104.0, 1e4, -1e4, float("inf"), float("-inf"), float("nan")]


def record(goldens: Goldens) -> None:
    """Records every case, operator family by operator family."""
    for family in (_unary, _trigonometry, _binary, _compare, _select, _slices, _reduce, _any, _softmax, _matrix, _views,
                   _copies, _constants, _normalise, _embed, _loss, _attention, _dropout, _optimizers):
        family(goldens)


def _unary(goldens: Goldens) -> None:
    for op in (aten.relu, aten.sigmoid, aten.tanh, aten.exp, aten.neg, aten.abs, aten.silu, aten.gelu):
        source = _Source(str(op))
        for label, tensor in source.layouts().items():
            goldens.record(op.default, tensor, label=label)
        goldens.record(op.default, source.real(1031) * 3, label="odd_length")
        goldens.record(op.default, source.real(1, 1, 1), label="ones")
        goldens.record(op.default, source.real(), label="scalar")
        # PyTorch's vectorised GELU gives NaN at infinity, where the function's limit is infinity.
        edges = [edge for edge in EDGES if op is not aten.gelu or abs(edge) != float("inf")]
        goldens.record(op.default, torch.tensor(edges), label="edges")
    for op in (aten.log, aten.sqrt, aten.rsqrt, aten.reciprocal):
        source = _Source(str(op))
        goldens.record(op.default, source.positive(3, 5, 7), label="contiguous")
        goldens.record(op.default, source.positive(7, 3, 5).permute(1, 2, 0), label="permuted")
        goldens.record(op.default, source.positive(259), label="odd_length")
        goldens.record(op.default, torch.tensor(EDGES), label="edges")
    for op in (aten.neg, aten.abs):
        source = _Source(f"{op}_integer")
        goldens.record(op.default, source.index(19, 5, 7) - 9, label="integer")
        goldens.record(op.default, (source.index(19, 7, 5) - 9).t(), label="integer_permuted")
        goldens.record(op.default, torch.tensor([0, 2**62, -(2**62), -(2**63)]), label="integer_edges")
    source = _Source("gelu_variants")
    for approximate in ("none", "tanh"):
        x, grad = source.real(3, 37), source.real(3, 37)
        goldens.record(aten.gelu.default, x, approximate=approximate, label=approximate)
        goldens.record(aten.gelu_backward.default, grad, x, approximate=approximate, label=approximate)
    goldens.record(aten.gelu_backward.default, source.real(5, 7).t(), source.real(7, 5), label="mixed_layouts")
    goldens.record(aten.gelu_backward.default, torch.ones(15), torch.tensor(EDGES), label="edges")
    source = _Source("pow")
    for exponent in (2, 3, 2.0, 0.5, -0.5, -1, 1.5, 0, 1):
        goldens.record(aten.pow.Tensor_Scalar, source.positive(3, 11), exponent, label="power")
    goldens.record(aten.pow.Tensor_Scalar, source.real(3, 11), 3, label="negative_base")
    source = _Source("clamp")
    x = source.real(5, 13)
    for low, high in ((-0.5, 0.5), (None, 0.25), (0, None)):
        goldens.record(aten.clamp.default, x, low, high, label="real")
    goldens.record(aten.clamp.default, source.index(40, 17), 3, 20, label="integer")
    for name in ("logical_not", "bitwise_not"):
        goldens.record(getattr(aten, name).default, _Source(name).mask(3, 17), label="bool")
    goldens.record(aten.logical_not.default, torch.tensor([0.0, -0.0, 1.5, float("nan")]), label="real")
    goldens.record(aten.threshold_backward.default, source.real(3, 19), source.real(3, 19), 0, label="relu")


def _trigonometry(goldens: Goldens) -> None:
    for op in (aten.sin, aten.cos):
        source = _Source(str(op))
        for label, tensor in source.layouts().items():
            goldens.record(op.default, tensor * 3, label=label)
        goldens.record(op.default, source.real(1031) * 10, label="odd_length")
        goldens.record(op.default, source.real(67, 33) * 1000, label="many_turns")
        goldens.record(op.default, source.real(259) * 1e5, label="large")
        goldens.record(op.default, source.real(259) * 1e30, label="huge")
        # Multiples of π/2: nearly all of the argument cancels.
        goldens.record(op.default, (torch.arange(-64, 64, dtype=torch.float64) ** 3 * (torch.pi / 2)).float(), label="zeros")
        # The angles of rotary positions, in their usual layout.
        angles = torch.arange(37.0)[:, None] * 10000.0 ** (-torch.arange(0.0, 1.0, 0.125))
        goldens.record(op.default, torch.cat([angles, angles], 1), label="rotary")
        goldens.record(op.default, (torch.arange(8.0)[:, None] * torch.arange(5.0)).t().unsqueeze(0), label="rotary_permuted")
        goldens.record(op.default, source.real(1, 1, 1), label="ones")
        goldens.record(op.default, source.real(), label="scalar")
        goldens.record(op.default, torch.empty(0), label="empty")
        goldens.record(op.default, torch.empty(3, 0, 2), label="empty_inside")
        goldens.record(op.default, torch.tensor([*EDGES, 102943.0, -102944.0, 3.4e38]), label="edges")


def _binary(goldens: Goldens) -> None:
    for op in (aten.add, aten.sub, aten.mul, aten.div, aten.maximum, aten.minimum):
        overload = op.default if op in (aten.maximum, aten.minimum) else op.Tensor
        source = _Source(str(overload))
        for label, tensor in source.layouts().items():
            goldens.record(overload, source.real(3, 5, 7), tensor, label=f"right_{label}")
            goldens.record(overload, tensor, source.real(3, 5, 7), label=f"left_{label}")
        for left, right in (((3, 5, 7), (7,)), ((3, 5, 7), (5, 1)), ((3, 1, 7), (1, 5, 1)), ((5,), (3, 5)), ((3, 5), ()),
                            ((), (3, 5)), ((), ()), ((1, 1), (2, 3)), ((6, 4, 33), (1, 4, 1)), ((2, 1), (1, 131))):
            goldens.record(overload, source.real(*left), source.real(*right), label="broadcast")
        permuted = source.real(7, 5, 3)
        goldens.record(overload, permuted.permute(2, 1, 0), permuted.permute(2, 1, 0), label="both_permuted")
        goldens.record(overload, source.real(1031), source.real(1031), label="odd_length")
        if overload is not aten.div.Tensor:
            goldens.record(overload, source.index(9, 4, 5), source.index(9, 5), label="integer")
    source = _Source("with_scalar")
    x, permuted = source.real(3, 13), source.real(13, 3).t()
    for op in (aten.add, aten.sub, aten.mul, aten.div):
        for number in (0.125, 3, -2.5):
            goldens.record(op.Tensor, x, number, label="python_number")
            goldens.record(op.Scalar, x, number, label="python_number")
        goldens.record(op.Tensor, permuted, 0.5, label="python_number_permuted")
    goldens.record(aten.add.Tensor, source.index(50, 7), 1, label="integer_number")
    goldens.record(aten.mul.Tensor, source.index(50, 7), 3, label="integer_number")
    goldens.record(aten.add.Tensor, x, permuted, alpha=0.5, label="alpha")
    goldens.record(aten.sub.Tensor, x, permuted, alpha=2, label="alpha")
    goldens.record(aten.mul.Tensor, x, source.mask(3, 13), label="real_times_bool")
    goldens.record(aten.mul.Tensor, source.index(5, 3, 13), x, label="integer_times_real")
    for overload in (aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor):
        goldens.record(overload, 1.5, x.abs() + 0.5, label="number_first")
    goldens.record(aten.div.Tensor, source.index(5, 3, 13), 4, label="integer_by_number")
    goldens.record(aten.bitwise_and.Tensor, source.mask(3, 13), source.mask(13), label="bool")
    goldens.record(aten.logical_and.default, source.mask(3, 13), source.mask(13), label="bool")


def _compare(goldens: Goldens) -> None:
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        op, source = getattr(aten, name), _Source(name)
        for label, tensor in source.layouts().items():
            rounded = (tensor * 2).round()
            goldens.record(op.Scalar, rounded, 0, label=label)
        goldens.record(op.Scalar, source.real(3, 5), 0.5, label="real_number")
        goldens.record(op.Scalar, source.index(4, 3, 5), 2, label="integer")
        goldens.record(op.Scalar, torch.tensor(EDGES), 0, label="edges")
        goldens.record(op.Tensor, source.index(3, 3, 5), source.index(3, 5), label="integer_broadcast")
        goldens.record(op.Tensor, source.index(6, 6, 1), source.index(6, 1, 6), label="causal_mask")
        goldens.record(op.Tensor, (source.real(3, 5) * 2).round(), (source.real(5, 3) * 2).round().t(), label="real_permuted")


def _select(goldens: Goldens) -> None:
    source = _Source("where")
    for label, tensor in source.layouts().items():
        goldens.record(aten.where.self, source.mask(3, 5, 7), tensor, source.real(3, 5, 7), label=label)
    goldens.record(aten.where.self, source.mask(3, 5), torch.tensor(0.0), source.real(3, 5), label="scalar_left")
    goldens.record(aten.where.self, source.mask(3, 5), source.real(3, 5), torch.tensor(float("-inf")), label="scalar_right")
    goldens.record(aten.where.self, source.mask(1, 5), source.real(3, 1), source.real(1, 5), label="broadcast")
    goldens.record(aten.where.self, source.mask(4), source.index(9, 4), source.index(9, 4), label="integer")
    source = _Source("gather")
    goldens.record(aten.gather.default, source.real(5, 7), 1, source.index(7, 5, 1), label="last")
    goldens.record(aten.gather.default, source.real(7, 5), 0, source.index(7, 3, 5), label="first")
    goldens.record(aten.scatter.value, torch.zeros(5, 7), 1, source.index(7, 5, 1), -1.0, label="last")


def _slices(goldens: Goldens) -> None:
    op, source = aten.slice_scatter.default, _Source("slice_scatter")
    end = 9223372036854775807
    x = source.real(5, 7)
    for dim, start, stop, step, part in (
        (0, 1, 3, 1, (2, 7)), (1, 2, 6, 1, (5, 4)), (-1, 2, 6, 1, (5, 4)), (-2, 0, 2, 1, (2, 7)),
        (1, None, None, 1, (5, 7)), (1, None, 3, 1, (5, 3)), (0, 3, None, 1, (2, 7)), (1, 4, end, 1, (5, 3)),
        (1, -3, end, 1, (5, 3)), (1, -5, -2, 1, (5, 3)), (0, -99, 2, 1, (2, 7)), (0, 3, 99, 1, (2, 7)),
        (1, 0, 7, 2, (5, 4)), (1, 1, end, 2, (5, 3)), (0, 1, 5, 3, (2, 7)), (1, -6, -1, 4, (5, 2)), (0, 0, 5, 9, (1, 7)),
        (1, 3, 3, 1, (5, 0)), (0, 4, 2, 1, (0, 7)), (0, 7, 9, 1, (0, 7)),
    ):
        goldens.record(op, x, source.real(*part), dim, start, stop, step, label="slice")
    goldens.record(op, x, source.real(5, 7), label="all")
    goldens.record(op, x, source.real(2, 7), 0, 3, label="from")
    goldens.record(op, x, source.real(2, 7), start=1, end=3, label="by_name")
    for label, tensor in source.layouts().items():
        goldens.record(op, tensor, source.real(3, 2, 7), 1, 1, 3, label=f"into_{label}")
        goldens.record(op, tensor, source.real(3, 5, 3), 2, 1, end, 2, label=f"step_into_{label}")
        goldens.record(op, source.real(3, 9, 7), tensor, 1, -5, end, label=f"from_{label}")
        goldens.record(op, source.real(3, 5, 14), tensor, 2, 0, 14, 2, label=f"step_from_{label}")
    # Half of the last dimension, as the gradient of a rotary rotation has it.
    goldens.record(op, torch.zeros(2, 3, 5, 8), source.real(2, 5, 3, 4).transpose(1, 2), 3, 4, end, label="half")
    goldens.record(op, source.index(9, 4, 5), source.index(9, 4, 2), 1, 2, 4, label="integer")
    goldens.record(op, source.mask(4, 5), source.mask(2, 5), 0, 1, 4, 2, label="bool")
    goldens.record(op, source.real(1031), source.real(500), 0, 17, 517, label="odd_length")
    goldens.record(op, source.real(4, 1031), source.real(4, 1000), 1, 31, end, label="many")
    goldens.record(op, torch.empty(0), torch.empty(0), 0, 0, end, label="empty")
    goldens.record(op, torch.empty(3, 0), torch.empty(2, 0), 0, 1, 3, label="empty_rows")


def _reduce(goldens: Goldens) -> None:
    for name in ("sum", "mean", "amax"):
        op, source = getattr(aten, name), _Source(name)
        overload = {"sum": aten.sum.dim_IntList, "mean": aten.mean.dim, "amax": aten.amax.default}[name]
        for label, tensor in source.layouts().items():
            for dims in ([0], [1], [2], [-1], [0, 1], [0, 2], [0, 1, 2]):
                goldens.record(overload, tensor, dims, label=label)
        for keep in (True, False):
            goldens.record(overload, source.real(33, 17), [0], keep, label="columns")
            goldens.record(overload, source.real(33, 17), [1], keep, label="rows")
            goldens.record(overload, source.real(1, 5, 1), [0, 2], keep, label="ones")
        goldens.record(overload, source.real(4, 1031), [1], label="long_rows")
        goldens.record(overload, source.real(1031, 4), [0], True, label="long_columns")
        if name != "amax":
            goldens.record(op.default, source.real(3, 5, 7), label="all")
            goldens.record(op.default, source.real(7, 5).t(), label="all_permuted")
            goldens.record(op.default, source.real(), label="scalar")
    source = _Source("sum_types")
    goldens.record(aten.sum.dim_IntList, source.mask(5, 9), [1], label="bool")
    goldens.record(aten.sum.default, source.index(9, 5, 9), label="integer")
    goldens.record(aten.sum.default, source.mask(5, 9), label="bool")
    source = _Source("var")
    for correction in (0, 1):
        for keep in (True, False):
            goldens.record(aten.var.correction, source.real(5, 33), [1], correction=correction, keepdim=keep, label="rows")
    goldens.record(aten.var.correction, source.real(6, 5, 4) + 100.0, [0, 2], correction=0, keepdim=True, label="channels")


def _any(goldens: Goldens) -> None:
    op, source = aten.any.dim, _Source("any")

    def sparse(tensor: torch.Tensor, seldom: float) -> torch.Tensor:
        """Zero but for a few elements, in the same layout."""
        tensor = tensor.clone()
        return tensor.masked_fill_(tensor.abs() < seldom, 0.0)

    for label, tensor in source.layouts().items():
        for dim in (0, 1, 2, -1, -3):
            goldens.record(op, sparse(tensor, 1.8), dim, label=label)
    strided = (source.real(3, 10, 21) > 1.2)[:, ::2, 2:16:2]
    for dim in (0, 1, 2):
        goldens.record(op, strided, dim, True, label="bool_strided")
    for keep in (False, True):
        for dim in (0, -1):
            goldens.record(op, sparse(source.real(33, 17), 2.2), dim, keep, label="real")
            goldens.record(op, source.real(33, 17) > 2.0, dim, keep, label="bool")
            goldens.record(op, (source.real(33, 17) > 2.0).t(), dim, keep, label="bool_permuted")
            goldens.record(op, (source.index(40, 33, 17) - 20) // 19, dim, keep, label="integer")
        goldens.record(op, source.mask(1, 5, 1), 1, keep, label="ones")
        goldens.record(op, source.mask(3, 1, 5), 1, keep, label="single")
        goldens.record(op, source.mask(2, 3, 4, 5), 2, keep, label="four")
        goldens.record(op, torch.tensor(True), 0, keep, label="scalar")
        for shape in ((0,), (3, 0), (0, 3), (2, 0, 3)):
            for dim in range(len(shape)):
                goldens.record(op, torch.empty(shape), dim, keep, label="empty")
                goldens.record(op, torch.empty(shape, dtype=BOOL), dim, keep, label="empty_bool")
    # What counts as false: both zeros, and nothing else.
    rows = torch.tensor([[0.0, -0.0, 0.0], [0.0, float("nan"), 0.0], [float("-inf"), 0.0, 0.0], [0.0, 0.0, 1e-45]])
    goldens.record(op, rows, 1, label="edges")
    goldens.record(op, torch.tensor([[0, 0], [0, -1], [2**62, 0], [-(2**63), 0], [2**32, 0]]), 1, label="integer_edges")
    late = torch.zeros(5, 2049, dtype=BOOL)
    late[2, 2048] = late[4, 0] = True
    goldens.record(op, late, -1, label="long_rows")
    goldens.record(op, late.t(), 0, label="long_columns")


def _softmax(goldens: Goldens) -> None:
    for forward, backward in ((aten._softmax, aten._softmax_backward_data), (aten._log_softmax, aten._log_softmax_backward_data)):
        source = _Source(str(forward))
        for shape, dim in (((7, 13), 1), ((7, 13), 0), ((3, 5, 7), -1), ((3, 5, 7), 1), ((2, 131), 1), ((4, 1), 1), ((9,), 0)):
            x, grad = source.real(*shape) * 4, source.real(*shape)
            goldens.record(forward.default, x, dim, False, label="contiguous")
            goldens.record(backward.default, grad, forward.default(x, dim, False), dim, F32, label="contiguous")
        x, grad = source.real(13, 7).t(), source.real(13, 7).t()
        goldens.record(forward.default, x, 1, False, label="permuted")
        goldens.record(backward.default, grad, forward.default(x, 1, False), 1, F32, label="permuted")
        large = torch.tensor([[1000.0, 1001.0, 999.0], [-1e30, 0.0, 1.0], [float("-inf"), 0.0, 1.0]])
        goldens.record(forward.default, large, 1, False, label="large")


def _matrix(goldens: Goldens) -> None:
    source = _Source("matrix")
    for rows, inner, columns in ((1, 1, 1), (5, 7, 3), (17, 33, 9), (1, 19, 4), (16, 8, 32), (37, 1, 5), (23, 64, 1)):
        a, b = source.real(rows, inner), source.real(inner, columns)
        a_t, b_t = source.real(inner, rows).t(), source.real(columns, inner).t()
        for label, left, right in (("plain", a, b), ("left_transposed", a_t, b), ("right_transposed", a, b_t), ("both_transposed", a_t, b_t)):
            goldens.record(aten.mm.default, left, right, label=label)
        goldens.record(aten.addmm.default, source.real(columns), a, b_t, label="linear")
        goldens.record(aten.addmm.default, source.real(rows, columns), a, b, label="matrix_bias")
        goldens.record(aten.addmm.default, source.real(rows, 1), a_t, b, label="column_bias")
    goldens.record(aten.addmm.default, source.real(3), source.real(5, 7), source.real(7, 3), beta=0.5, alpha=2.0, label="scaled")
    goldens.record(aten.mm.default, source.real(9, 40)[:, 3:10], source.real(7, 24)[:, ::2], label="sliced")
    goldens.record(aten.mm.default, source.real(1, 7).expand(4, 7), source.real(7, 3), label="expanded")
    source = _Source("bmm")
    goldens.record(aten.bmm.default, source.real(3, 5, 7), source.real(3, 7, 4), label="plain")
    goldens.record(aten.bmm.default, source.real(3, 7, 5).transpose(1, 2), source.real(3, 4, 7).transpose(1, 2), label="transposed")
    goldens.record(aten.bmm.default, source.real(5, 3, 7).transpose(0, 1), source.real(3, 7, 4), label="batch_inside")
    goldens.record(aten.bmm.default, source.real(1, 5, 7).expand(3, 5, 7), source.real(3, 7, 1), label="expanded")


def _views(goldens: Goldens) -> None:
    source = _Source("views")
    x = source.real(3, 5, 8)
    goldens.record(aten.view.default, x, [15, 8], label="merge")
    goldens.record(aten.view.default, x, [3, 5, 2, 4], label="split")
    goldens.record(aten.view.default, x, [-1], label="flatten")
    goldens.record(aten.view.default, source.real(3, 5, 24)[:, :, 8:16], [3, 5, 2, 4], label="split_sliced")
    goldens.record(aten.view.default, source.real(1), [], label="to_scalar")
    for dims in ([0, 2, 1], [2, 1, 0], [1, 0, 2], [-1, 0, 1]):
        goldens.record(aten.permute.default, x, dims, label="permute")
    goldens.record(aten.transpose.int, x, 1, 2, label="transpose")
    for dim, start, end, step in ((1, 1, 4, 1), (2, 0, 9223372036854775807, 2), (0, -2, 9223372036854775807, 1), (2, 3, 3, 1)):
        goldens.record(aten.slice.Tensor, x, dim, start, end, step, label="slice")
    for dim, index in ((0, 1), (1, -1), (2, 0)):
        goldens.record(aten.select.int, x, dim, index, label="select")
    for dim in (0, 1, -1):
        goldens.record(aten.unsqueeze.default, x, dim, label="unsqueeze")
    goldens.record(aten.squeeze.dims, source.real(1, 5, 1, 3), [0, 2], label="squeeze")
    goldens.record(aten.squeeze.dims, source.real(1, 5, 1, 3), [0, 1], label="squeeze_kept")
    goldens.record(aten.expand.default, source.real(1, 5, 1), [3, 5, 4], label="expand")
    goldens.record(aten.expand.default, source.real(5, 1), [2, -1, 4], label="expand_new")
    goldens.record(aten.expand.default, source.real(), [3, 4], label="expand_scalar")
    goldens.record(aten.split_with_sizes.default, source.real(3, 4, 24), [8, 8, 8], -1, label="thirds")
    goldens.record(aten.split_with_sizes.default, source.real(3, 7, 5), [1, 4, 2], 1, label="uneven")
    goldens.record(aten.split_with_sizes.default, source.real(3, 7, 5), [3, 4], 1, used={1}, label="one_used")
    goldens.record(aten.alias.default, x, label="alias")
    goldens.record(aten.detach.default, x, label="detach")
    goldens.record(aten.squeeze.dim, source.real(3, 1, 5), 1, label="squeeze_one")
    goldens.record(aten.squeeze.dim, source.real(3, 1, 5), -1, label="squeeze_none")
    goldens.record(aten.as_strided.default, x, [4, 3], [2, 16], 5, label="strided")
    goldens.record(aten.as_strided.default, source.real(3, 5, 8)[1:], [2, 2], [8, 1], label="strided_sliced")


def _copies(goldens: Goldens) -> None:
    source = _Source("copies")
    for label, tensor in source.layouts().items():
        goldens.record(aten.clone.default, tensor, label=label)
        goldens.record(aten.clone.default, tensor, memory_format=torch.contiguous_format, label=f"{label}_to_contiguous")
    for dim in (0, 1, -1):
        goldens.record(aten.cat.default, [source.real(3, 5, 7), source.real(3, 5, 7)], dim, label="two")
    goldens.record(aten.cat.default, [source.real(3, 2, 5), source.real(3, 1, 5), source.real(3, 5, 4).transpose(1, 2)], 1, label="uneven")
    goldens.record(aten.cat.default, [source.real(4, 3).t(), source.real(4, 3).t()], 1, label="permuted")
    goldens.record(aten.cat.default, [source.index(9, 3), source.index(9, 2)], label="integer")
    real, integer, mask = source.real(3, 7) * 3, source.index(3, 3, 7), source.mask(3, 7)
    for label, tensor in (("real", real), ("integer", integer), ("bool", mask), ("permuted", (source.real(7, 3) * 3).t())):
        for dtype in (F32, I64, BOOL):
            if tensor.dtype != dtype:
                goldens.record(aten._to_copy.default, tensor, dtype=dtype, label=f"from_{label}")
    goldens.record(aten.copy_.default, source.real(3, 5), source.real(5, 3).t(), label="permuted")
    goldens.record(aten.copy_.default, source.real(3, 5), source.real(5), label="broadcast")
    goldens.record(aten.copy_.default, torch.tensor(3), torch.tensor(4), label="integer_scalar")


def _constants(goldens: Goldens) -> None:
    x = _Source("constants").real(3, 5)
    for value in (0, 1.0, -2.5, float("-inf")):
        goldens.record(aten.full.default, [3, 5], value, dtype=F32, label="real")
        goldens.record(aten.full_like.default, x, value, label="real")
        goldens.record(aten.scalar_tensor.default, value, dtype=F32, label="real")
    goldens.record(aten.full.default, [], 1.0, dtype=F32, label="scalar")
    goldens.record(aten.full.default, [4], 7, dtype=I64, label="integer")
    goldens.record(aten.full.default, [2, 2], True, dtype=BOOL, label="bool")
    goldens.record(aten.full_like.default, x.t(), 1, label="permuted")
    goldens.record(aten.scalar_tensor.default, 3, dtype=I64, label="integer")
    goldens.record(aten.arange.start_step, 0, 19, label="integer")
    goldens.record(aten.arange.start_step, 3, 20, 4, label="step")
    goldens.record(aten.arange.start_step, 0, 5, dtype=F32, label="real")


def _normalise(goldens: Goldens) -> None:
    source = _Source("layer_norm")
    # No rows of one or two elements: their gradients cancel to 0, and what is left is rounding noise.
    for shape, normalised in (((3, 5, 7), [7]), ((2, 131), [131]), ((9, 16), [16]), ((4, 3), [3]), ((3, 5, 7), [5, 7]), ((1, 1, 33), [33])):
        x, grad = source.real(*shape) * 2 + 1, source.real(*shape)
        weight, bias = source.real(*normalised), source.real(*normalised)
        for w, b in ((weight, bias), (None, None)):
            goldens.record(aten.native_layer_norm.default, x, normalised, w, b, 1e-5, label="norm")
            _, mean, rstd = aten.native_layer_norm.default(x, normalised, w, b, 1e-5)
            goldens.record(aten.native_layer_norm_backward.default, grad, x, normalised, mean, rstd, w, b,
                           [True, w is not None, b is not None], label="norm")
        goldens.record(aten.native_layer_norm.default, x, normalised, weight, bias, 1e-5, used={0}, label="only_result")
        goldens.record(aten.native_layer_norm_backward.default, grad, x, normalised, mean, rstd, weight, bias,
                       [False, True, True], label="no_input_gradient")
    x = source.real(7, 6).t() + 3
    goldens.record(aten.native_layer_norm.default, x, [7], source.real(7), source.real(7), 1e-5, label="permuted")


def _embed(goldens: Goldens) -> None:
    source = _Source("embedding")
    weight = source.real(11, 7)
    for shape in ((), (5,), (3, 4), (2, 33)):
        index = source.index(11, *shape)
        grad = source.real(*shape, 7)
        goldens.record(aten.embedding.default, weight, index, label="lookup")
        for padding in (-1, 3):
            goldens.record(aten.embedding_dense_backward.default, grad, index, 11, padding, False, label=f"padding_{padding}".replace("-", "minus_"))
    repeated = torch.full((40,), 2)
    goldens.record(aten.embedding_dense_backward.default, source.real(40, 7), repeated, 11, -1, False, label="repeated")
    goldens.record(aten.embedding_dense_backward.default, source.real(7, 5, 4).permute(1, 2, 0), source.index(11, 5, 4), 11, -1, False, label="permuted")
    goldens.record(aten.embedding_dense_backward.default, source.real(1, 5, 7).expand(3, 5, 7), source.index(11, 3, 5), 11, -1, False, label="expanded")
    goldens.record(aten.embedding_dense_backward.default, source.real(5, 7), source.index(11, 5), 11, -1, True, label="scaled_by_frequency")


def _loss(goldens: Goldens) -> None:
    source = _Source("nll")
    scores = aten._log_softmax.default(source.real(13, 7), 1, False)
    target = source.index(7, 13)
    ignored = target.clone()
    ignored[::3] = -100
    weight = source.positive(7)
    for label, t, w, ignore in (("plain", target, None, -100), ("ignored", ignored, None, -100), ("ignore_class", target, None, 2), ("weighted", ignored, weight, -100)):
        for reduction in (0, 1, 2):
            result, total = aten.nll_loss_forward.default(scores, t, w, reduction, ignore)
            goldens.record(aten.nll_loss_forward.default, scores, t, w, reduction, ignore, label=label)
            grad = source.real(*result.shape)
            goldens.record(aten.nll_loss_backward.default, grad, scores, t, w, reduction, ignore, total, label=label)
    goldens.record(aten.nll_loss_forward.default, scores, target, None, 1, -100, used={0}, label="only_loss")


def _attention(goldens: Goldens) -> None:
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    source = _Source("attention")

    def case(label: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, **options: Any) -> None:
        out, logsumexp = forward.default(q, k, v, 0.0, causal, **options)
        goldens.record(forward.default, q, k, v, 0.0, causal, label=label, **options)
        goldens.record(backward.default, source.real(*out.shape), q, k, v, out, logsumexp, 0.0, causal, label=label, **options)

    for causal in (True, False):
        for batch, heads, length, width in ((1, 1, 1, 1), (2, 3, 5, 4), (1, 2, 33, 8), (1, 1, 70, 16), (1, 2, 32, 7)):
            q, k, v = (source.real(batch, heads, length, width) for _ in range(3))
            case("causal" if causal else "full", q, k, v, causal)
        fused = source.real(2, 19, 3 * 12)
        q, k, v = (part.view(2, 19, 3, 4).transpose(1, 2) for part in fused.split(12, dim=2))
        case("fused_projection", q, k, v, causal)
    q, k, v = source.real(1, 2, 9, 4), source.real(1, 2, 14, 4), source.real(1, 2, 14, 4)
    case("cross", q, k, v, False)
    case("scaled", q, k, v, False, scale=0.3)
    case("masked", q, k, v, False, attn_mask=torch.where(source.mask(1, 1, 9, 14), 0.0, -1e9))


def _dropout(goldens: Goldens) -> None:
    source = _Source("dropout")
    for label, grad in (("contiguous", source.real(3, 37)), ("permuted", source.real(37, 3).t())):
        goldens.record(aten.native_dropout_backward.default, grad, source.mask(3, 37), 1.0 / 0.9, label=label)


def _optimizers(goldens: Goldens) -> None:
    """Steps 1, 2, 3 and a late one; PyTorch's single-tensor loop is the reference."""
    source = _Source("optimizers")

    def adamw(args: list[Any], kwargs: dict[str, Any], step: int, rate: float) -> list[torch.Tensor]:
        parameter, gradient, first, second = args
        variable = torch.nn.Parameter(parameter)
        optimizer = torch.optim.AdamW([variable], lr=rate, foreach=False, **kwargs)
        optimizer.state[variable] = {"step": torch.tensor(float(step - 1)), "exp_avg": first, "exp_avg_sq": second}
        variable.grad = gradient.clone()
        optimizer.step()
        return [parameter, first, second]

    def sgd(args: list[Any], kwargs: dict[str, Any], step: int, rate: float) -> list[torch.Tensor]:
        parameter, gradient, *momentum = args
        variable = torch.nn.Parameter(parameter)
        optimizer = torch.optim.SGD([variable], lr=rate, foreach=False, **kwargs)
        if momentum:
            optimizer.state[variable] = {"momentum_buffer": momentum[0]}
        variable.grad = gradient.clone()
        optimizer.step()
        return [parameter, *momentum]

    defaults = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    for shape, options, rate in (((5, 7), defaults, 1e-3), ((131,), {"betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}, 0.01),
                                 ((3, 1), {**defaults, "weight_decay": 0.0}, 0.1)):
        parameter, first, second = source.real(*shape), torch.zeros(shape), torch.zeros(shape)
        for step in (1, 2, 3, 1000):
            gradient = source.real(*shape)
            if len(shape) == 2 and step == 2:
                gradient = source.real(*reversed(shape)).t()
            inputs = [parameter, gradient, first, second]
            metadata = {"step": step, "learning_rate": rate}
            goldens.record_call("tightfit.adamw", lambda a, k, s=step, r=rate: adamw(a, k, s, r), inputs, options,
                                label=f"step_{step}", mutates=True, metadata=metadata)
            with torch.no_grad():
                parameter, first, second = adamw([t.clone() for t in (parameter, gradient, first, second)], options, step, rate)
                parameter, first, second = (t.detach() for t in (parameter, first, second))
    for momentum, decay in ((0.0, 0.0), (0.9, 0.0), (0.9, 0.01)):
        parameter, options = source.real(5, 7), {"momentum": momentum, "weight_decay": decay}
        buffers = [torch.zeros(5, 7)] if momentum else []
        for step in (1, 2):
            gradient = source.real(5, 7)
            goldens.record_call("tightfit.sgd", lambda a, k, s=step: sgd(a, k, s, 0.05), [parameter, gradient, *buffers], options,
                                label=f"step_{step}", mutates=True, metadata={"step": step, "learning_rate": 0.05})
            parameter, *buffers = (t.detach() for t in sgd([t.clone() for t in (parameter, gradient, *buffers)], options, step, 0.05))
