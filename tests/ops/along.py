"""Layouts that split a dim `b` in every way, evenly and not, for tests of ops along it."""

from __future__ import annotations

from functools import partial

import numpy as np

import meshdsl as md
from tests.helpers import assert_same, data, dims, every, layout

EVEN, UNEVEN = dims(a=8, b=16, c=4), dims(a=5, b=11, c=3)
BOTH, THREE = {"m": 2, "n": 4}, {"r": 2, "n": 2, "m": 2}
pads = partial(layout, uneven="pad")
LAYOUTS = {
    "the dim": (EVEN, pads("b -> n", "v? -> n", "w? -> m", mesh=BOTH)),
    "the dim, minor first": (EVEN, pads("b -> n, m", "v? -> n, m", mesh=BOTH)),
    "three axes": (EVEN, pads("a -> m", "b -> n", "c -> r", "v? -> r", mesh=THREE)),
    "uneven": (UNEVEN, pads("b -> n", "v?, w? -> n", "a -> m", mesh=BOTH)),
    "uneven over both": (UNEVEN, pads("b -> m, n", "w? -> n, m", mesh={"m": 3, "n": 2})),
    "mostly padding": (UNEVEN, pads("b -> m", "v? -> m", mesh={"m": 8})),
}
every_layout = every(LAYOUTS, "the dim", "the dim, minor first", "uneven over both")


def assert_as_numpy(ops) -> None:
    """Each op, a pair of one on Tensors and one on arrays, gives the same twice on one device.

    Both are called with the dims a, b, c, or their sizes.
    """
    for sizes in (EVEN, UNEVEN):
        x = data(*sizes)
        for name, (ours, theirs) in ops.items():
            found = md.transpose(y := ours(x, *sizes), y.dims).array
            np.testing.assert_allclose(
                found,
                theirs(np.asarray(x.array), *(d.size for d in sizes)),
                rtol=1e-5,
                atol=1e-6,
                err_msg=name,
            )


def assert_all_same(ops, sizes, rules, **how) -> None:
    """All ops at once, lowered under `rules`, of a tensor whose padding does not hold zeros."""
    run = lambda x: {name: ours(md.cos(x), *sizes) for name, (ours, _) in ops.items()}
    assert_same(run, data(*sizes), layout=rules, dims=("b", "v", "w"), **how)
