"""Every error says what was asked, the dims with sizes, the rule at fault and what is legal."""

import ast
import inspect
import traceback
from pathlib import Path

import pytest

import meshdsl as md
from meshdsl.lowering.lower import Lowered
from tests.errors import (
    from_python,
    of_nouns,
    of_ops,
    of_programs,
    wrong_arguments,
    wrong_programs,
)
from tests.errors.common import MESH, A, X, file, model

ERRORS = of_nouns.ERRORS | of_ops.ERRORS | of_programs.ERRORS
ERRORS |= from_python.ERRORS | wrong_arguments.ERRORS | wrong_programs.ERRORS

# What is raised to be caught: nobody sees it.
NO_ERRORS = ("AssertionError", "WrongGuess")


@pytest.fixture(scope="module")
def caught(tmp_path_factory):
    file.folder = tmp_path_factory.mktemp("layouts")
    found = {}
    for name, (fn, _) in ERRORS.items():
        try:
            fn()
        except Exception as e:
            found[name] = e
    return found


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_was_asked_and_what_is_legal(name, caught):
    error = caught.get(name)
    assert isinstance(error, md.MeshDSLError), f"{type(error).__name__}: {error}"
    text = str(error)
    missing = [part for part in ERRORS[name][1] if part not in text]
    assert not missing, f"{missing} not in: {text}"
    assert "\n" not in text and "Array(" not in text and "array([" not in text


def test_every_error_of_the_language_is_in_the_table(caught):
    package = Path(inspect.getfile(md)).parent
    modules = ("checked", "dims", "errors", "layout", "mesh", "tensor")
    places = [package / f"{name}.py" for name in modules]
    places += [p for folder in ("ops", "lowering") for p in sorted((package / folder).glob("*.py"))]
    raised = set()
    for path in places:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Raise)
                and node.exc is not None
                and not ast.unparse(node.exc).startswith(NO_ERRORS)
            ):
                raised.add((str(path), node.lineno, node.end_lineno))
    errors = [error for e in caught.values() for error in (e, e.__context__) if error is not None]
    seen = [(f.filename, f.lineno) for e in errors for f in traceback.extract_tb(e.__traceback__)]
    missing = [
        (p, a) for p, a, b in raised if not any(f == p and a <= line <= b for f, line in seen)
    ]
    assert not missing, "; ".join(f"{p}:{a}" for p, a in missing)


def test_an_optional_dim_may_be_missing_and_a_known_one_be_untouched():
    assert model(["a -> data", "heads? -> model"]).split == {A: ("data",)}
    layout = md.Layout(["a -> data", "heads -> model"], mesh=MESH)
    assert Lowered(lambda x: x * 2, layout, md.make_mesh(layout), dims=["heads"])(X).split == {
        A: ("data",)
    }
