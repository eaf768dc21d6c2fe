"""Which splits a regrouping of dims keeps, and which way is the cheapest."""

import pytest

from meshdsl import Layout
from meshdsl.lowering.scope import Scope
from meshdsl.splits.regrouping import Group, best_splits
from tests.helpers import dims

MESH = {"m": 2, "n": 3, "l": 1}


# The dims, their split, what they become, the split that is wanted; and what the operand is brought
# to and the result comes out with.
CHOICES = {
    "kept": (dict(b=8, h=4), [("m",), ()], dict(x=32), [("m",)], [("m",), ()], [("m",)]),
    "the inner one passes its axis to the outer": (
        dict(b=8, h=4),
        [(), ("m",)],
        dict(x=32),
        [("m",)],
        [("m",), ()],
        [("m",)],
    ),
    "both stay where digits meet": (
        dict(b=2, h=6),
        [("m",), ("n",)],
        dict(x=12),
        [("m", "n")],
        [("m",), ("n",)],
        [("m", "n")],
    ),
    "a dim of two axes splits between them": (
        dict(x=12),
        [("m", "n")],
        dict(b=2, h=6),
        [("m",), ("n",)],
        [("m", "n")],
        [("m",), ("n",)],
    ),
    "gathered, because the result is whole": (
        dict(b=8, h=4),
        [(), ("m",)],
        dict(x=32),
        [()],
        [(), ()],
        [()],
    ),
    "3 x 2 -> 6 never cuts the 3": (
        dict(b=3, h=2),
        [(), ("m",)],
        dict(x=6),
        [("m",)],
        [(), ()],
        [()],
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_cheapest_way_is_chosen(name):
    old, now, new, then, before, after = CHOICES[name]
    group, scope = Group(dims(**old), dims(**new)), Scope(Layout(mesh=MESH), MESH, "test")
    assert best_splits(tuple(now), tuple(then), group.old, group.new, [group], scope) == (
        tuple(before),
        tuple(after),
    )


def test_a_split_takes_refuge_in_a_dim_that_is_kept():
    b, h, k, x = dims(b=8, h=4, k=6, x=32)
    scope = Scope(Layout(mesh=MESH), MESH, "test")
    groups = [Group((b, h), (x,))]
    found = best_splits(((), ("m",), ()), ((), ("m",)), (b, h, k), (x, k), groups, scope)
    assert found == (((), (), ("m",)), ((), ("m",)))
