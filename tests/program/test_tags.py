"""Tags in name stacks lead to ops."""

import pytest

from meshdsl.program.recorder import later, tag_in, without_numbers


@pytest.mark.parametrize(
    "scope, tag",
    [
        ("", None),
        ("jit(step)/add", None),
        ("jvp(md.loss.3)/add", "md.loss.3"),
        ("md.loss.3/transpose(md.loss.12)/psum", "md.loss.12"),
        ("jvp(md+58)/jit(repeated)/md.loss.3/add", "md.loss.61"),
        ("md+58/jit(repeated)/md+2/md.loss.3/add", "md.loss.63"),
        ("md+58/md.loss.3/cond/(a:b)", "md.loss.61"),
        # What a compiler has put together is what the last of the names says.
        ("a/(jvp(md+58)/md.loss.3/psum:jvp(md+116)/md.loss.3/psum)", "md.loss.119"),
        ("jvp(md+58)/(md.loss.3/psum:md.loss.4/psum)", "md.loss.62"),
        ("(jvp(md+58)/md.loss.3/psum:jvp(md.loss.9)/psum)", "md.loss.9"),
    ],
)
def test_the_innermost_tag_is_counted_on_from_the_first_layer(scope, tag):
    assert tag_in(scope) == tag


def test_later_ops_and_numbers_are_read_as_they_are_written():
    assert tag_in(f"{later(7)}/md.loss.3") == "md.loss.10"
    assert without_numbers("md.a.3/jvp(md.b.12)/psum") == ("md.a./jvp(md.b.)/psum", (3, 12))
