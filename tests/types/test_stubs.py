"""The stubs say what is there: the exported names, and of each function the parameters.

A name that is exported is to be in `meshdsl/__init__.pyi`, and the other way round.
"""

import ast
import inspect
import itertools
import tomllib
from fnmatch import fnmatch
from inspect import Parameter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.ops import operators
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.methods import METHODS
from tests.catalogue import stubs

PACKAGE = Path(md.__file__).parent
ARITY = {"Unary": 1, "Tuned": 1, "Binary": 2, "Ternary": 3}


def defined(path: Path) -> dict[str, list]:
    """What a stub has for each name: its functions (one for each overload), class or annotation."""
    found: dict[str, list] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            found |= defined(_file(node.module))
        elif isinstance(node, ast.ImportFrom):
            passed = [alias for alias in node.names if alias.asname == alias.name]
            stub = _file(node.module)
            inner = defined(stub) if passed and stub.exists() else {}
            found |= {alias.name: inner.get(alias.name, []) for alias in passed}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = [node.annotation]
    return {name: nodes for name, nodes in found.items() if not name.startswith("_")}


def _file(module: str) -> Path:
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".pyi")


STUB = defined(PACKAGE / "__init__.pyi")
RANDOM = defined(PACKAGE / "ops/random.pyi")
TYPED = {
    n: nodes
    for n, nodes in STUB.items()
    if any(isinstance(node, ast.FunctionDef) for node in nodes)
}
TYPED |= {f"random.{n}": nodes for n, nodes in RANDOM.items()}


def stated(function: ast.FunctionDef) -> list[Parameter]:
    """The parameters of a function in a stub.

    Whether each has a default is all that is kept of it.
    """
    a = function.args
    places = [(p, Parameter.POSITIONAL_ONLY) for p in a.posonlyargs] + [
        (p, Parameter.POSITIONAL_OR_KEYWORD) for p in a.args
    ]
    given = [None] * (len(places) - len(a.defaults)) + a.defaults
    rows = [(p.arg, kind, default) for (p, kind), default in zip(places, given, strict=True)]
    rows += [(a.vararg.arg, Parameter.VAR_POSITIONAL, None)] if a.vararg else []
    rows += [
        (p.arg, Parameter.KEYWORD_ONLY, default)
        for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)
    ]
    rows += [(a.kwarg.arg, Parameter.VAR_KEYWORD, None)] if a.kwarg else []
    return [
        Parameter(name, kind, default=Parameter.empty if default is None else ...)
        for name, kind, default in rows
    ]


def actual(function) -> list[Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [
        Parameter(p.name, p.kind, default=p.default if p.default is p.empty else ...)
        for p in parameters
    ]


def misfit(overload: list[Parameter], whole: list[Parameter]) -> str | None:
    """Why a call that fits the overload may not fit the function; None where it does."""
    spread = any(p.kind is Parameter.VAR_POSITIONAL for p in whole)
    known = {p.name: p for p in whole}
    for p in overload:
        if p.kind is Parameter.POSITIONAL_ONLY and (spread or p.name in known):
            continue
        if p.name not in known or p.kind is not known[p.name].kind:
            return f"has no such parameter as {p.name}"
        if p.default is not p.empty and known[p.name].default is p.empty:
            return f"needs {p.name}"
    names = [p.name for p in overload if p.name in known]
    if names != [p.name for p in whole if p.name in names]:
        return "has its parameters in another order"
    needed = [
        p.name
        for p in whole
        if p.default is p.empty and p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    return next((f"needs {name}" for name in needed if name not in names), None)


def test_the_stub_has_exactly_what_is_exported():
    assert not set(md.__all__) - set(STUB), (
        "exported and without a type; run `python -m tests.catalogue`"
    )
    assert not set(STUB) - set(md.__all__), "typed and not exported; see meshdsl/__init__.py"


@pytest.mark.parametrize("path", stubs.files(), ids=lambda path: path.name)
def test_what_is_generated_of_the_stubs_is_current(path):
    assert path.read_text() == stubs.files()[path], "run `python -m tests.catalogue`"


def test_the_stub_of_random_has_exactly_what_is_in_it():
    assert set(RANDOM) == set(md.random.__all__)


@pytest.mark.parametrize("name", sorted(TYPED))
def test_parameters_are_those_of_the_function(name):
    value = md
    for part in name.split("."):
        value = getattr(value, part)
    whole, overloads = actual(value), [stated(node) for node in TYPED[name]]
    if len(overloads) == 1:
        assert overloads[0] == whole
        return
    assert not [why for overload in overloads if (why := misfit(overload, whole))]
    known = {p.name for p in itertools.chain(*overloads)}
    assert not [
        p.name
        for p in whole
        if p.name not in known and p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]


def test_component_wise_functions_have_the_number_of_operands_that_jax_says():
    for name in FUNCTIONS:
        module = next(m for m in (jnp, jax.nn, jax.lax) if hasattr(m, name))
        function = getattr(module, name)
        if isinstance(function, jnp.ufunc):
            arity, more = function.nin, False
        else:
            parameters = list(inspect.signature(function).parameters.values())
            needed = [p for p in parameters if p.default is p.empty]
            arity, more = len(needed), len(parameters) > len(needed)
        said = STUB[name][0].id
        expected = {"where": "Ternary", "clip": "Tuned"}.get(name) or next(
            k for k, n in ARITY.items() if n == arity and (k == "Tuned") == more
        )
        assert said == expected, f"{name} is {expected}, not {said}"


@pytest.mark.parametrize("cls", [md.Tensor, md.Dim])
def test_classes_have_the_members_that_they_have(cls):
    (node,) = STUB[cls.__name__]
    members: dict[str, list] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            members.setdefault(item.name, []).append(item)
        elif isinstance(item, ast.AnnAssign):
            members[item.target.id] = []
        elif isinstance(item, ast.Assign):
            members |= {target.id: [] for target in item.targets}
    members = {n: fs for n, fs in members.items() if not n.startswith("_") or n.endswith("__")}
    assert not [n for n in members if not hasattr(cls, n)]
    assert not {n for n in vars(cls) if not n.startswith("_")} - set(members)
    for name, functions in members.items():
        function = inspect.getattr_static(cls, name)
        if not callable(function) or (name.startswith("__") and name != "__init__"):
            continue
        if name in METHODS:
            assert name in FUNCTIONS or not [
                why for f in functions if (why := misfit(stated(f)[1:], actual(function)[1:]))
            ]
            continue
        assert not [why for f in functions if (why := misfit(stated(f), actual(function)))], name


def test_every_operator_of_a_tensor_is_typed():
    names = {name for item in STUB["Tensor"][0].body for name in _assigned(item)}
    both = [*operators._OPERATORS, *(f"r{name}" for name in operators._OPERATORS)]
    assert {f"__{name}__" for name in (*both, *operators._COMPARISONS, *operators._UNARY)} <= names


def _assigned(item) -> list[str]:
    return (
        [item.name]
        if isinstance(item, ast.FunctionDef)
        else [t.id for t in getattr(item, "targets", ())]
    )


def test_types_are_shipped():
    setuptools = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"][
        "setuptools"
    ]
    shipped = setuptools["package-data"]
    files = [PACKAGE / "py.typed", *PACKAGE.rglob("*.pyi")]
    for file in files:
        package = ".".join(("meshdsl", *file.relative_to(PACKAGE).parts[:-1]))
        assert any(fnmatch(file.name, pattern) for pattern in shipped.get(package, ())), (
            f"{file} is not in package-data"
        )


def test_dims_and_tensors_can_be_subscripted_in_programs_that_run():
    assert md.Tensor[md.Dim["batch"], "length"]
    assert md.Dim["batch"]("batch", 2) == md.Dim("batch", 2)
