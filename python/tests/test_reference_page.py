"""`doc/pytorch/reference.md`: the contents of the package, in the words of its own documentation.

Invariant: the page is generated from the docstrings; `UPDATE_EXPECT=1` writes it again.

Tier: quick, since it takes less than a second.
"""

import inspect
import os
import re

import pages

import tightfit
import tightfit.distributed

PAGE = pages.ROOT / "doc/pytorch/reference.md"
OPENING = """\
# API reference

**Rust.** `cargo doc --workspace --no-deps --open` builds the reference of all crates. Begin with `tightfit`, the planner,
whose first page plans a step; `tightfit-engine` runs what it planned, and `tightfit-report` draws it.

**Python.** `help(tightfit.fit)` prints all that there is to say of a name: arguments, results, exceptions. What takes a
model needs PyTorch, which is loaded with the first such call; the other functions need only this package.
"""


def first_sentence(thing) -> str:
    text = " ".join(inspect.getdoc(thing).split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:;])\s", text)[0]
    return sentence.rstrip(":;.") + "."


def table(heading: str, prefix: str, names: dict[str, object]) -> str:
    def called(name: str, thing: object) -> str:
        return f"`{prefix}{name}`" if inspect.isclass(thing) else f"`{prefix}{name}(…)`"

    rows = [f"| {called(name, thing)} | {first_sentence(thing)} |" for name, thing in sorted(names.items())]
    return "\n".join([f"\n## {heading}", "| name | what it is or does |", "|---|---|", *rows, ""])


def written() -> str:
    public = {name: getattr(tightfit, name) for name in tightfit.__all__}
    classes = {name: thing for name, thing in public.items() if inspect.isclass(thing)}
    errors = {name: thing for name, thing in classes.items() if issubclass(thing, Exception)}
    functions = {name: thing for name, thing in public.items() if name not in classes}
    distributed = {name: getattr(tightfit.distributed, name) for name in tightfit.distributed.__all__}
    return OPENING + table("Functions", "tightfit.", functions) \
        + table("Several devices", "tightfit.distributed.", distributed) \
        + table("Results", "tightfit.", {name: thing for name, thing in classes.items() if name not in errors}) \
        + table("Exceptions", "tightfit.", errors)


def test_the_reference_is_what_the_package_says_of_itself():
    if os.environ.get("UPDATE_EXPECT") == "1":
        PAGE.write_text(written(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written(), "UPDATE_EXPECT=1 writes it again"
