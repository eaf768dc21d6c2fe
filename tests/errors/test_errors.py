"""Every error says what was asked, the dims with sizes, the rule at fault and what is legal.

A new case is a row in the table of its subject, in one of the files beside this one: a call that
is wrong, and the text of its error, in which ` … ` stands for any text. A row of an op stands in
the file of ops that do alike, under the comment of its group. What many public functions check by
the same few lines (the type of an argument, that a dim is there, that a number is whole) has some
rows, and not one for each.
"""

import re
from importlib import import_module
from pathlib import Path

import pytest

import meshdsl as md
from meshdsl.lowering.lower import Lowered
from tests.errors.common import MESH, A, X, file, under

SUBJECTS = {path.stem for path in Path(__file__).parent.glob("*.py")}
ROWS = {
    f"{subject}, {number}: {row[1]}": row
    for subject in sorted(SUBJECTS - {"__init__", "common", "test_errors"})
    for number, row in enumerate(import_module(f"tests.errors.{subject}").ERRORS, 1)
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    file.folder = tmp_path_factory.mktemp("layouts")


@pytest.mark.parametrize("name", ROWS)
def test_an_error_says_what_was_asked_and_what_is_legal(name):
    wrong, expected = ROWS[name]
    with pytest.raises(md.MeshDSLError) as caught:
        wrong()
    text = str(caught.value)
    pattern = ".*".join(map(re.escape, expected.split(" … ")))
    assert re.search(pattern, text), f"{expected}\nis not: {text}"
    assert "\n" not in text and "Array(" not in text and "array([" not in text


def test_an_optional_dim_may_be_missing_and_a_known_one_be_untouched():
    assert under(["a -> data", "heads? -> model"]).split == {A: ("data",)}
    layout = md.Layout(["a -> data", "heads -> model"], mesh=MESH)
    assert Lowered(lambda x: x * 2, layout, md.make_mesh(layout), dims=["heads"])(X).split == {
        A: ("data",)
    }
