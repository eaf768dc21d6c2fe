"""rename, transpose, broadcast and reshape do what numpy and einops do, whatever is split."""

from itertools import cycle

import einops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, every, layout
from tests.splits.factors import factors

A, B, C = dims(a=64, b=64, c=8)
X = data(A, B, C)
MESHES = ({"m": 2, "n": 4}, {"n": 4, "m": 2})
RULES = {
    "inner over both, minor first": ("b -> n, m",),
    "priority": ("b -> m", "a -> m", "c -> n"),
    "results": ("f? -> n", "g? -> m", "ab? -> m", "a -> n"),
    "results first, all axes": ("f? -> m, n", "ab? -> n, m", "z? -> m", "b -> m", "a -> n"),
}
LAYOUTS = {
    name: layout(*rules, mesh=mesh)
    for (name, rules), mesh in zip(RULES.items(), cycle(MESHES), strict=False)
}

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


@every(LAYOUTS, "priority", "results", "results first, all axes")
def test_patterns_are_the_same_lowered(rules):
    run = lambda x: {p: md.reshape(x, p, **sizes) for p, sizes in PATTERNS.items()}
    assert_same(run, X, layout=rules)


def test_a_merged_dim_is_called_by_its_parts_or_as_told():
    assert md.reshape(X, "a b c -> (a b) c").dims == (md.Dim("a_b", 4096), C)
    rows = md.Dim("rows", 4096)
    assert md.reshape(X, "a b c -> (a b) c", a_b=rows).dims == (rows, C)


# Dims of a tensor, dims to give it, and rules: every way in which old and new dims can lie across
# each other.
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
    "two groups": (
        dict(p=4, q=6, k=2),
        dict(r=2, s=2, t=12),
        ["p -> m", "q -> n", "t -> n", "s -> m"],
    ),
    "a kept dim in between": (
        dict(p=4, k=2, q=6),
        dict(r=24, k=2),
        ["k -> m", "p -> n", "r -> n, m"],
    ),
    "a kept dim takes the axis": (dict(p=4, k=2, q=6), dict(k=2, r=24), ["p -> m", "k -> m"]),
    "ones": (dict(i=1, p=4, j=1), dict(o=1, r=4, u=1), ["p -> m", "r -> m", "o -> l", "i -> l"]),
    "ones alone": (dict(i=1), dict(o=1, u=1), ["i -> l"]),
    "to no dims": (dict(i=1), {}, ["i -> l"]),
    "from no dims": ({}, dict(o=1), ["o -> l"]),
    "one goes": (dict(i=1, p=4), dict(p=4), ["i -> l", "p -> m"]),
}


@pytest.mark.parametrize("name", REGROUPED)
def test_regrouped_dims_are_the_same_lowered(name):
    before, after, rules = REGROUPED[name]
    x, out = data(*dims(**before)), dims(**after)
    kept = [d for d in out if d in x.dims]
    order = [d for d in x.dims if d not in kept] + kept
    expected = np.asarray(md.transpose(x, order).array)
    middle = [d for d in out if d not in kept] + kept
    expected = expected.reshape([d.size for d in middle]).transpose([middle.index(d) for d in out])
    assert np.array_equal(md.reshape(x, out).array, expected)
    assert_same(
        lambda x: md.reshape(x, out), x, layout=layout(*rules, mesh={"m": 2, "n": 2, "l": 1})
    )


FREE = {
    "split, outer dim keeps the axis": (
        ["a -> m", "f -> m"],
        lambda x: md.reshape(x, "(f g) b c -> f g b c", g=8),
    ),
    "merged, outer dim keeps the axis": (
        ["a -> m", "a_b -> m"],
        lambda x: md.reshape(x, "a b c -> (a b) c"),
    ),
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
    run = lambda x: md.rename(x, {"a": "whole", "b": "memory"})
    assert collectives(run, X, layout=rules) == {("all_to_all", ("m",)): 1}


# What a regrouping moves, in bytes on each device. Dims b=8, t=16, h=4, k=6 of float32.
B8, T16, H4, K6 = dims(b=8, t=16, h=4, k=6)
BHTK = data(B8, H4, T16, K6)
SPLITS = {"data": 2, "model": 2}
merged = lambda x: md.reshape(x, "b h t k -> (b h) t k")
apart = lambda x: md.reshape(x, "b h t k -> b t (h k)", h_k=md.Dim("d", 24))
PART = 16 * 6 * 4  # of a row and a head
MOVES = {
    "heads apart": (
        ["b -> data", "d -> model", "h -> model"],
        lambda x: md.reshape(apart(x), "b t (h k) -> b h t k", h=4),
        {},
    ),
    "an inner split passes to the outer dim": (
        ["h -> model", "b_h -> model"],
        merged,
        {"all_to_all": 8 * 2 * PART},
    ),
    "an inner split passes to a kept dim": (
        ["b, b_h -> data", "h -> model", "t -> model"],
        merged,
        {"all_to_all": 4 * 2 * PART},
    ),
    "both meet": (
        ["b_h -> data, model", "b -> data", "h -> model"],
        merged,
        {"all_to_all": 4 * 2 * PART},
    ),
    "an inner split that nothing keeps": (["h -> model"], merged, {"all_gather": 8 * 4 * PART}),
    "a rename with another split": (
        ["h -> model", "k -> model"],
        lambda x: md.rename(x, "h", "z"),
        {"all_to_all": 8 * 2 * PART},
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_regrouping_moves_a_split_once_and_gathers_only_what_is_to_be_whole(name):
    rules, fn, expected = MOVES[name]
    program, _ = assert_same(
        fn, BHTK, layout=layout(*rules, mesh=SPLITS), dims=("d", "b_h", "t", "k"), gradients=False
    )
    assert {c.operation: c.bytes for c in program.collectives} == expected


def test_runs_that_end_elsewhere_only_exchange_their_ends():
    """33 rows of 8 over two devices are 17 and 16.

    As 264 elements they are 132 each, of which the second lacks 4.
    """
    p, q = dims(p=33, q=8)
    rules = layout("p, z -> m", mesh={"m": 2}, uneven="pad")
    run = lambda x: md.tanh(md.reshape(md.cos(x), (md.Dim("z", 264),)))
    program, _ = assert_same(run, data(p, q), layout=rules)
    hops = [c.bytes for c in program.collectives if c.operation == "ppermute"]
    assert hops == [4 * 4, 4 * 4]  # forward and backward


@st.composite
def regroupings(draw):
    """Dims, dims of as many elements, and a layout that splits any of them, evenly or not."""
    total = draw(st.sampled_from([6, 12, 24, 16, 10]))

    kept = dims(k=draw(st.sampled_from([4, 6, 3])))
    old, new = (draw(factors(total, names)) for names in ("abc", "vwx"))
    mesh = draw(st.sampled_from([{"m": 2, "n": 2}, {"n": 2, "m": 4}, {"m": 3, "n": 2}, {"m": 8}]))
    pairs = st.tuples(st.sampled_from("abckvwx"), st.sampled_from(sorted(mesh)))
    rules = draw(st.lists(pairs, min_size=1, max_size=4))
    at = draw(st.integers(0, len(new)))
    under = layout(*(f"{d}? -> {axis}" for d, axis in rules), mesh=mesh, uneven="pad")
    return old, kept, new[:at] + kept + new[at:], under


@settings(max_examples=max(5, settings.default.max_examples // 5))
@given(regroupings())
def test_any_regrouping_under_any_layout_is_that_of_numpy(drawn):
    old, kept, out, rules = drawn
    x = data(*old, *kept)
    new = tuple(d for d in out if d not in kept)
    expected = np.reshape(x.array, [d.size for d in (*new, *kept)])
    assert np.array_equal(md.transpose(md.reshape(x, out), (*new, *kept)).array, expected)
    assert_same(lambda x: md.tanh(md.reshape(md.cos(x), out)), x, layout=rules)


def others(x):
    f, parts = md.Dim("f", 8), md.reshape(x, "a b (u v) -> a b u v", u=2)
    return {
        "rename": md.rename(x, A, "z"),
        "rename to a Dim": md.rename(x, "a", md.Dim("z", 64)),
        "rename, swapped": md.rename(x, {"a": "b", B: A}),
        "rename in a circle": md.rename(parts, {"a": "b", "b": "a", "v": "u", "u": "v"}),
        "transpose": md.transpose(x, (C, "a", B)),
        "broadcast": md.broadcast(md.sum(x, (A, C)), (C, f, B)),
        "broadcast of a number": md.broadcast(md.sum(x), (f, B)),
        "broadcast of a constant": md.broadcast(md.iota(B), (B, f)) * md.sum(x),
    }


@every(LAYOUTS, "priority", "results", "inner over both, minor first")
def test_renamed_and_broadcast_dims_are_the_same_lowered(rules):
    assert_same(others, X, layout=rules, dims=("z", "f", "g", "ab"))
