"""A language model whose loss is computed in one of several ways, in a process of its own: `python chunked.py --mode fused
--chunks 8` prints the first training steps as JSON, and then one for each line that comes in (`measured.serve`).

Invariant: every way is of one model with the same weights, batches and optimizer, and the clock runs over the same loop:
gradients are set to none, then forward pass, backward pass and update. Bytes are those of the counting allocator: the most
of forward and backward pass, and the most of the whole step. What a compiler keeps on disk is in a folder of the caller's.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

import allocator  # noqa: E402
import measured  # noqa: E402
import stepped  # noqa: E402
import zoo  # noqa: E402

MODES = ("eager", "inductor", "fused", "recomputed", "compile", "step")
SIZES = {"layers": 4, "width": 256, "heads": 8, "window": 256, "batch": 8, "vocabulary": 32000}
TINY = {"layers": 2, "width": 32, "heads": 2, "window": 64, "batch": 8, "vocabulary": 8192}
# Inductor divides products whose results have more elements than all of their inputs by this factor. That of this model's
# head is 7.5, and the default is 8.
WIDENING = 4

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def shape(tiny: bool) -> Any:
    """The sizes of the model and of its batch."""
    return zoo.gpt_module().Shape(**(TINY if tiny else SIZES))


# Losses in chunks, by hand.


def _parts(hidden: torch.Tensor, targets: torch.Tensor, chunks: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of hidden states, and their targets."""
    return zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True)


class FusedLinearCrossEntropy(torch.autograd.Function):
    """The mean cross entropy of `hidden @ weight.T`. The forward pass computes the loss and its gradients, one chunk of
    rows after the other, and the backward pass scales them (Hsu et al. 2024, arXiv 2410.10989)."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunks: int) -> torch.Tensor:
        total = hidden.new_zeros(())
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for (rows, wanted), of_rows in zip(_parts(hidden, targets, chunks), of_hidden.chunk(chunks), strict=True):
            logarithms = functional.log_softmax(rows @ weight.T, 1)
            wanted = wanted.unsqueeze(1)
            total -= logarithms.gather(1, wanted).sum()
            # The gradient of the logits: what the softmax gives each word, less one for the target.
            gradient = logarithms.exp_().scatter_add_(1, wanted, logarithms.new_full(wanted.shape, -1)).div_(len(targets))
            torch.mm(gradient, weight, out=of_rows)
            of_weight.addmm_(gradient.T, rows)
            del logarithms, gradient
        ctx.save_for_backward(of_hidden, of_weight)
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if gradient == 1:
            return *ctx.saved_tensors, None, None
        return *(gradient * saved for saved in ctx.saved_tensors), None, None


def _sum_of(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(rows, weight), targets, reduction="sum")


def recomputed(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunks: int) -> torch.Tensor:
    """The same loss, where the backward pass computes the logits of each chunk once more."""
    sums = [checkpoint(_sum_of, rows, weight, wanted, use_reentrant=False) for rows, wanted in _parts(hidden, targets, chunks)]
    return torch.stack(sums).sum() / len(targets)


BY_HAND = {"fused": FusedLinearCrossEntropy.apply, "recomputed": recomputed}


def _by_hand(model: nn.Module, mode: str, chunks: int) -> Loss:
    """A loss of hidden states, for which the model ends before its head. The head's weight is that of the embedding."""
    model.lm_head = nn.Identity()

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return BY_HAND[mode](model(inputs).flatten(0, 1), model.wte.weight, targets.flatten(), chunks)

    return loss


# Losses in chunks by Inductor.


def _chunked_by_inductor(chunks: int, reasons: list[str]) -> None:
    """Has Inductor divide the head, which widens its inputs by a factor of `WIDENING` or more, and notes why it does not."""
    import torch._inductor.inductor_prims  # the chunker names operators that this defines
    from torch._inductor import config
    from torch._inductor.fx_passes import auto_chunker

    config.auto_chunker.enable, config.auto_chunker.num_chunk = True, chunks
    config.auto_chunker.amplify_ratio_threshold = WIDENING
    chunk = auto_chunker.chunk

    def noted(graph: Any) -> Any:
        try:
            return chunk(graph)
        except auto_chunker.CantChunk as error:
            reasons.append(str(error))
            raise

    auto_chunker.chunk = noted


class Loop:
    """A training loop of one mode, a step at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        os.environ |= {"XDG_CACHE_HOME": options.cache, "TORCHINDUCTOR_CACHE_DIR": f"{options.cache}/inductor"}
        torch.manual_seed(0)
        self.shape = shape(options.tiny)
        self.model = zoo.gpt_of(self.shape)
        self.optimizer = stepped.OPTIMIZERS[options.optimizer](self.model.parameters())
        self.reasons: list[str] = []
        self.updates = options.mode != "step"
        self.loss = self._prepared(options)
        self.done = 0

    def _prepared(self, options: argparse.Namespace) -> Loss:
        """The loss of inputs and targets in the requested mode; for `step` it is that of a whole step."""
        model, entropy, tightfit = self.model, zoo.gpt_module().loss, zoo.use_tightfit()
        if options.blocks:
            for block in model.h:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        if options.mode == "step":
            return tightfit.step(model, entropy, self.optimizer, budget=options.budget, bits=options.bits)
        if options.mode == "compile":
            tightfit.compile(model, options.budget, optimizer=self.optimizer, loss=entropy, bits=options.bits)
            return lambda inputs, targets: model(inputs, targets=targets)
        if options.mode in BY_HAND:
            return _by_hand(model, options.mode, options.chunks)

        def whole(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return entropy(model(inputs), targets)

        if options.mode == "eager":
            return whole
        if options.chunks:
            _chunked_by_inductor(options.chunks, self.reasons)
        return torch.compile(whole, dynamic=False)

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(self.done)
        tokens = torch.randint(self.shape.vocabulary, (self.shape.batch, self.shape.window + 1), generator=drawn)
        return tokens[:, :-1].clone(), tokens[:, 1:].clone()

    def step(self, digests: bool) -> dict[str, Any]:
        """One training step and its measurements."""
        inputs, targets = self._batch()
        began, busy = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad(set_to_none=True)
        allocator.reset_peak()
        loss = self.loss(inputs, targets)
        if self.updates:
            loss.backward()
        passes = allocator.peak()
        if self.updates:
            self.optimizer.step()
        record = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - busy,
                  "passes": passes, "whole": allocator.peak(), "loss": loss.item()}
        self.done += 1
        return record | (self._digests() if digests else {})

    def _digests(self) -> dict[str, Any]:
        """The bits of all that a step changed. The optimizer's moments have those of the gradients."""
        states = self.optimizer.state_dict()["state"]
        return {
            "generator": measured.digest(torch.get_rng_state()),
            "tensors": {name: measured.digest(parameter) for name, parameter in self.model.named_parameters()},
            "states": {f"{index} {name}": measured.digest(item) for index, state in states.items()
                       for name, item in state.items() if isinstance(item, torch.Tensor)},
        }

    def division(self, mode: str) -> str:
        """Into what the loss was divided by a compiler, or why it was not."""
        if mode == "inductor":
            from torch._inductor import metrics

            return "; ".join(sorted(set(self.reasons))) or ("divided" if metrics.num_auto_chunking else "none")
        if mode in ("compile", "step"):
            plans = self.loss.plans if mode == "step" else zoo.use_tightfit().plans(self.model)
            return plans[-1].split or "none"
        return "none"


def report(loop: Loop, options: argparse.Namespace) -> dict[str, Any]:
    """The first steps of a loop. Their peaks are those of all steps, and of those after the first, which compiles."""
    steps = [loop.step(digests=True) for _ in range(options.steps)]
    return {
        "mode": options.mode, "torch": torch.__version__, "steps": steps, "first_seconds": steps[0]["seconds"],
        "parameters": sum(parameter.nbytes for parameter in loop.model.parameters()),
        "division": loop.division(options.mode),
        "peaks": {span: max(step[span] for step in steps) for span in ("passes", "whole")},
        "later_peaks": {span: max(step[span] for step in steps[1:] or steps) for span in ("passes", "whole")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--chunks", type=int, default=0, help="of the loss, by hand or by Inductor")
    parser.add_argument("--blocks", action="store_true", help="checkpoint each block")
    parser.add_argument("--budget", type=int, help="bytes of tightfit")
    parser.add_argument("--bits", default="equal", help="tightfit's option of that name")
    parser.add_argument("--cache", required=True, help="a folder for what compilers keep")
    parser.add_argument("--optimizer", choices=stepped.OPTIMIZERS, default="adamw")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="the size for tests")
    parser.add_argument("--serve", action="store_true", help="do another step for each line of input")
    parser.set_defaults(device="cpu", counted=True)
    measured.serve(parser.parse_args(), Loop, report)


if __name__ == "__main__":
    main()
