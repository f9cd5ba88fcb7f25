"""One stage of a pipeline: layers that run one after the other on one rank.

Invariant: what later stages read goes through each stage between, so every message is from a stage to the next one; a
recomputed layer sees the statistics of its first run, and leaves the current ones unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from .cutting import Answer, Calls, Cut, Layer
from .messages import Messages


class Stage(nn.Module):
    """Layers `first` up to `end` of a cut model; `recomputed` says which of them keep no activations. Takes and returns
    tensors: the last stage returns those that make up `Cut.answer`."""

    def __init__(self, cut: Cut, first: int, end: int, recomputed: Sequence[bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(cut.layers[first:end])
        self.recomputed = tuple(recomputed)
        self._trained = _way(list(cut.inputs), [layer.trained for layer in cut.layers], cut.answer, first, end)
        self._evaluated = self._trained
        if isinstance(cut.evaluated, Answer):
            self._evaluated = _way(list(cut.inputs), [layer.evaluated for layer in cut.layers], cut.evaluated, first, end)

    @property
    def way(self) -> Way:
        """What enters and leaves the stage in its current mode."""
        return self._trained if self.training else self._evaluated

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        way = self.way
        if way.received is None:
            made = self._forward(arguments, way)
        else:
            made = way.received.owing(self._forward(way.received.read(arguments), way), arguments)
        return tuple(made if way.sent is None else way.sent.sent(made))

    def _forward(self, arguments: Sequence[torch.Tensor], way: Way) -> Sequence[torch.Tensor]:
        entered = zip(way.enters, arguments, way.copied, strict=True)
        values = {name: _at_the_edge(value.clone() if copied else value) for name, value, copied in entered}
        for layer, again in zip(self._layers(), self.recomputed, strict=True):
            reads = [values[name] for name in layer.calls.reads]
            if again and torch.is_grad_enabled():
                made = checkpoint(layer, *reads, use_reentrant=False, context_fn=partial(_contexts, layer))
            else:
                made = layer(*reads)
            values.update(zip(layer.calls.makes, made, strict=True))
        return [_at_the_edge(values[name]) for name in way.leaves]

    @contextmanager
    def without_statistics(self) -> Iterator[None]:
        """Within it, the forward pass leaves the buffers that it writes to unchanged."""
        with ExitStack() as stack:
            for layer in self._layers():
                stack.enter_context(_AsBefore(layer))
            yield

    def named(self) -> dict[str, nn.Parameter]:
        """The parameters by the names that they have in the model."""
        return {
            name: parameter
            for layer in self._layers()
            for name, parameter in layer.body.named_parameters(remove_duplicate=False)
        }

    def statistics(self) -> tuple[set[str], set[str]]:
        """The buffers that it writes to, and those that it has."""
        layers = self._layers()
        written = {name for layer in layers for name in layer.trained.statistics}
        return written, {name for layer in layers for name, _ in layer.body.named_buffers(remove_duplicate=False)}

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def reads_again(self) -> str | None:
        """A trained parameter that more than one operator of this stage reads."""
        count: Counter[str] = Counter()
        for layer in self._layers():
            count.update(_reads(layer.body))
        return next((name for name, parameter in self.named().items() if parameter.requires_grad and count[name] > 1), None)


def _reads(body: fx.GraphModule) -> Counter[str]:
    """Number of calls that read each attribute, directly or through values computed from it alone."""
    count: Counter[str] = Counter()
    of: dict[fx.Node, str] = {}
    for node in body.graph.nodes:
        if node.op == "get_attr":
            of[node] = str(node.target)
        elif node.op == "call_function":
            read = {of[value] for value in node.all_input_nodes if value in of}
            if len(read) == 1 and all(value in of for value in node.all_input_nodes):
                # A value that several calls read counts once for each.
                of[node] = read.pop()
            else:
                count.update(read)
    return count


@contextmanager
def evaluating(stages: Iterable[Stage]) -> Iterator[None]:
    """Stages in evaluation mode, without gradients, and with buffers that stay as they are."""
    with torch.no_grad(), ExitStack() as stack:
        for stage in stages:
            stack.callback(stage.train, stage.training)
            stage.eval()
            stack.enter_context(stage.without_statistics())
        yield


@dataclass
class Way:
    """The names of what enters a stage in one mode and of what leaves it; `copied` says which of its inputs the stage
    writes to; `received` and `sent` convert the messages from the stage before and to the next one, if these are not
    the values themselves."""

    enters: list[str]
    leaves: list[str]
    copied: list[bool]
    received: Messages | None = None
    sent: Messages | None = None


def _way(inputs: list[str], calls: list[Calls], answer: Answer, first: int, end: int) -> Way:
    enters = inputs if first == 0 else _crossing(inputs, calls, answer, first)
    leaves = answer.names if end == len(calls) else _crossing(inputs, calls, answer, end)
    overwritten = {name for call in calls[first:end] for name in call.overwrites}
    return Way(enters, leaves, [name in overwritten for name in enters])


def _crossing(inputs: list[str], calls: list[Calls], answer: Answer, at: int) -> list[str]:
    """Values that exist before layer `at` and are read by it or by later layers."""
    there = dict.fromkeys(inputs)
    for call in calls[:at]:
        there.update(dict.fromkeys(call.makes))
    wanted = {name for call in calls[at:] for name in call.reads}
    wanted.update(answer.names)
    return [name for name in there if name in wanted]


class _Edge(torch.autograd.Function):
    """The same numbers in the same memory, in row-major order, as their gradient is: the form of messages. PyTorch
    detaches a stage's results from autograd's graph in place, so they must not be what the stage keeps for itself."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.detach().contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous()


def _at_the_edge(value: torch.Tensor) -> torch.Tensor:
    return _Edge.apply(value) if value.requires_grad and torch.is_grad_enabled() else value.contiguous()


def _contexts(layer: Layer) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of a layer's forward pass and of its recomputation."""
    return nullcontext(), _AsBefore(layer)


class _AsBefore(AbstractContextManager[None]):
    """Within it, a layer has the statistics of the time when this object was made; afterwards, those that it had on
    entry. They have separate memory, since autograd may have saved the buffers for other micro-batches."""

    def __init__(self, layer: Layer) -> None:
        self._body = layer.body
        self._before = {name: self._body.get_buffer(name).clone() for name in layer.calls.statistics}
        self._meanwhile: dict[str, torch.Tensor] = {}

    def __enter__(self) -> None:
        self._meanwhile = {name: self._body.get_buffer(name) for name in self._before}
        self._put({name: value.clone() for name, value in self._before.items()})

    def __exit__(self, *raised: object) -> None:
        self._put(self._meanwhile)

    def _put(self, buffers: dict[str, torch.Tensor]) -> None:
        for name, value in buffers.items():
            owner, _, key = name.rpartition(".")
            setattr(self._body.get_submodule(owner), key, value)
