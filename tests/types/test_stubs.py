"""The stubs that are made say what is there: each public name, its parameters, its members."""

import ast
import functools
import inspect
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.ops.functions import FUNCTIONS, KIND
from stubs import make

PACKAGE = Path(md.__file__).parent
OPERANDS = {"Unary": (1, False), "Tuned": (1, True), "Binary": (2, False)}


@functools.cache
def stubs() -> dict[str, str]:
    """The text of each stub."""
    made = make.stubs(PACKAGE)
    return {path.relative_to(PACKAGE).as_posix(): text for path, text in made.items()}


@functools.cache
def defined(name: str) -> dict[str, list]:
    """What a stub has for each public name: its functions, one for each overload, or its class."""
    found: dict[str, list] = {}
    for node in ast.parse(stubs()[name]).body:
        if isinstance(node, ast.ImportFrom):
            file = f"{node.module.replace('meshdsl.', '').replace('.', '/')}.pyi"
            inner = defined(file) if file in stubs() and node.names[0].asname else {}
            found |= {a.name: inner.get(a.name, []) for a in node.names if a.asname}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
    return found


def top() -> dict[str, list]:
    return defined("__init__.pyi")


def in_random() -> dict[str, list]:
    return defined("ops/random.pyi")


def test_each_public_name_has_a_type_and_nothing_else_has_one():
    assert set(top()) == set(md.__all__)
    assert set(in_random()) == set(md.random.__all__)
    rows = {name.partition(".")[0] for name in make.Package(PACKAGE).rows}
    assert rows <= {*md.__all__, *OPERANDS, "Ternary", "DimsOf", "is_tensor"} | {
        "makes",
        "reduces",
        "removes",
    }


def test_parameters_are_those_of_the_functions():
    typed = [(md, name, nodes) for name, nodes in top().items()]
    typed += [(md.random, name, nodes) for name, nodes in in_random().items()]
    functions = [each for each in typed if each[2] and isinstance(each[2][0], ast.FunctionDef)]
    assert len(functions) > 200
    for module, name, overloads in functions:
        whole = inspect.signature(getattr(module, name)).parameters
        spread = {n for n, p in whole.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        needed = {n for n, p in whole.items() if p.default is p.empty} - spread
        known = set()
        for function in overloads:
            a = function.args
            named = {p.arg for p in (*a.args, *a.kwonlyargs)}
            assert needed <= named | {p.arg for p in a.posonlyargs}, name
            known |= named
        assert known <= set(whole) and set(whole) - spread - known <= {"fn"}, name


def test_component_wise_functions_have_the_number_of_operands_that_jax_says():
    for name in FUNCTIONS:
        module = next(m for m in (jnp, jax.nn, jax.lax) if hasattr(m, name))
        function = getattr(module, name)
        if isinstance(function, jnp.ufunc):
            operands = function.nin, False
        else:
            parameters = list(inspect.signature(function).parameters.values())
            needed = [p for p in parameters if p.default is p.empty]
            operands = len(needed), len(parameters) > len(needed)
        expected = {"where": "Ternary", "clip": "Tuned"}.get(name) or next(
            kind for kind, found in OPERANDS.items() if found == operands
        )
        assert KIND.get(name, "Unary") == expected, name


@pytest.mark.parametrize("cls", [md.Tensor, md.Dim])
def test_classes_have_the_members_that_they_have(cls):
    (node,) = top()[cls.__name__]
    nodes = itertools.chain.from_iterable(getattr(n, "targets", [n]) for n in node.body)
    found = {getattr(n, "name", None) or ast.unparse(n).split(":")[0] for n in nodes}
    public = {name for name in found if not name.startswith("_") or name.endswith("__")}
    assert not [name for name in public if not hasattr(cls, name)]
    assert {name for name in dir(cls) if not name.startswith("_")} <= public


def test_dims_and_tensors_can_be_subscripted_in_programs_that_run():
    assert md.Tensor[md.Dim["batch"], "length"]
    assert md.Dim["batch"]("batch", 2) == md.Dim("batch", 2)
