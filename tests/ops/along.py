"""Layouts that split a dim `b` unevenly, for tests of ops along it."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

import meshdsl as md
from tests.helpers import assert_same, data, dims, every, layout

EVEN, UNEVEN = dims(a=8, b=16, c=4), dims(a=5, b=11, c=3)
pads = partial(layout, uneven="pad")
LAYOUTS = {
    "uneven": pads("b -> n", "v?, w? -> n", "a -> m", mesh={"m": 2, "n": 4}),
    "mostly padding": pads("b -> m", "v? -> m", mesh={"m": 8}),
}
every_layout = every(LAYOUTS, "mostly padding")


def assert_as_numpy(ours, theirs) -> None:
    """A function of a Tensor gives on one device what one of its array does: dicts of results.

    Both are called with the dims a, b, c, or their sizes.
    """
    for sizes in (EVEN, UNEVEN):
        x = data(*sizes)
        expected = theirs(np.asarray(x.array), *(d.size for d in sizes))
        for name, y in jax.jit(lambda x, sizes=sizes: ours(x, *sizes))(x).items():
            np.testing.assert_allclose(y.array, expected[name], 1e-5, 1e-6, err_msg=name)


def assert_all_same(ours, rules) -> None:
    """The function, lowered under `rules`, of a tensor whose padding does not hold zeros."""
    run = lambda x: ours(md.cos(x), *UNEVEN)
    assert_same(run, data(*UNEVEN), layout=rules, dims=("b", "v", "w"))
