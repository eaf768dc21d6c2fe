"""docs/api.md has every public name, with the signature that it has."""

import inspect
import re

import pytest

import meshdsl as md
from tests.catalogue import api

TEXT = api.PAGE.read_text()
ENTRIES = TEXT.replace("\n  ", " ")  # each in one line


def test_the_page_of_public_names_is_current():
    assert api.page() == TEXT, "run `python -m tests.catalogue`"


def test_every_public_name_is_on_the_page():
    names = [n for n in md.__all__ if inspect.isclass(getattr(md, n)) or callable(getattr(md, n))]
    names += [f"random.{name}" for name in md.random.__all__]
    assert len(names) > 150
    assert not [name for name in names if not re.search(rf"`{re.escape(name)}[(`]", ENTRIES)]


@pytest.mark.parametrize("cls", [*api.TYPES.values(), *(cls for cls, _ in api.GIVEN.values())])
def test_every_public_member_is_on_the_page_and_says_what_it_is(cls):
    members = [name for name in vars(cls) if not name.startswith("_")]
    fields = set(getattr(cls, "__dataclass_fields__", {})) | set(getattr(cls, "__slots__", ()))
    private = {"placement", *api.PROTOCOLS}  # of the machinery
    for member in {*members, *fields} - private - (fields if cls is md.Dim else set()):
        found = re.search(rf"`{cls.__name__}\.{member}(?:\(.*?\).*?)?`(?:, `.*?`)*: (.+)", ENTRIES)
        assert found and len(found[1]) > 5, f"{cls.__name__}.{member}"


def test_nothing_on_the_page_is_an_object_of_python():
    assert not re.findall(r"<class|object at 0x|jax\._src|mappingproxy|Ellipsis|: \n", TEXT)


def test_a_signature_is_written_as_in_the_code():
    def function(x: md.Tensor, *more: "int", size=3, like: "md.Dim | None" = None) -> "md.Dim": ...

    said = "(x: Tensor, *more: int, size=3, like: md.Dim | None = None) -> md.Dim"
    assert api.signature(function) == said
    assert api.signature(md.eye).startswith(
        "(a: Dim | str, b: Dim | str, dtype: DTypeLike = float32, *, "
    )
