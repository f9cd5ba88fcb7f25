"""`tightfit.module_info`: statistics of a model's modules, in the form that PyTorch's own tools return.

Invariant: keys and types are those of `torch.distributed._tools.ilp_utils.ModuleInfo`, so `parse_module_info`,
`sac_milp` and `fsdp_milp` take the result as it is; nothing is computed on the model's tensors, and the model is
left unchanged.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import given, program
from .errors import ExportError
from .exporting import export

# Keys of PyTorch's `ModOrder` and `ModStats`.
ORDERS = ("fw_pre_order", "bw_pre_order", "fw_post_order", "bw_post_order")
FIGURES = (
    "fqn", "param_per_module", "grad_per_module", "grad_total", "act_fw_per_module", "act_bw_per_module",
    "act_grad_per_module", "act_total", "input_per_module", "output_per_module", "fw_runtime_per_module",
    "bw_runtime_per_module", "is_leaf", "sac_runtime", "sac_memory", "n_segments", "slopes", "intercepts",
    "breakpoints", "tradeoff_curve",
)


def module_info(
    model: nn.Module,
    batch: tuple[Any, Any],
    *,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    machine: str = "a100-80gb",
) -> dict[str, Any]:
    """Statistics of every module of one training step, as PyTorch's `aggregate_stats` returns them.

    PyTorch runs `MemTracker`, `RuntimeEstimator` and `SACEstimator` over a step on an accelerator; this captures the
    step once, on fake tensors, and computes the statistics from the graph: the model may live on the CPU, on the `meta`
    device or in a `FakeTensorMode`, and no accelerator is needed.

    `batch` is `(inputs, targets)`. The model is called as `model(inputs)`, or `model(*inputs)` for a tuple or list, or
    `model(**inputs)` for a dict; the loss is `loss_fn(prediction, targets)`, a scalar. Without `loss_fn` it is the
    model's own (an output with a field `loss`), or the sum of the tensor that the model returns; `targets` are then
    ignored, and may be `None`. The step is in training mode, and has no optimizer.

    `machine` is the one for which times are predicted, by its roofline: `"a100-80gb"`, `"h100-80gb"` or `"cpu"`.

    Returns `{"mod_order": …, "mod_stats": […]}`:

    - `mod_order`: lists of fully qualified names, `fw_pre_order`, `bw_pre_order`, `fw_post_order`, `bw_post_order`;
    - `mod_stats`: one dict for each module that is called, in forward pre-order, with the keys of PyTorch's `ModStats`.
      Bytes are `int`, milliseconds `float`; `slopes`, `intercepts` and `breakpoints` are lists of `float`, with one
      more breakpoint than segments; `tradeoff_curve` is an `OrderedDict` from discard ratio to the share of
      `sac_runtime` that is recomputed. For a leaf, all checkpointing figures are 0 or empty.

    Names begin with the class of the model, as in PyTorch; the root stands for the whole step, the loss included.
    Modules that are never called, such as a `ModuleList`, have no statistics, as in PyTorch. `doc/theory/modules.md`
    defines every figure, and lists where they differ from PyTorch's.

    Raises `ExportError` if the step cannot be captured, and `ProgramError` (an `ExportError`) if the `tightfit` program
    is missing or refuses the machine.
    """
    given.text(machine, "machine")
    program.find()
    with tempfile.TemporaryDirectory(prefix="tightfit-") as folder:
        graph = Path(folder) / "step.json"
        export(model, _own_loss if loss_fn is None else loss_fn, batch, optimizer=None, out=graph,
               name=type(model).__name__, execute=False)
        printed = program.run("modules", graph, "--machine", machine, "--json")
    try:
        info = printed["module_info"]
        return {
            "mod_order": {order: info["mod_order"][order] for order in ORDERS},
            "mod_stats": [_stats(stats) for stats in info["mod_stats"]],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise program.foreign("modules") from error


def _stats(written: dict[str, Any]) -> dict[str, Any]:
    """One module's statistics with exactly the keys of PyTorch's, its curve as an `OrderedDict`."""
    stats = {key: written[key] for key in FIGURES}
    stats["tradeoff_curve"] = OrderedDict((float(ratio), float(share)) for ratio, share in stats["tradeoff_curve"])
    return stats


def _own_loss(prediction: Any, _targets: Any) -> torch.Tensor:
    """The loss without `loss_fn`: the model's own, or the sum of its prediction."""
    own = getattr(prediction, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    if isinstance(prediction, torch.Tensor):
        return prediction.sum()
    raise ExportError(f"the model returns {type(prediction).__name__}, without a loss; give loss_fn=…")
