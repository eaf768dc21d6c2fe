"""What is public says what it is: the reference on the site is made of it, and so is `help`."""

import inspect
import re

import pytest

import meshdsl as md
from meshdsl.lowering.lower import Lowered
from meshdsl.program.program import Program
from meshdsl.tools.show import Shown

CLASSES = [found for name in md.__all__ if inspect.isclass(found := getattr(md, name))]
PROTOCOLS = {"tree_flatten", "tree_flatten_with_keys", "tree_unflatten"}  # which JAX asks for


def test_every_public_function_says_what_it_does():
    functions = {name: getattr(md, name) for name in md.__all__ if name != "random"}
    functions |= {f"random.{name}": getattr(md.random, name) for name in md.random.__all__}
    assert len(functions) > 150
    assert not [name for name, found in functions.items() if not inspect.getdoc(found)]


@pytest.mark.parametrize("cls", [*CLASSES, Lowered, Program, Shown], ids=lambda cls: cls.__name__)
def test_every_public_member_says_what_it_is(cls):
    said = re.findall(r"^  (\w[\w, ]*): ", inspect.getdoc(cls), re.MULTILINE)
    listed = {name for names in said for name in names.split(", ")}
    fields = {*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "__slots__", ())}
    members = {name for name in {*vars(cls), *fields} if not name.startswith("_")} - PROTOCOLS
    members -= listed | (fields if cls is md.Dim else set())
    silent = [
        n for n in members if n in fields or not inspect.getdoc(inspect.getattr_static(cls, n))
    ]
    assert not silent
