"""slice, pad, split, concat, stack and unstack do what numpy does and move no more than needed."""

from collections import Counter

import numpy as np

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, layout
from tests.ops.along import assert_all_same, assert_as_numpy, every_layout


def v(size):
    return md.Dim("v", size)


def padded(x, before, after, value=0):
    return np.pad(x, [(0, 0), (before, after), (0, 0)], constant_values=value)


def cuts(x, a, b, c):
    """Of dims with at least 5, 11 and 3 elements."""
    parts, rest = md.split(x, b, [v(1), v(7), v(b.size - 8)]), md.Dim("w", b.size - 3)
    return {
        "slice": md.slice(x, b, 3, v(6)),
        "slice of the end": md.slice(x, "b", b.size - 2, v(2)),
        "slice of everything": md.slice(x, b, 0, b),
        "pad": md.pad(x, b, 3, 2, value=2, out="v"),
        "pad of nothing": md.pad(x, b, out="w"),
        "pad to a Dim": md.pad(x, b, 0, 40, out=md.Dim("w", b.size + 40)),
        "split": md.split(x, b, [v(3), rest])[1],
        "split in many": md.concat(parts[::-1], "v", out="w"),
        "concat": md.concat([x, x * 2], "b", out="v"),
        "concat of unequal ones": md.concat(
            [md.slice(x, b, 2, v(5)), md.rename(x, b, "v")], "v", out="w"
        ),
        "concat of one": md.concat([x], b),
        "stack": md.stack([x, x * 2, x], "v"),
        "unstack": md.unstack(x, b)[4],
        "unstack and stack": md.stack(md.unstack(x, "c")[::-1], c),
    }


def of_numpy(x, a, b, c):
    return {
        "slice": x[:, 3:9],
        "slice of the end": x[:, -2:],
        "slice of everything": x,
        "pad": padded(x, 3, 2, 2),
        "pad of nothing": x,
        "pad to a Dim": padded(x, 0, 40),
        "split": x[:, 3:],
        "split in many": np.concatenate([x[:, 8:], x[:, 1:8], x[:, :1]], 1),
        "concat": np.concatenate([x, x * 2], 1),
        "concat of unequal ones": np.concatenate([x[:, 2:7], x], 1),
        "concat of one": x,
        "stack": np.stack([x, x * 2, x]),
        "unstack": x[:, 4],
        "unstack and stack": x[..., ::-1].transpose(2, 0, 1),
    }


def test_cuts_are_those_of_numpy():
    assert_as_numpy(cuts, of_numpy)


@every_layout
def test_cuts_are_the_same_lowered(rules):
    assert_all_same(cuts, rules)


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

    rules = layout("a -> m", "b -> n", mesh={"m": 2, "n": 4})
    assert_same(run, data(a, b), layout=rules)


def test_concat_puts_together_tensors_whose_dims_lie_differently():
    a, b, c = dims(a=8, b=16, c=4)
    run = lambda x, y: md.concat([x, md.transpose(y, (b, c, a)), md.slice(y, b, 0, 8)], "b")
    x, y = data(a, b, c), data(a, b, c, seed=9)
    assert np.array_equal(run(x, y).array[:, 16:32], y.array)
    assert_same(run, x, y, layout=layout("b -> m", "a -> n", mesh={"m": 4, "n": 2}))


A, B = dims(a=16, b=32)
X, Y, ROW = data(A, B), data(A, B, seed=2), A.size * 4


def moved(fn, *args, rules=("b -> m", "v? -> m", "w? -> m"), uneven="pad"):
    """Bytes that the forward pass moves, by operation, where `b` lies in blocks of 8."""
    under = layout(*rules, mesh={"m": 4}, uneven=uneven)
    found = Counter()
    for c in md.lower(fn, under, dims=("v", "w")).program(*args).collectives:
        found[c.operation] += c.bytes
    return found


def test_a_cut_moves_no_more_than_the_busiest_device_must():
    """With `b` in blocks of 8: 0-7, 8-15, 16-23, 24-31."""
    (eight,) = dims(b=8)
    for fn, columns in (
        # 4-9, 10-15, 16-21, 22-27: the first and the last lack 2.
        (lambda x, y: md.slice(x, B, 4, v(24)), 2),
        # The second device has all and gives away 3 x 2.
        (lambda x, y: md.slice(x, B, 8, v(8)), 6),
        # -8-1, 2-11, 12-21, 22-31: the second lacks 2-7.
        (lambda x, y: md.pad(x, B, 8, 0, out=v(40)), 6),
        # 0-8, 9-17, 18-26, 27-35: the third lacks 24-26.
        (lambda x, y: md.pad(x, B, 0, 4, out=v(36)), 3),
        # The second and the third lack all of their blocks of 16.
        (lambda x, y: md.concat([x, y], B, out=v(64)), 16),
        # The slice sends 6; then the third lacks 24-29.
        (lambda x, y: md.concat([x, md.slice(y, B, 0, eight)], "b", out=v(40)), 6 + 6),
        (lambda x, y: md.split(x, B, [v(16), md.Dim("w", 16)]), 8),
        (lambda x, y: md.stack([x, y], "v"), 0),
    ):
        assert moved(fn, X, Y) == ({"ppermute": columns * ROW} if columns else {})


def test_a_slice_that_is_whole_gathers_the_slice_and_never_the_dim():
    found = moved(lambda x: md.slice(x, B, 4, v(4)), X, rules=("b -> m",), uneven="error")
    assert found == {"ppermute": 4 * ROW - ROW, "all_gather": 4 * ROW}


def test_elements_of_a_split_dim_come_by_one_gather_or_pass_their_axis_on():
    run = lambda x: [t * 2 for t in md.unstack(x, B)]
    for rules, operation in ((["b -> m"], "all_gather"), (["b -> m", "a -> m"], "all_to_all")):
        found = collectives(run, X, layout=layout(*rules, mesh={"m": 4}))
        assert found == {(operation, ("m",)): 1}
