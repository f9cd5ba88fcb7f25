"""The roles of a joint graph's nodes and outputs, which their names spell.

Invariant: such names are made and taken apart only here. A plan of the graph keeps them, as it keeps all names of nodes
that do not run again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """What a node stands for."""

    # An argument of the graph.
    ARGUMENT = "argument"
    # The optimizer's state of an argument.
    STATE = "state"
    # The gradient of an argument that exists when the step begins.
    GRADIENT = "gradient"
    # That gradient after the step's own was added to it.
    SUM = "sum"


_NAMES = {kind: f"{kind.value}_{{}}" for kind in (Kind.ARGUMENT, Kind.STATE, Kind.GRADIENT)} | {Kind.SUM: "gradient_{}_sum"}
_PATTERNS = {kind: re.compile(name.format(r"(\d+)")) for kind, name in _NAMES.items()}
_CONSTANT = "constant_"
_RESULT = "gradient "
# The output that stands for what others get between the passes, and hold to the end.
GROWN = "grown"


@dataclass(frozen=True)
class Role:
    """What a node stands for; `index` is the position of the argument."""

    kind: Kind
    index: int

    @property
    def name(self) -> str:
        """The name of the node."""
        return _NAMES[self.kind].format(self.index)

    @staticmethod
    def of(node: Mapping[str, Any]) -> Role | None:
        """The role of a node of a document; most have none."""
        for kind, pattern in _PATTERNS.items():
            if found := pattern.fullmatch(node["name"]):
                return Role(kind, int(found[1]))
        return None


def constant(target: str) -> str:
    """The name of the placeholder of a constant of the captured module."""
    return _CONSTANT + target


def result(index: int) -> str:
    """The name of the output that is the gradient of an argument."""
    return f"{_RESULT}{index}"


def grown_value(document: Mapping[str, Any]) -> int | None:
    """The value that stands for what others get between the passes, and hold to the end, if there is one."""
    named = dict(zip(document["output_names"], document["outputs"], strict=True))
    return named.get(GROWN)


def placed(document: Mapping[str, Any], kind: Kind) -> dict[int, int]:
    """The values of the placeholders of a kind, by the positions of their arguments."""
    roles = ((Role.of(node), node) for node in document["nodes"] if node["op"] == "placeholder")
    return {role.index: node["outputs"][0]["id"] for role, node in roles if role is not None and role.kind is kind}


def constants(document: Mapping[str, Any]) -> dict[str, int]:
    """The values of the constants, by their names in the captured module."""
    return {node["name"].removeprefix(_CONSTANT): node["outputs"][0]["id"] for node in document["nodes"]
            if node["op"] == "placeholder" and node["name"].startswith(_CONSTANT)}


def results(document: Mapping[str, Any]) -> dict[int, int]:
    """The values of the gradients that are results, by the positions of their arguments."""
    named = zip(document["outputs"], document["output_names"], strict=True)
    return {int(name.removeprefix(_RESULT)): value for value, name in named if name.startswith(_RESULT)}
