"""Turns a simplified capture into a `tightfit-graph/1` document.

Invariant: node order is the captured order followed by one optimizer node per parameter that has a gradient; `getitem`
never appears, since operators with several results have several outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .capture import DIFFERENTIATES, MODULE, PHASE, Capture
from .errors import ExportError
from .graph import GraphBuilder, ValueId, producer
from .nodes import is_call
from .optimizer import Optimizer
from .translator import Translator


def translate(captured: Capture, name: str, optimizer: Optimizer | None, constants: dict[str, torch.Tensor], *,
              keep_unused: bool, decompositions: str = "core") -> dict[str, Any]:
    """The graph document of a capture.

    Tensors that the forward pass creates (`torch.tensor([…])`) are lifted to buffers and added to `constants` under
    their name. Without an optimizer, gradients are outputs. `keep_unused=False` leaves out placeholders that nothing
    reads. `decompositions` says into which operators calls were decomposed.
    """
    builder = GraphBuilder(name, {"producer": producer(), "decompositions": decompositions})
    return _Translation(captured, builder, optimizer, constants, keep_unused).run()


class _Translation(Translator):
    """The translation of a captured step."""

    def __init__(self, captured: Capture, builder: GraphBuilder, optimizer: Optimizer | None,
                 constants: dict[str, torch.Tensor], keep_unused: bool) -> None:
        super().__init__(builder)
        self.captured = captured
        self.optimizer = optimizer
        self.constants = constants
        self.keep_unused = keep_unused
        self.states: dict[str, list[ValueId]] = {}
        self.names: dict[fx.Node, str] = {}

    def run(self) -> dict[str, Any]:
        self.builder.modules(self.captured.called, self.captured.uncalled)
        self._placeholders()
        for node in self.captured.graph.nodes:
            if is_call(node):
                self._call(node)
        self.builder.output(self.value(self.captured.loss), "loss")
        if self.captured.prediction is not None:
            self.builder.output(self.value(self.captured.prediction), "prediction")
        for parameter, gradient in self.captured.gradients.items():
            if self.optimizer is None:
                self.builder.output(self.value(gradient), parameter)
            else:
                self._optimizer_node(self.optimizer, parameter, self.value(gradient))
        return self.builder.document()

    def _placeholders(self) -> None:
        captured = self.captured
        for phase, named in (("parameter", captured.parameters), ("buffer", captured.buffers)):
            for fqn, node in named.items():
                if self.keep_unused or _is_read(node):
                    self._placeholder(node, phase, _identifier(fqn), fqn)
        for node in captured.graph.find_nodes(op="get_attr"):
            fqn = f"constant.{node.target}"
            self.constants[fqn] = getattr(captured.module, node.target)
            node.meta.setdefault("val", self.constants[fqn])
            self._placeholder(node, "buffer", _identifier(fqn), fqn)
        if self.optimizer is not None:
            for fqn in captured.gradients:
                tensor = captured.parameters[fqn].meta["val"]
                self.states[fqn] = [
                    self.builder.placeholder(f"{_identifier(fqn)}_{state}", "state", _state_like(tensor),
                                             parameter=f"{fqn}.{state}", module=_owner(fqn))
                    for state in self.optimizer.states_of(fqn)
                ]
        names = ["input", "target"]
        if len(captured.inputs) != 2:
            names = [f"input_{index}" for index in range(len(captured.inputs))]
        for input_name, node in zip(names, captured.inputs, strict=True):
            self._placeholder(node, "input", input_name, None)

    def _placeholder(self, node: fx.Node, phase: str, name: str, parameter: str | None) -> None:
        self.values[node] = self.builder.placeholder(
            name, phase, node.meta["val"], parameter=parameter, module=_owner(parameter) if parameter else ""
        )

    def _call(self, node: fx.Node) -> None:
        self.call(node, node.meta[PHASE], module=node.meta[MODULE], stream=False,
                  differentiates=self.names.get(node.meta.get(DIFFERENTIATES)))
        self.names[node] = self.builder.latest()

    def _optimizer_node(self, optimizer: Optimizer, fqn: str, gradient: ValueId) -> None:
        parameter = self.values[self.captured.parameters[fqn]]
        states = self.states[fqn]
        written = [parameter, *states]
        before, found = self.builder.tensor(parameter), self.builder.tensor(gradient)
        if before.shape != found.shape:
            raise ExportError(f"the gradient of {fqn!r} has shape {tuple(found.shape)}, not {tuple(before.shape)}")
        self.builder.node(
            f"{optimizer.kind}_{_identifier(fqn)}", optimizer.operator, "optimizer", [parameter, gradient, *states],
            optimizer.options_of(fqn), [self.builder.tensor(value) for value in written], module=_owner(fqn),
            mutates=True,
        )


def _identifier(fqn: str) -> str:
    """The node name of a tensor; `input` and `target` are reserved for the batch."""
    name = fqn.replace(".", "_")
    return f"{name}_tensor" if name in ("input", "target") else name


def _owner(fqn: str) -> str:
    return fqn.rpartition(".")[0]


def _state_like(parameter: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(parameter, memory_format=torch.contiguous_format, requires_grad=False)


def _is_read(node: fx.Node) -> bool:
    return any(user.op != "output" for user in node.users)
