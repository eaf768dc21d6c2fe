"""rename, transpose, broadcast and reshape: what numpy and einops do, whichever of the dims are split."""

from itertools import cycle

import einops
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, layout

A, B, C = dims(a=64, b=64, c=8)
X = data(A, B, C)
MESHES = ({"m": 2, "n": 4}, {"n": 4, "m": 2})
RULES = {
    "none": (),
    "outer": ("a -> m",),
    "inner": ("b -> n",),
    "outer over both": ("a -> m, n",),
    "inner over both, minor first": ("b -> n, m",),
    "two dims": ("c -> m", "a -> n"),
    "priority": ("b -> m", "a -> m", "c -> n"),
    "results": ("f? -> n", "g? -> m", "ab? -> m", "a -> n"),
    "results first, all axes": ("f? -> m, n", "ab? -> n, m", "z? -> m", "b -> m", "a -> n"),
}
LAYOUTS = {name: layout(*rules, mesh=mesh) for (name, rules), mesh in zip(RULES.items(), cycle(MESHES), strict=False)}

PATTERNS = {
    "a b c -> a b c": {},
    "a b c -> c a b": {},
    "a b c -> (a b) c": {"a_b": md.Dim("ab", 64 * 64)},
    "a b c -> c (b a)": {},
    "a b c -> (a b c)": {},
    "a b c -> (c b) a": {},
    "(f g) b c -> f g b c": {"g": 8},
    "(f g) b c -> g b (f c)": {"f": 8},
    "(f a) (b z) c -> z (a c) (f b)": {"a": 8, "z": 8},
    "(f g z) b c -> z g f b c": {"g": 2, "z": 4},
    "a (p f) c -> a (c p) f": {"f": 8},
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_those_of_einops(pattern):
    sizes = PATTERNS[pattern]
    given = {name: n for name, n in sizes.items() if isinstance(n, int)}
    expected = einops.rearrange(np.asarray(X.array), pattern, **given)
    assert np.array_equal(md.reshape(X, pattern, **sizes).array, expected)


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_patterns_are_the_same_lowered(rules):
    assert_same(lambda x: {p: md.reshape(x, p, **sizes) for p, sizes in PATTERNS.items()}, X, layout=rules)


def test_a_merged_dim_is_called_by_its_parts_or_as_told():
    assert md.reshape(X, "a b c -> (a b) c").dims == (md.Dim("a_b", 4096), C)
    assert md.reshape(X, "a b c -> (a b) c", a_b=md.Dim("rows", 4096)).dims == (md.Dim("rows", 4096), C)


# Dims of a tensor, dims to give it, and rules: every way in which old and new dims can lie across each other.
REGROUPED = {
    "6 of 3x2": (dict(p=3, q=2), dict(z=6), ["z -> m"]),
    "6 of 3x2, inner split": (dict(p=3, q=2), dict(z=6), ["q -> m", "z -> m"]),
    "6 of 2x3": (dict(p=2, q=3), dict(z=6), ["p -> m", "z -> m"]),
    "3x2 of 6": (dict(z=6), dict(p=3, q=2), ["z -> m", "q -> m"]),
    "2x3 of 6": (dict(z=6), dict(p=2, q=3), ["z -> m", "p -> m"]),
    "3x2 of 6, result whole": (dict(z=6), dict(p=3, q=2), ["z -> m"]),
    "4x3 of 6x2": (dict(p=6, q=2), dict(r=4, s=3), ["p -> m", "r -> m"]),
    "3x4 of 6x2": (dict(p=6, q=2), dict(r=3, s=4), ["p -> m", "s -> m"]),
    "2x9 of 6x3, the axis passes on": (dict(p=6, q=4), dict(r=2, s=12), ["q -> m", "p -> m"]),
    "two groups": (dict(p=4, q=6, k=2), dict(r=2, s=2, t=12), ["p -> m", "q -> n", "t -> n", "s -> m"]),
    "a kept dim in between": (dict(p=4, k=2, q=6), dict(r=24, k=2), ["k -> m", "p -> n", "r -> n, m"]),
    "a kept dim takes the axis": (dict(p=4, k=2, q=6), dict(k=2, r=24), ["p -> m", "k -> m"]),
    "ones": (dict(i=1, p=4, j=1), dict(o=1, r=4, u=1), ["p -> m", "r -> m", "o -> l", "i -> l"]),
    "ones alone": (dict(i=1), dict(o=1, u=1), ["i -> l"]),
    "to no dims": (dict(i=1), {}, ["i -> l"]),
    "from no dims": ({}, dict(o=1), ["o -> l"]),
    "one goes": (dict(i=1, p=4), dict(p=4), ["i -> l", "p -> m"]),
}


@pytest.mark.parametrize("name", REGROUPED)
@pytest.mark.parametrize("mesh", [{"m": 2, "n": 2, "l": 1}, {"l": 1, "n": 2, "m": 2}], ids=["m-n", "n-m"])
def test_regrouped_dims_are_the_same_lowered(name, mesh):
    before, after, rules = REGROUPED[name]
    x, out = data(*dims(**before)), dims(**after)
    kept = [d for d in out if d in x.dims]
    order = [d for d in x.dims if d not in kept] + kept
    expected = np.asarray(md.transpose(x, order).array)
    middle = [d for d in out if d not in kept] + kept
    expected = expected.reshape([d.size for d in middle]).transpose([middle.index(d) for d in out])
    assert np.array_equal(md.reshape(x, out).array, expected)
    assert_same(lambda x: md.reshape(x, out), x, layout=layout(*rules, mesh=mesh))


FREE = {
    "split, outer dim keeps the axis": (["a -> m", "f -> m"], lambda x: md.reshape(x, "(f g) b c -> f g b c", g=8)),
    "merged, outer dim keeps the axis": (["a -> m", "a_b -> m"], lambda x: md.reshape(x, "a b c -> (a b) c")),
    "renamed": (["a -> m", "z -> m"], lambda x: md.rename(x, "a", "z")),
    "transposed": (["a -> m"], lambda x: md.transpose(x, (C, B, A))),
    "broadcast": (["z -> m"], lambda x: md.broadcast(md.sum(x), (md.Dim("z", 8),))),
}


@pytest.mark.parametrize("name", FREE)
def test_regrouping_is_free_where_the_split_can_stay(name):
    rules, fn = FREE[name]
    assert collectives(fn, X, layout=layout(*rules, mesh={"m": 4})) == {}


def test_a_rename_that_moves_the_split_is_one_all_to_all():
    rules = layout("a -> m", "memory -> m", mesh={"m": 4})
    run = lambda x: md.rename(x, {"a": "whole", "b": "memory"})  # noqa: E731
    assert collectives(run, X, layout=rules) == {("all_to_all", ("m",)): 1}


OTHERS = {
    "rename": lambda x: md.rename(x, A, "z"),
    "rename to a Dim": lambda x: md.rename(x, "a", md.Dim("z", 64)),
    "rename, swapped": lambda x: md.rename(x, {"a": "b", B: A}),
    "rename in a circle": lambda x: md.rename(md.reshape(x, "a b (u v) -> a b u v", u=2), {"a": "b", "b": "a", "v": "u", "u": "v"}),
    "transpose": lambda x: md.transpose(x, (C, "a", B)),
    "broadcast": lambda x: md.broadcast(md.sum(x, (A, C)), (C, md.Dim("f", 8), B)),
    "broadcast of a number": lambda x: md.broadcast(md.sum(x), (md.Dim("f", 8), B)),
    "broadcast of a constant": lambda x: md.broadcast(md.iota(B), (B, md.Dim("f", 8))) * md.sum(x),
}


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_renamed_and_broadcast_dims_are_the_same_lowered(rules):
    names = ("z", "f", "g", "ab")
    assert_same(lambda x: {name: fn(x) for name, fn in OTHERS.items()}, X, layout=rules, dims=names)
