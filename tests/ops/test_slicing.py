"""slice, pad, split, concat, stack and unstack do what numpy does and move no more than needed."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, layout
from tests.ops.along import assert_all_same, assert_as_numpy, every_layout


def v(size):
    return md.Dim("v", size)


def padded(x, before, after, value=0):
    return np.pad(x, [(0, 0), (before, after), (0, 0)], constant_values=value)


# Of dims a, b, c with at least 5, 11 and 3 elements.
CUTS = {
    "slice": (lambda x, a, b, c: md.slice(x, b, 3, v(6)), lambda x, a, b, c: x[:, 3:9]),
    "slice of the end": (
        lambda x, a, b, c: md.slice(x, "b", b.size - 2, v(2)),
        lambda x, a, b, c: x[:, -2:],
    ),
    "slice of everything": (lambda x, a, b, c: md.slice(x, b, 0, b), lambda x, a, b, c: x),
    "pad": (
        lambda x, a, b, c: md.pad(x, b, 3, 2, value=2, out="v"),
        lambda x, a, b, c: padded(x, 3, 2, 2),
    ),
    "pad of nothing": (lambda x, a, b, c: md.pad(x, b, out="w"), lambda x, a, b, c: x),
    "pad to a Dim": (
        lambda x, a, b, c: md.pad(x, b, 0, 40, out=md.Dim("w", b.size + 40)),
        lambda x, a, b, c: padded(x, 0, 40),
    ),
    "split": (
        lambda x, a, b, c: md.split(x, b, [v(3), md.Dim("w", b.size - 3)])[1],
        lambda x, a, b, c: x[:, 3:],
    ),
    "split in many": (
        lambda x, a, b, c: md.concat(
            md.split(x, b, [v(1), v(7), v(b.size - 8)])[::-1], "v", out="w"
        ),
        lambda x, a, b, c: np.concatenate([x[:, 8:], x[:, 1:8], x[:, :1]], 1),
    ),
    "concat": (
        lambda x, a, b, c: md.concat([x, x * 2], "b", out="v"),
        lambda x, a, b, c: np.concatenate([x, x * 2], 1),
    ),
    "concat of unequal ones": (
        lambda x, a, b, c: md.concat([md.slice(x, b, 2, v(5)), md.rename(x, b, "v")], "v", out="w"),
        lambda x, a, b, c: np.concatenate([x[:, 2:7], x], 1),
    ),
    "concat of one": (lambda x, a, b, c: md.concat([x], b), lambda x, a, b, c: x),
    "stack": (
        lambda x, a, b, c: md.stack([x, x * 2, x], "v"),
        lambda x, a, b, c: np.stack([x, x * 2, x]),
    ),
    "unstack": (lambda x, a, b, c: md.unstack(x, b)[4], lambda x, a, b, c: x[:, 4]),
    "unstack and stack": (
        lambda x, a, b, c: md.stack(md.unstack(x, "c")[::-1], c),
        lambda x, a, b, c: x[..., ::-1].transpose(2, 0, 1),
    ),
}


def test_cuts_are_those_of_numpy():
    assert_as_numpy(CUTS)


@every_layout
def test_cuts_are_the_same_lowered(sizes, rules):
    assert_all_same(CUTS, sizes, rules)


def test_cuts_under_the_dim_s_own_name_are_the_same_lowered():
    a, b = dims(a=8, b=16)

    def run(x):
        halves = md.split(x, b, 2)
        return (
            md.concat(halves[::-1], b),
            md.slice(x, b, 4, 8),
            md.pad(x, b, 3, 5, 1),
            md.concat([x, halves[0]], "b"),
        )

    for rules in (
        layout("b -> m", mesh={"m": 8}),
        layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}),
    ):
        assert_same(run, data(a, b), layout=rules)


def test_concat_puts_together_tensors_whose_dims_lie_differently():
    a, b, c = dims(a=8, b=16, c=4)
    run = lambda x, y: md.concat([x, md.transpose(y, (b, c, a)), md.slice(y, b, 0, 8)], "b")
    x, y = data(a, b, c), data(a, b, c, seed=9)
    assert np.array_equal(run(x, y).array[:, 16:32], y.array)
    for rules in (
        layout("b -> m", "a -> n", mesh={"m": 4, "n": 2}),
        layout("c -> n", mesh={"n": 4}),
    ):
        assert_same(run, x, y, layout=rules)


def test_cuts_of_other_dtypes_are_the_same_lowered():
    a, b = dims(a=3, b=12)

    def run(x):
        for dtype in (jnp.bool_, jnp.int8, jnp.uint32, jnp.bfloat16):
            y = md.cast(x * 9, dtype)
            yield (
                md.slice(y, b, 1, v(7)),
                md.pad(y, b, 2, 3, 1, out="v"),
                md.concat([y, y], b, out="v"),
                md.stack([y, y], "v"),
            )

    for rules in (
        layout("b -> m", mesh={"m": 4}),
        layout("b, v -> m", mesh={"m": 8}, uneven="pad"),
    ):
        assert_same(lambda x: list(run(x)), data(a, b), layout=rules, gradients=False)


def test_linear_cuts_keep_a_sum_pending():
    a, b = dims(a=4, b=8)

    def run(x):
        total = md.sum(x, a)
        first, second = md.split(total, b, [v(3), md.Dim("w", 5)])
        kept = [
            md.slice(total, b, 2, v(4)),
            md.pad(total, b, 1, 1, out="v"),
            md.stack([total, total], "v"),
            first,
            second,
        ]
        kept += md.unstack(total, b)
        assert all(t.pending == ("m",) for t in kept if t.placement), kept
        assert not md.pad(total, b, 1, 1, value=1, out="v").pending
        return kept

    assert_same(
        run, data(a, b), layout=layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}, uneven="pad")
    )


A, B = dims(a=16, b=32)
X, Y, ROW = data(A, B), data(A, B, seed=2), A.size * 4


def moved(fn, *args, parts=4, rules=("b -> m", "v? -> m", "w? -> m"), uneven="pad"):
    """Bytes that the forward pass moves, by operation, where `b` lies in blocks of 8."""
    program = md.lower(
        fn, layout(*rules, mesh={"m": parts}, uneven=uneven), dims=("v", "w")
    ).program(*args)
    found = {}
    for c in program.collectives:
        found[c.operation] = found.get(c.operation, 0) + c.bytes
    return found


# Columns that the busiest device sends or receives. With `b` in blocks of 8: 0-7, 8-15, 16-23,
# 24-31.
COLUMNS = {
    "slice, blocks of 6 from 4 on": (
        lambda x, y: md.slice(x, B, 4, v(24)),
        2,
    ),  # 4-9, 10-15, 16-21, 22-27: the first and the last lack 2
    "slice of one block": (
        lambda x, y: md.slice(x, B, 8, v(8)),
        6,
    ),  # the second device has all and gives away 3 x 2
    "pad by a block": (
        lambda x, y: md.pad(x, B, 8, 0, out=v(40)),
        6,
    ),  # -8-1, 2-11, 12-21, 22-31: the second lacks 2-7
    "pad at the end": (
        lambda x, y: md.pad(x, B, 0, 4, out=v(36)),
        3,
    ),  # 0-8, 9-17, 18-26, 27-35: the third lacks 24-26
    "concat": (
        lambda x, y: md.concat([x, y], B, out=v(64)),
        16,
    ),  # the second and the third lack all of their blocks of 16
    "concat to one side": (
        lambda x, y: md.concat([x, md.slice(y, B, 0, md.Dim("b", 8))], "b", out=v(40)),
        6 + 6,
    ),  # the slice sends 6; then the third lacks 24-29
    "split": (lambda x, y: md.split(x, B, [v(16), md.Dim("w", 16)]), 8),
    "stack": (lambda x, y: md.stack([x, y], "v"), 0),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_cut_moves_no_more_than_the_busiest_device_must(name):
    fn, columns = COLUMNS[name]
    assert moved(fn, X, Y) == ({"ppermute": columns * ROW} if columns else {})


def test_a_slice_that_is_whole_gathers_the_slice_and_never_the_dim():
    found = moved(lambda x: md.slice(x, B, 4, v(4)), X, rules=("b -> m",), uneven="error")
    assert found == {"ppermute": 4 * ROW - ROW, "all_gather": 4 * ROW}


def test_elements_of_a_split_dim_come_by_one_gather_or_pass_their_axis_on():
    run = lambda x: [t * 2 for t in md.unstack(x, B)]
    assert collectives(run, X, layout=layout("b -> m", mesh={"m": 4})) == {
        ("all_gather", ("m",)): 1
    }
    assert collectives(run, X, layout=layout("b -> m", "a -> m", mesh={"m": 4})) == {
        ("all_to_all", ("m",)): 1
    }
