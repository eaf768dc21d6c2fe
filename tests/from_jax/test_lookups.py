"""Lookups, scatters, windows, convolutions and orders in their many forms equal plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshdsl as md
from tests.from_jax.test_primitives import LAYOUTS, check
from tests.helpers import distance

ROWS = jnp.arange(4)
IDS = jnp.array([3, 0, 1, -2])


def whole(x, most):
    """Indices that are computed, some of them outside."""
    return (jnp.abs(jnp.sin(x * 3)) * most).astype(jnp.int32)


def windows(x, y):
    starts = whole(y[:4, 0], 7)
    return jax.vmap(lambda row, start: lax.dynamic_slice(row, (start,), (3,)))(x, starts)


def updated(x, y):
    starts = whole(y[:4, 0], 7)
    put = lambda row, new, start: lax.dynamic_update_slice(row, new, (start,))
    return jax.vmap(put)(x, y[:3].T, starts)


def unaligned(x, y):
    dims = lax.GatherDimensionNumbers((1, 2), (), (0, 1))
    starts = jnp.stack([whole(y[:, 0], 5), whole(y[:, 1], 9)], 1)
    return lax.gather(x, starts, dims, (2, 3), mode="fill", fill_value=0.5)


def placed(x, y):
    dims = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    starts = jnp.stack([whole(y[:, 0], 5), whole(y[:, 1], 9)], 1)
    return lax.scatter_add(x, starts, y[:, :3, None] * jnp.ones(2), dims, mode="drop")


def experts(x, y):
    """Tokens to the places that a router gives them, and back."""
    weights, chosen = lax.top_k(jax.nn.softmax(x), 2)
    hot = jax.nn.one_hot(chosen, 8)
    place = (jnp.cumsum(hot.reshape(8, 8), 0) * hot.reshape(8, 8)).sum(-1).astype(int) - 1
    buffer = jnp.zeros((8, 3, 8)).at[chosen.reshape(-1), place].add(jnp.repeat(x, 2, 0))
    out = jnp.einsum("epd,dc->epc", buffer, y)[chosen.reshape(-1), place]
    return (out.reshape(4, 2, 4) * weights[..., None]).sum(1)


def cached(x, y):
    """One step of decoding into a cache, at a place for each row."""
    cache = jnp.zeros((4, 6, 8))
    return cache.at[ROWS, whole(y[0], 5)].set(x).sum(1) + cache.at[:, 2].set(2 * x)[:, 2]


def spread(x, y, padding, **how):
    """A convolution of three taps whose input is spread."""
    kernel = jnp.stack([y, 2 * y, -y])
    dims = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(
        x[None], kernel, (1,), padding, (2,), dimension_numbers=dims, **how
    )


CASES = {
    "row by row": lambda x, y: x[ROWS, whole(y[0], 7)],
    "row by row, of three": lambda x, y: jnp.outer(x[0], y[0])[None].repeat(4, 0)[
        ROWS, whole(y[0], 7)
    ],
    "rows and columns": lambda x, y: (
        x[IDS, whole(y[0], 7)] * x[IDS[:, None], whole(y[:2, 0], 7)].sum()
    ),
    "rows and columns, filled": lambda x, y: y.at[whole(x, 12), whole(2 * x, 5)].get(
        mode="fill", fill_value=0.25
    ),
    "from the front": lambda x, y: jnp.stack([x, 2 * x], 2)[:, whole(y[:5, 1], 7)],
    "between": lambda x, y: jnp.stack([x, 2 * x])[:, IDS, 2],
    "along": lambda x, y: (
        jnp.take_along_axis(x, whole(y.T, 7), 1) + jnp.take_along_axis(x, whole(x, 3), 0)
    ),
    "the diagonal": lambda x, y: (
        jnp.take_along_axis(x @ y, ROWS[:, None], 1) + (x @ x.T)[ROWS, ROWS][:, None]
    ),
    "outside": lambda x, y: y[whole(x, 12) - 2] + y.at[whole(x, 12)].get(mode="clip"),
    "windows": windows,
    "windows filled": unaligned,
    "windows replaced": updated,
    "windows added": placed,
    "add": lambda x, y: jnp.zeros((8, 4)).at[whole(x, 9)].add(jnp.sin(x)[..., None]),
    "add to rows and columns": lambda x, y: y.at[whole(x, 7), whole(2 * x, 3)].add(x),
    "add to each row": lambda x, y: x.at[ROWS, whole(y[0], 7)].add(y[1]),
    "set in each row": lambda x, y: x.at[ROWS, whole(y[0], 7)].set(y[1]),
    "largest": lambda x, y: y.at[whole(x[0], 7)].max(
        x[:, :4].T @ x[:, :4] @ jnp.ones((4, 1))[:, 0]
    ),
    "smallest": lambda x, y: y.at[whole(x[0], 7)].min(x[0, 0] * 0.1),
    "times": lambda x, y: y.at[IDS].multiply(x[:, :4], unique_indices=True),
    "subtract": lambda x, y: y.at[whole(x[0], 7)].subtract(x[0, :4] * 0.5),
    "one by one": lambda x, y: jnp.unstack(x, axis=1)[5] * jnp.unstack(y)[2],
    "special functions": lambda x, y: (
        jax.scipy.special.polygamma(1, x * x + 1) + jnp.abs(lax.complex(x, y.T))
    ),
    "histogram": lambda x, y: jnp.bincount(whole(x, 5).reshape(-1), length=6) * y[:6, 0],
    "experts": experts,
    "cached": cached,
    "argsort": lambda x, y: jnp.take_along_axis(x, jnp.argsort(x, 1), 1) + jnp.sort(x, 1)[:, ::-1],
    "bits": lambda x, y: lax.reduce_precision(x, 8, 10) + lax.clamp(-0.5, x, 0.5),
    "transposed convolution": lambda x, y: lax.conv_transpose(
        x[None], y[:6].reshape(3, 8, 1), (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    ),
    "transposed with few taps": lambda x, y: lax.conv_transpose(
        x[None], jnp.stack([y, 2 * y]), (3,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
    ),
    "transposed and dilated": lambda x, y: spread(x, y, [(3, 5)], rhs_dilation=(2,)),
    "transposed by channels": lambda x, y: spread(
        x, y[:1, :1] * x[:1], [(1, 2)], feature_group_count=8
    ),
    "spread with padding beyond": lambda x, y: spread(x, y, [(3, 2)]),
    "choice of three": lambda x, y: lax.select_n(whole(x, 2), x, y.T, 2 * x),
    "for each": lambda x, y: lax.map(lambda r: r @ y + lax.top_k(r, 2)[0].sum(), x),
}


def test_some_lookups():
    check(
        {name: CASES[name] for name in ("the diagonal", "outside", "add to rows and columns")},
        LAYOUTS["inner"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("first, name", [(0, "swapped"), (1, "uneven")])
def test_lookups_equal_plain_jax(first, name):
    """Every second one under each of two layouts."""
    check(dict([*CASES.items()][first::2]), LAYOUTS[name])


@pytest.mark.parametrize("stride", (1, pytest.param(2, marks=pytest.mark.slow), -2))
def test_a_convolution_of_a_split_image_moves_what_lies_beside_a_part(stride):
    """Under `strict`; a negative stride is that of the transpose."""

    def fn(x, w):
        dims = ("NHWC", "HWIO", "NHWC")
        if stride < 0:
            return lax.conv_transpose(x, w, (-stride, 1), "SAME", dimension_numbers=dims)
        return lax.conv_general_dilated(x, w, (stride, 1), "SAME", dimension_numbers=dims)

    keys = jax.random.split(jax.random.key(0))
    x, w = jax.random.normal(keys[0], (2, 8, 4, 3)), jax.random.normal(keys[1], (3, 3, 3, 5))
    named = md.from_jax(fn, {"x": "batch height _ _"}, parameters=1, strict=True)
    rules = ["height -> rows", "dim16_1? -> rows", "dim4_2? -> rows"]  # what the result has
    layout = md.Layout(rules, mesh={"rows": 2})
    step = md.lower(named, layout)
    packed = named.pack(x, w)
    moves = {m.operation for op in step.program(*packed).ops for m in op.moves}
    assert moves == {"ppermute", "vary"}
    found = named.unpack_result(step(*packed))
    assert distance(np.asarray(found), np.asarray(fn(x, w))) < 1e-5


def test_a_lookup_in_a_table_that_stays_split():
    """Where the vocabulary is split each device looks up what it has, as `md.take` does."""
    table, ids = jax.random.normal(jax.random.key(0), (8, 4)), IDS % 8
    fn = lambda table, ids: jnp.take(table, ids, axis=0) * 2
    named = md.from_jax(fn, {"table": "vocab d_model", "ids": "batch"})
    layout = md.Layout(["vocab -> model"], mesh={"model": 4})
    step = md.lower(named, layout)
    moves = [m.operation for op in step.program(*named.pack(table, ids)).ops for m in op.moves]
    assert [m for m in moves if m != "vary"] == ["psum"]
