"""scatter, segment_sum and bincount do what loops over numpy arrays do, whatever is split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.scatter import bincount, scatter, segment_sum
from tests.helpers import (
    assert_same,
    collectives,
    data,
    dims,
    every,
    in_a_row,
    integers,
    layout,
    with_gradients,
)

A, C, V, I, J, W = dims(a=5, c=2, v=7, i=6, j=3, w=7)
HOW = ("add", "max", "min", "set")
X, UPDATES, MORE = data(A, V, C), data(C, I, A, seed=3), data(J, A, I, seed=5)
IDS = md.tensor(
    integers(I, A, below=9, seed=2).array - 1, (I, A)
)  # from -1 to 7: some outside of the dim
PLANES = integers(J, I, below=7, seed=4)
ROUND = [md.tensor(jnp.round(t.array * 2) / 2, t.dims) for t in (X, UPDATES)]  # many equal elements
LAYOUTS = {
    "two dims of indices": layout(
        "j? -> m", "i -> n", "w? -> m", mesh={"m": 2, "n": 4}, uneven="pad"
    ),
    "three axes": layout(
        "v -> n, m", "i -> r", "w? -> r", mesh={"r": 2, "m": 2, "n": 2}, uneven="pad"
    ),
}


def by_loops(x, ids, updates, how):
    """Scatter into an array [a, v, c] of updates [i, a, c] at ids [i, a], one after the other."""
    merges = {"add": np.add, "max": np.maximum, "min": np.minimum, "set": lambda _, u: u}
    x, merge = np.array(x), merges[how]
    for i, a in np.ndindex(ids.shape):
        if 0 <= ids[i, a] < x.shape[1]:
            x[a, ids[i, a]] = merge(x[a, ids[i, a]], updates[i, a])
    return x


@pytest.mark.parametrize("how", HOW)
def test_scatter_is_that_of_a_loop(how):
    updates = np.asarray(md.transpose(UPDATES, (I, A, C)).array)
    same = md.sum(UPDATES, C)
    repeated = np.repeat(np.asarray(md.transpose(same, (I, A)).array)[..., None], 2, 2)
    for u, array in ((UPDATES, updates), (same, repeated)):
        found = jax.jit(lambda x, ids, u: scatter(x, ids, u, V, how=how))(X, IDS, u)
        expected = by_loops(X.array, np.asarray(IDS.array), array, how)
        assert found.dims == X.dims
        np.testing.assert_allclose(found.array, expected, rtol=1e-6)


@every(LAYOUTS, "two dims of indices")
def test_scatters_are_the_same_lowered(rules):
    def run(x, updates, more, tied, ties, ids, planes):
        one = [scatter(x, ids, updates, V, how=how) for how in ("add", "set")]
        two = [scatter(x, planes, more, "v", how=how) for how in ("add", "max", "set")]
        ties = [scatter(tied, ids, ties, V, how=how) for how in ("max", "min")]
        truth = scatter(x > 0, md.cast(md.abs(ids), jnp.uint8), updates > 0, V, how="set")
        row = md.sum(updates, (I, C))
        repeated = [scatter(x, planes, row, V, how=how) for how in ("add", "set")]
        segments = [
            segment_sum(updates, ids, I, W),
            segment_sum(updates, ids, (I, "a"), W),
            bincount(ids, W),
            bincount(ids, W, weights=updates),
        ]
        return one, two, ties, truth, repeated, segments

    assert_same(run, X, UPDATES, MORE, ROUND[0], ROUND[1], IDS, PLANES, layout=rules)


@pytest.mark.parametrize("how", HOW)
def test_indices_along_several_dims_together_say_where_an_update_goes(how):
    """As along one dim, that of both merged."""
    merged = md.Dim("vc", V.size * C.size)

    def both(x, first, updates):
        ids, updates = (first, md.iota(I) % C.size), md.sum(updates, C)
        inside = (first >= 0) & (first < V.size)
        flat = md.where(inside, first * C.size + ids[1], -1)
        along_one = scatter(md.reshape(x, (A, merged)), flat, updates, merged, how=how)
        return scatter(x, ids, updates, (V, "c"), how=how), along_one

    found, expected = jax.jit(both)(X, IDS, UPDATES)
    np.testing.assert_allclose(found.array.reshape(5, -1), expected.array, rtol=1e-6)


ALONE = {
    "one dim and the rows": layout("v -> m", "a -> n", mesh={"m": 4, "n": 2}, uneven="pad"),
    "both dims": layout("v -> m", "c -> n", mesh={"m": 4, "n": 2}, uneven="pad"),
}


@every(ALONE, "one dim and the rows")
def test_one_update_for_each_element_is_written_where_it_is(rules):
    rows, at = data(A, C, seed=7), integers(A, below=9, seed=8) - 1

    def run(x, rows, at):
        both = (at, md.cast(at > 3, jnp.int32)), md.sum(rows, C), (V, C)
        truth = scatter(x > 0, at, rows > 0, V, how="set")
        return scatter(x, at, rows, V, how="set"), scatter(x, *both, how="set"), truth

    expected = np.array(X.array)
    for a, v in enumerate(np.asarray(at.array)):
        if 0 <= v < V.size:
            expected[a, v] = rows.array[a]
    assert np.array_equal(run(X, rows, at)[0].array, expected)
    assert_same(run, X, rows, at, layout=rules)


def test_one_update_for_each_element_moves_nothing():
    a, v = dims(a=4, v=8)
    args = data(a, v, C), data(a, C), integers(a, below=8)
    run = lambda x, rows, at: scatter(x, at, rows, v, how="set")
    rules = layout("v -> m", "a -> n", mesh={"m": 4, "n": 2})
    assert collectives(run, *args, layout=rules) == {}


def test_every_collective_of_a_gradient_is_in_a_row_of_the_record():
    """Six indices lie split over `p` alone at rest; cut over both, they come back by a gather."""
    a, b, c = dims(a=5, b=6, c=3)
    args = data(a, c), integers(b, below=5), data(b, c, seed=2)
    run = lambda x, ids, updates: scatter(x, ids, updates, a, how="max")
    rules = layout("b -> p, q", mesh={"p": 2, "q": 4}, uneven="pad")
    program, _ = assert_same(run, *args, layout=rules)
    assert not [found for found in program.collectives if not in_a_row(program, found)]
    assert collectives(with_gradients(run, args), *args, layout=rules)["all_gather", ("q",)] == 1


def test_the_last_update_wins_whatever_the_order_of_dims():
    x = md.tensor(jnp.zeros(2), (md.Dim("v", 2),))
    ids = md.tensor(jnp.ones((3, 6), jnp.int32), (J, I))
    updates = md.tensor(jnp.arange(18.0).reshape(3, 6), (J, I))
    set_in_x = jax.jit(lambda ids, updates: scatter(x, ids, updates, "v", how="set").array)
    put = lambda ids, updates: set_in_x(ids, updates).tolist()
    for order in ((I, J), (J, I)):
        assert put(md.transpose(ids, order), md.transpose(updates, order[::-1])) == [0, 17]
    early = md.tensor(ids.array.at[2, 5].set(7), (J, I))
    assert put(early, updates) == [0, 11]  # j=1, i=5: i counts first, then j


def test_gradients_go_where_the_elements_came_from():
    v, i = dims(v=3, i=4)
    x, ids = md.tensor(jnp.array([1.0, 2.0, 3.0]), (v,)), md.tensor(jnp.array([0, 0, 1, 5]), (i,))
    updates = md.tensor(jnp.array([4.0, 4.0, 2.0, 9.0]), (i,))
    weights = md.tensor(jnp.array([1.0, 10.0, 100.0]), (v,))
    expected = {
        "add": ([1, 10, 100], [1, 1, 10, 0]),
        "max": ([0, 10, 100], [0.5, 0.5, 0, 0]),  # updates share a tie, and one with x goes to x
        "min": ([1, 10, 100], [0, 0, 0, 0]),
        "set": ([0, 0, 100], [0, 1, 10, 0]),
    }
    loss = lambda t, how: md.sum(scatter(t[0], ids, t[1], v, how=how) * weights).array
    slopes = jax.jit(lambda t: {how: jax.grad(loss)(t, how) for how in expected})((x, updates))
    for how, grads in expected.items():
        assert tuple(g.array.tolist() for g in slopes[how]) == grads, how


def test_a_nan_stays_in_a_maximum():
    v, i = dims(v=2, i=2)
    nan, rules = md.tensor(jnp.array([jnp.nan, 1.0]), (v,)), layout("i -> m", mesh={"m": 2})
    run = lambda x, u: [scatter(x, md.iota(i), u, v, how=how) for how in ("max", "min")]
    for x, u in (
        (nan, md.tensor(jnp.zeros(2), (i,))),
        (md.tensor(jnp.zeros(2), (v,)), md.rename(nan, v, "i")),
    ):
        assert_same(run, x, u, layout=rules, gradients=False)
        assert [np.isnan(t.array).tolist() for t in jax.jit(run)(x, u)] == [[True, False]] * 2


def test_sums_by_segment_are_those_of_numpy():
    ids, x = np.asarray(IDS.array), np.asarray(md.transpose(UPDATES, (I, A, C)).array)
    inside = (ids >= 0) & (ids < 7)
    assert np.array_equal(bincount(IDS, W).array, np.bincount(ids[inside], minlength=7))
    found = segment_sum(UPDATES, IDS, (I, A), W)
    assert set(found.dims) == {C, W}
    for c in range(2):
        expected = np.bincount(ids[inside], x[..., c][inside], minlength=7)
        np.testing.assert_allclose(
            md.transpose(found, (C, W)).array[c], expected, rtol=1e-5, atol=1e-6
        )
    by_row = md.transpose(segment_sum(UPDATES, IDS, I, W), (A, C, W)).array
    assert np.allclose(by_row.sum(0), md.transpose(found, (C, W)).array, atol=1e-6)


COUNTS = {
    "into a split dim": ("v -> m", {how: {} for how in HOW}),
    "split updates": (
        "i -> m",
        {
            "add": {("psum", ("m",)): 1},
            "max": {("pmax", ("m",)): 1},
            "set": {("pmax", ("m",)): 1, ("psum", ("m",)): 1},
        },
    ),
}


@pytest.mark.parametrize("rule, expected", COUNTS.values(), ids=COUNTS)
def test_only_what_updates_come_to_travels(rule, expected):
    v, i = dims(v=8, i=8)
    x, ids, updates = data(v, C), integers(i, below=8), data(i, C)
    for how, counts in expected.items():
        run = lambda x, ids, u, how=how: scatter(x, ids, u, v, how=how)
        assert collectives(run, x, ids, updates, layout=layout(rule, mesh={"m": 4})) == counts
    spread, run = layout("i -> m", "v -> m", mesh={"m": 4}), lambda x, ids, u: scatter(x, ids, u, v)
    found = collectives(run, x, ids, updates, layout=spread)
    assert found == {("psum_scatter", ("m",)): 1}


def test_a_lone_update_of_another_part_changes_nothing():
    """XLA:CPU may read `x` beyond its part where a scatter into a slice has an index outside."""
    v, i = dims(v=8, i=1)
    x, ids, update = data(v, C), md.tensor(jnp.array([7]), (i,)), data(C, i)
    run = lambda x, ids, u: [scatter(x, ids, u, v, how=how) for how in HOW]
    assert_same(run, x, ids, update, layout=layout("v -> m", mesh={"m": 3}, uneven="pad"))


def test_an_index_without_dims_puts_one_element():
    v = md.Dim("v", 8)
    x, row, ids = data(v, C), data(C, seed=2), [md.tensor(i, ()) for i in (5, 8)]
    run = lambda x, u: [scatter(x, i, u, v, how=how) for how in HOW for i in ids]
    *_, inside, outside = jax.jit(run)(x, row)
    assert np.array_equal(inside.array, x.array.at[5].set(row.array))
    assert np.array_equal(outside.array, x.array)
    assert_same(run, x, row, layout=layout("v -> m", mesh={"m": 4}))
