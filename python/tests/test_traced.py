"""Operators that PyTorch replaces when it traces: cuDNN's batch normalization, interpolation.

Invariant: what is recorded is determined by the operators that a mode sees, on the processor, where they all run.

Tier: quick, since it takes less than a second.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import zoo
from torch.utils._python_dispatch import TorchDispatchMode

zoo.use_tightfit()
from tightfit.training import traced  # noqa: E402

aten = torch.ops.aten
WHOLE = aten._batch_norm_with_update.default


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(function)
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _with_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def normalized(training: bool = True, statistics: bool = True) -> tuple[list[Any], list[torch.Tensor]]:
    """The operators that tracing records for cuDNN's, and what they return and leave in the running statistics."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 3, 5, 5), torch.rand(3), torch.rand(3)
    running = (torch.zeros(3), torch.ones(3)) if statistics else (None, None)
    kernel = aten.cudnn_batch_norm.default.py_kernels[torch._C.DispatchKey.Autograd]
    with Seen() as seen:
        results = kernel(x, weight, bias, *running, training, 0.1, 1e-5)
    return seen.operators, [*results[:3], *(one for one in running if one is not None)]


def test_a_capture_records_it_whole() -> None:
    before, expected = normalized()
    with traced.captured():
        operators, found = normalized()
    after, _ = normalized()
    assert operators == [WHOLE]
    assert WHOLE not in before and WHOLE not in after
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_evaluation_and_what_has_no_statistics_stay_pytorchs() -> None:
    with traced.captured():
        assert WHOLE not in normalized(training=False)[0]
        assert WHOLE not in normalized(statistics=False)[0]


def test_captures_of_other_threads_stay_pytorchs() -> None:
    found: list[Any] = []
    with traced.captured():
        thread = threading.Thread(target=lambda: found.extend(normalized()[0]))
        thread.start()
        thread.join()
        with traced.captured():
            pass
        assert normalized()[0] == [WHOLE]
    assert found and WHOLE not in found


def test_without_a_device_pytorch_traces_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with traced.captured():
        assert WHOLE not in normalized()[0]
