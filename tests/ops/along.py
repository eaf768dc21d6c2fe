"""For tests of ops that work along a dim `b`: layouts that split it in every way, evenly
and not.
"""

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
every_layout = every(LAYOUTS, "the dim", "uneven over both")


def assert_as_numpy(ops) -> None:
    """Each op, a pair of one on Tensors and one on arrays, called with a, b, c: they give
    the same on one device.
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
    """All of the ops at once, lowered under `rules`, of a tensor whose padding holds
    something else than zeros.
    """
    run = lambda x: {name: ours(md.cos(x), *sizes) for name, (ours, _) in ops.items()}
    assert_same(run, data(*sizes), layout=rules, dims=("b", "v", "w"), **how)
