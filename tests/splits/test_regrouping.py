"""Which splits a regrouping of dims keeps, checked by numbering the elements of each device."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshdsl import Layout
from meshdsl.lowering.scope import Scope
from meshdsl.splits.regrouping import Group, best_splits, kept, runs
from tests.helpers import dims
from tests.splits.factors import factors

MESH = {"m": 2, "n": 3, "l": 1}


def owned(group_dims, split, scope):
    """The numbers of the elements that each device has, by its place along each axis.

    They are in order; padding is -1.
    """
    numbers = np.arange(prod(d.size for d in group_dims)).reshape([d.size for d in group_dims])
    found = {}
    for place in product(*(range(n) for n in scope.sizes.values())):
        at = dict(zip(scope.sizes, place, strict=True))
        part = numbers
        for i, (d, axes) in enumerate(zip(group_dims, split, strict=True)):
            part = np.pad(
                part,
                [(0, scope.padded(d, axes) - d.size if i == j else 0) for j in range(part.ndim)],
                constant_values=-1,
            )
            which = 0
            for axis in axes:
                which = which * scope.sizes[axis] + at[axis]
            size = scope.part(d, axes)
            part = np.take(part, range(which * size, (which + 1) * size), i)
        found[place] = part.ravel()
    return found


@st.composite
def groups(draw):
    """Two ways to factor a number into dims, with a split of the first and one for the second."""
    total = draw(st.sampled_from([1, 6, 12, 24, 36, 16, 10, 7]))

    def split(of):
        placed = [[] for _ in of]
        for axis in draw(st.permutations(sorted(MESH))):
            at = draw(st.integers(-1, len(of) - 1))
            if at >= 0:
                placed[at].append(axis)
        return tuple(map(tuple, placed))

    old, new = (draw(factors(total, names)) for names in ("abc", "vwx"))
    return Group(old, new), split(old), split(new), draw(st.sampled_from(["pad", "error"]))


@given(groups())
def test_a_kept_split_leaves_every_element_where_it_is_or_in_a_run_next_to_it(drawn):
    group, before, wanted, uneven = drawn
    scope = Scope(Layout(["a, v -> m, n", "b -> n"], mesh=MESH, uneven=uneven), MESH, "test")
    after = kept(
        [group],
        dict(zip(group.old, before, strict=True)),
        dict(zip(group.new, wanted, strict=True)),
        scope,
    )
    if after is None:
        return
    after = tuple(after[d] for d in group.new)
    assert sorted(a for axes in after for a in axes) == sorted(a for axes in before for a in axes)
    have, want = owned(group.old, before, scope), owned(group.new, after, scope)
    lengths = len(next(iter(have.values()))), len(next(iter(want.values())))
    if lengths[0] == lengths[1]:
        assert all(np.array_equal(have[place], want[place]) for place in have)
        return
    (axes,) = [axes for axes in before if axes]
    parts = {
        sum(
            place[list(MESH).index(a)] * prod(MESH[b] for b in axes[i + 1 :])
            for i, a in enumerate(axes)
        ): place
        for place in have
    }
    made = {j: np.full(lengths[1], -1) for j in parts}
    for p in runs(group, *lengths, len(parts)):
        made[p.target][p.write : p.write + p.length] = have[parts[p.source]][
            p.read : p.read + p.length
        ]
    assert all(np.array_equal(made[j], want[place]) for j, place in parts.items())


@given(groups())
def test_there_is_always_a_way(drawn):
    group, now, then, uneven = drawn
    scope = Scope(Layout(mesh=MESH, uneven=uneven), MESH, "test")
    before, after = best_splits(now, then, group.old, group.new, [group], scope)
    assert len(before) == len(group.old) and len(after) == len(group.new)


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
