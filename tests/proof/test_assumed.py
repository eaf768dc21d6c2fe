"""What a value is where something is known."""

import pytest

from meshdsl.proof.forms.assumed import given
from meshdsl.proof.forms.branches import by_case
from meshdsl.proof.forms.sums import elementwise, total
from meshdsl.proof.labels import labelled
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, alike, whole


def chain(terms, x, other, steps, rows=()):
    """What is made of each of its steps twice: of it, and of its logarithm or that of a sum."""
    for _ in range(steps):
        one = total(terms, x, labelled(rows), labelled(rows)) if rows else x
        beside = elementwise(terms, "log", (), [one], ())
        x = elementwise(terms, "mul", (), [x, by_case(terms, other, [beside, x])], ())
    return x


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("truth", [False, True])
def test_what_is_used_often_is_looked_into_once(truth, summed):
    """Without that there are 3 to the power of 40 ways to the condition."""
    terms = Terms()
    parts = whole(terms.term("x", shape=(4, 8))).parts
    x, y = (Value(terms.term(name, shape=(4, 8)), parts, ()) for name in ("x", "y"))
    which = Value(terms.term("which", shape=(4,)), parts[:1], ())
    other = Value(terms.term("other"), (), ())
    rows = parts[1] if summed else ()
    chosen = elementwise(terms, "select_n", (), [which, x, y], ())
    found = given(terms, chain(terms, chosen, other, 40, rows), which, truth)
    assert alike(found, chain(terms, y if truth else x, other, 40, rows))
    assert not alike(found, chain(terms, x if truth else y, other, 40, rows))
