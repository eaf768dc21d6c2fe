"""Every error says what was asked, the dims with sizes, the rule at fault and what is legal.

A new case is a row in the table of its subject, in one of the files below: a title, a call that is
wrong, and parts of the text that its error must have. A row of an op stands in the file of ops that
do alike, under the comment of its group.
"""

import pytest

import meshdsl as md
from meshdsl.lowering.lower import Lowered
from tests.errors import (
    arithmetic,
    control_flow,
    convolution,
    families,
    from_python,
    gradients,
    indexing,
    layouts,
    lowering,
    names,
    pipelines,
    plain_jax,
    random_numbers,
    search,
    selection,
    shapes,
    stages,
    tensors,
)
from tests.errors.common import MESH, A, X, file, under

SUBJECTS = (
    tensors,
    layouts,
    lowering,
    arithmetic,
    shapes,
    selection,
    convolution,
    random_numbers,
    search,
    control_flow,
    gradients,
    families,
    from_python,
    plain_jax,
    names,
    indexing,
    pipelines,
    stages,
)
# A title begins with its file, so that no row hides one with the same title in another file.
ERRORS = {
    f"{module.__name__.rpartition('.')[2]}: {title}": row
    for module in SUBJECTS
    for title, row in module.ERRORS.items()
}


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


def test_an_optional_dim_may_be_missing_and_a_known_one_be_untouched():
    assert under(["a -> data", "heads? -> model"]).split == {A: ("data",)}
    layout = md.Layout(["a -> data", "heads -> model"], mesh=MESH)
    assert Lowered(lambda x: x * 2, layout, md.make_mesh(layout), dims=["heads"])(X).split == {
        A: ("data",)
    }
