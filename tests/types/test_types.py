"""What pyright makes of the stubs, over right and wrong programs and over this repository's own.

What it says of `right.py`, `wrong.py` and of programs that are drawn is also held to be true: the
programs run, with the dims that were inferred, and with errors where some were reported.
"""

import ast
import sys
import typing
from pathlib import Path

import jax
import pytest

import meshdsl as md
from tests.types import drawn
from tests.types.conftest import CODE
from tests.types.notation import holds, inferred, shown

PYRIGHT = pytest.mark.slow  # one run of it takes twenty seconds
RIGHT, WRONG = (Path(__file__).parent / name for name in ("right.py", "wrong.py"))


def comments(path: Path, *marks: str) -> dict[int, str]:
    """For each line that has a comment with such a mark, the text behind it."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        _, mark, text = line.partition("  # ")
        if mark and text.startswith(marks):
            found[number] = text if marks == ("",) else text.split(": ", 1)[1]
    return found


@PYRIGHT
def test_right_programs_have_the_types_that_their_comments_say(reports):
    found = reports["stubs/right.py"]
    refused = [
        f"line {n}: {m}"
        for n, said in found.items()
        for severity, m, _ in said
        if severity != "information"
    ]
    assert not refused, "\n".join(refused)
    assert {n: inferred(said[0][1]) for n, said in found.items()} == comments(RIGHT, "")


@PYRIGHT
def test_wrong_programs_are_reported_where_and_as_their_comments_say(reports):
    expected = comments(WRONG, "error", "claim")
    found = {
        n: [m for severity, m, _ in said if severity == "error"]
        for n, said in reports["stubs/wrong.py"].items()
    }
    other = {
        n: (text, found.get(n))
        for n, text in expected.items()
        if not any(text in m for m in found.get(n, ()))
    }
    other |= {n: ("nothing", said) for n, said in found.items() if said and n not in expected}
    assert not other, "\n".join(
        f"wrong.py:{n}: {said} instead of {text}" for n, (text, said) in sorted(other.items())
    )


def test_right_programs_run_with_the_dims_that_were_inferred(monkeypatch):
    values = {}

    def reveal_type(value):
        values.setdefault(sys._getframe(1).f_lineno, []).append(value)
        return value

    monkeypatch.setattr(typing, "reveal_type", reveal_type)
    program = compile(RIGHT.read_text(), str(RIGHT), "exec")
    jax.eval_shape(lambda: exec(program, {"__name__": "right"}))
    expected = comments(RIGHT, "")
    assert sorted(values) == sorted(expected)
    false = {
        n: (expected[n], shown(v))
        for n, vs in values.items()
        for v in vs
        if not holds(expected[n], v)
    }
    assert not false


def test_wrong_programs_raise_errors():
    errors, claims = comments(WRONG, "error"), comments(WRONG, "claim")
    names: dict = {}
    silent = []
    for statement in ast.parse(WRONG.read_text()).body:
        code = compile(ast.Module([statement], []), str(WRONG), "exec")
        if statement.lineno in errors:
            try:
                exec(code, names)
            except (md.MeshDSLError, TypeError, AttributeError):
                continue
            silent.append(statement.lineno)
        elif statement.lineno not in claims:
            exec(code, names)
    assert not silent


@PYRIGHT
def test_no_legal_program_is_refused_and_no_wrong_dims_are_inferred(reports):
    results = drawn.run()
    refused, false, reported, exact = [], [], 0, 0
    for number, (program, result) in results.items():
        said = reports["stubs/drawn.py"][number]
        errors = [m for severity, m, _ in said if severity == "error"]
        types = [inferred(m) for severity, m, _ in said if severity == "information"]
        if isinstance(result, Exception):
            reported += bool(errors)
        elif errors:
            refused.append(f"{program}, which is {shown(result)}: {errors[0]}")
        elif not holds(types[0], result):
            false.append(f"{program} is {shown(result)}, not {types[0]}")
        else:
            exact += types[0] == shown(result)
    assert not refused, "\n".join(refused)
    assert not false, "\n".join(false)
    wrong = sum(isinstance(result, Exception) for _, result in results.values())
    assert reported > wrong / 5 and exact > (len(results) - wrong) / 3, (
        f"{reported} of {wrong} wrong ones reported; {exact} of the others inferred"
    )


@PYRIGHT
def test_the_stubs_have_no_errors_of_their_own(reports):
    assert not {file: dict(said) for file, said in reports.items() if file.endswith(".pyi")}


@PYRIGHT
def test_the_stubs_refuse_nothing_of_layers_models_and_examples(reports):
    kinds = lambda said: sorted((severity, rule) for severity, _, rule in said)
    refused = [
        f"{file}:{n}: {said}"
        for tree, file in (name.split("/", 1) for name in list(reports))
        if tree == "stubs" and file.startswith(CODE)
        for n, said in reports[f"stubs/{file}"].items()
        if kinds(said) != kinds(reports[f"blank/{file}"].get(n, []))
    ]
    assert not refused, "\n".join(refused)
