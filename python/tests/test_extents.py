"""Expressions of sizes: whether they grow, and how they are written in generated code.

Tier: quick.
"""

import itertools
import json
import random

import pytest
import sympy

import tightfit

if not hasattr(tightfit, "compile"):
    pytest.skip("this tightfit has no `compile`", allow_module_level=True)

from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from tightfit import extents

A, B = sympy.symbols("n0 n1", positive=True, integer=True)


@pytest.mark.parametrize("expression", [
    A * B, A * (B - 1), FloorDiv(A, 2) * B, Max(A, B) + 3, A**2 - 4 * A, sympy.Integer(4), (FloorDiv(A, 2) - 1) * Max(1, B),
    4 * A * B - 4 * B - A, FloorDiv(FloorDiv(A, 2) - 1, 2)])
def test_what_grows(expression):
    assert extents.grows(expression)


@pytest.mark.parametrize("expression", [
    A - B, 512 - A, FloorDiv(9 - A, 2), Max(A, 7 - B), A**2 - 6 * A, A * (FloorDiv(B, 4) - 1), Mod(A, 3), FloorDiv(A, B)])
def test_what_may_fall(expression):
    assert not extents.grows(expression)


def drawn(random, depth):
    """A random expression of two sizes."""
    if depth == 0:
        return random.choice([A, B, sympy.Integer(random.randint(-3, 4))])
    one, other = drawn(random, depth - 1), drawn(random, depth - 1)
    kind = random.randrange(5)
    if kind == 3:
        return FloorDiv(one, sympy.Integer(random.randint(1, 3)))
    return (one + other, one * other, one - other, None, (Max if random.random() < 0.5 else Min)(one, other))[kind]


def test_nothing_that_is_said_to_grow_falls_and_what_is_written_computes_it():
    found = 0
    for seed in range(400):
        expression = drawn(random.Random(seed), seed % 4)
        values = {(a, b): int(expression.subs({A: a, B: b})) for a, b in itertools.product(range(2, 9), repeat=2)}
        if extents.grows(expression):
            found += bool(expression.free_symbols)
            assert all(values[a, b] <= values[c, d] for a, b in values for c, d in values if a <= c and b <= d), expression
        text = extents.written(expression, {A: sympy.Symbol("n3"), B: sympy.Symbol("n7")})
        assert text is not None
        assert all(eval(text, {"n3": a, "n7": b}) == value for (a, b), value in values.items()), (expression, text)  # noqa: S307
    assert found > 50


def test_an_extent_is_an_integer_in_a_file_and_an_expression_in_code():
    extent = extents.Extent(12, "(3*n0)")
    assert extent == 12 and extent + 1 == 13 and json.dumps([extent]) == "[12]" and repr([extent, 4]) == "[(3*n0), 4]"
    planned = {"name": "view_1", "recomputes": "view", "args": [{"value": 7}, [12, 4]], "kwargs": {"size": 12}}
    known = extents.found({"nodes": [{"name": "view", "args": [{"value": 2}, [extent, 4]], "kwargs": {"size": extent}},
                                     {"name": "other", "args": [[12, 4]]}]})
    assert list(known) == ["view"]
    found = extents.restored(planned, known)
    assert repr(found["args"]) == "[{'value': 7}, [(3*n0), 4]]" and repr(found["kwargs"]) == "{'size': (3*n0)}"
