"""Neighbours that exchange the edges of an image, and programs that get that wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import meshdsl as md
from meshdsl.commands.settings import model_values
from meshdsl.mesh import abstract_mesh
from meshdsl.proof import Reference
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout
from tests.helpers import only
from tests.proof.common import computed
from tests.proof.test_programs import mapped
from tests.proof.test_programs import proof as proof_of

random = np.random.default_rng(0)
X = jnp.asarray(random.normal(size=(2, 16, 3)), jnp.float32)
W = jnp.asarray(random.normal(size=(3, 3, 3)), jnp.float32)
PARTS, ROWS = 4, 4
AFTER = [(i, i + 1) for i in range(PARTS - 1)]
BEFORE = [(i + 1, i) for i in range(PARTS - 1)]


def conv(x, w, padding, stride=1, dilation=1, every=1):
    return lax.conv_general_dilated(
        x,
        w,
        (stride,),
        [padding],
        lhs_dilation=(every,),
        rhs_dilation=(dilation,),
        dimension_numbers=("NHC", "HIO", "NHC"),
    )


def rows(x, start, stop):
    return lax.slice_in_dim(x, start, stop, axis=1)


def before(x, n=1, pairs=AFTER):
    return lax.ppermute(rows(x, ROWS - n, ROWS), "a", pairs)


def after(x, n=1, pairs=BEFORE):
    return lax.ppermute(rows(x, 0, n), "a", pairs)


def joined(*parts):
    return jnp.concatenate(parts, 1)


def around(x, n=1):
    return joined(before(x, n), x, after(x, n))


def swapped(x):
    """As `around` is between two devices that have 8 rows each, in one exchange."""
    at = lax.axis_index("a")
    sent = lax.dynamic_slice_in_dim(x, jnp.asarray([7, 0])[at], 1, 1)
    got = lax.ppermute(sent, "a", [(0, 1), (1, 0)])
    first = jnp.where(jnp.asarray([False, True])[at], got, 0)
    return joined(first, x, jnp.where(jnp.asarray([True, False])[at], got, 0))


def devices(fn, out=None, count=PARTS):
    split = P(None, "a")
    return mapped(fn, (split, P()), split if out is None else out, {"a": count})


def valid(x, w):
    return conv(x, w, (0, 0))


def local_gradient(x, w, g):
    """The gradient of all rows that a device convolves, its neighbours' among them."""
    return jax.vjp(lambda x: valid(x, w), around(x))[1](g)[0]


def placed(x, start):
    return jnp.pad(x, [(0, 0), (start, ROWS - start - x.shape[1]), (0, 0)])


def sent_back(x, w, up=BEFORE, down=AFTER, to_last=ROWS - 1, to_first=0, own=1):
    ct = local_gradient(x, w, jnp.sin(x))
    last = placed(lax.ppermute(rows(ct, 0, 1), "a", up), to_last)
    first = placed(lax.ppermute(rows(ct, ROWS + 1, ROWS + 2), "a", down), to_first)
    return rows(ct, own, own + ROWS) + last + first


def back(x, w):
    return jax.vjp(lambda x: same(x, w), x)[1](jnp.sin(x))[0]


def weights(x, w):
    return jax.vjp(lambda w: same(x, w), w)[1](jnp.sin(x))[0]


def local_weights(x, w, halo=around):
    return jax.vjp(lambda w: valid(halo(x), w), w)[1](jnp.sin(x))[0]


same = lambda x, w: conv(x, w, (1, 1))
ring = [(i, (i + 1) % PARTS) for i in range(PARTS)]
RIGHT = {
    "one row from each side": (same, devices(lambda x, w: valid(around(x), w))),
    "two rows for windows with holes": (
        lambda x, w: conv(x, w, (2, 2), dilation=2),
        devices(lambda x, w: conv(around(x, 2), w, (0, 0), dilation=2)),
    ),
    "rows before only": (
        lambda x, w: conv(x, w, (2, 0)),
        devices(lambda x, w: valid(joined(before(x, 2), x), w)),
    ),
    "a stride": (
        lambda x, w: conv(x, w, (1, 0), stride=2),
        devices(lambda x, w: conv(joined(before(x), x), w, (0, 0), stride=2)),
    ),
    "windows that do not overlap": (
        lambda x, w: conv(x, w[:2], (0, 0), stride=2),
        devices(lambda x, w: conv(x, w[:2], (0, 0), stride=2)),
    ),
    "twice as many rows": (
        lambda x, w: conv(x, w[:2], (1, 1), every=2),
        devices(lambda x, w: conv(x, w[:2], (1, 1), every=2)),
    ),
    "two devices": (same, devices(lambda x, w: valid(swapped(x), w), count=2)),
    "one after the other": (
        lambda x, w: same(jnp.sin(same(x, w)), w),
        devices(lambda x, w: valid(around(jnp.sin(valid(around(x), w))), w)),
    ),
    "the gradient of the image": (back, devices(sent_back)),
    "the gradient that JAX takes": (
        back,
        devices(lambda x, w: jax.vjp(lambda x: valid(around(x), w), x)[1](jnp.sin(x))[0]),
    ),
    "the gradient between two devices": (
        back,
        devices(lambda x, w: jax.vjp(lambda x: valid(swapped(x), w), x)[1](jnp.sin(x))[0], count=2),
    ),
    "the gradient of the kernel": (
        weights,
        devices(lambda x, w: lax.psum(local_weights(x, w), "a"), P()),
    ),
}
CONV_WRONG = {
    "no rows of neighbours": lambda x, w: same(x, w),
    "rows that go round": lambda x, w: valid(joined(before(x, 1, ring), x, after(x)), w),
    "rows of the other side": lambda x, w: valid(joined(after(x), x, before(x)), w),
    "the first row of the one before": lambda x, w: valid(
        joined(after(x, 1, AFTER), x, after(x)), w
    ),
    "the last row but one": lambda x, w: valid(joined(rows(before(x, 2), 0, 1), x, after(x)), w),
    "a hop that is missing": lambda x, w: valid(joined(before(x, 1, AFTER[1:]), x, after(x)), w),
    "a device farther": lambda x, w: valid(joined(before(x, 1, [(0, 2), (1, 3)]), x, after(x)), w),
    "an edge that is no zero": lambda x, w: valid(
        joined(jnp.where(lax.axis_index("a") == 0, 1, before(x)), x, after(x)), w
    ),
    "an edge that is masked elsewhere": lambda x, w: valid(
        joined(
            jnp.where(jnp.asarray([1, 1, 0, 1], bool)[lax.axis_index("a")], before(x), 0),
            x,
            after(x),
        ),
        w,
    ),
    "windows with holes": lambda x, w: rows(conv(around(x, 2), w, (0, 0), dilation=2), 0, ROWS),
    "rows that are one off": lambda x, w: rows(valid(around(x, 2), w), 0, ROWS),
    "a kernel that is turned": lambda x, w: valid(around(x), w[::-1]),
}
WRONG = {
    **{name: (same, devices(fn)) for name, fn in CONV_WRONG.items()},
    "a stride that begins one later": (
        lambda x, w: conv(x, w, (1, 0), stride=2),
        devices(lambda x, w: conv(joined(x, after(x)), w, (0, 0), stride=2)),
    ),
    "two devices, the wrong row": (
        same,
        devices(
            lambda x, w: valid(
                joined(lax.ppermute(rows(x, 0, 1), "a", [(0, 1)]), x, rows(swapped(x), 9, 10)), w
            ),
            count=2,
        ),
    ),
    "no gradient of neighbours": (back, devices(lambda x, w: sent_back(x, w, up=[], down=AFTER))),
    "gradients to the other side": (
        back,
        devices(lambda x, w: sent_back(x, w, up=AFTER, down=BEFORE)),
    ),
    "gradients that go round": (back, devices(lambda x, w: sent_back(x, w, down=ring))),
    "gradients to the next row": (back, devices(lambda x, w: sent_back(x, w, to_first=1))),
    "gradients to the row before": (back, devices(lambda x, w: sent_back(x, w, to_last=ROWS - 2))),
    "own gradients that are one off": (back, devices(lambda x, w: sent_back(x, w, own=0))),
    "gradients that count twice": (
        back,
        devices(
            lambda x, w: (
                sent_back(x, w)
                + placed(
                    lax.ppermute(rows(local_gradient(x, w, jnp.sin(x)), 0, 1), "a", BEFORE),
                    ROWS - 1,
                )
            )
        ),
    ),
    "a gradient of the kernel without edges": (
        weights,
        devices(
            lambda x, w: lax.psum(
                local_weights(x, w, lambda x: joined(0 * before(x), x, after(x))), "a"
            ),
            P(),
        ),
    ),
}


def agree(one, many):
    """Whether both compute the same numbers."""
    (numbers,) = computed(jax.make_jaxpr(many)(X, W), [X, W])
    return np.allclose(numbers, one(X, W), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", RIGHT)
def test_what_neighbours_exchange_is_proved(name):
    one, many = RIGHT[name]
    found = proof_of(one, many, X, W)
    assert found.proved, found.doubt
    assert agree(one, many)


@pytest.mark.parametrize("name", WRONG)
def test_what_neighbours_exchange_wrongly_is_not(name):
    one, many = WRONG[name]
    assert not proof_of(one, many, X, W).proved
    assert not agree(one, many)


TILES = {"data": 2, "rows": 2, "cols": 2}, {"data": 2, "rows": 2, "cols": 1}, {"data": 4, "rows": 1}


@pytest.mark.parametrize("sizes", only(TILES[:1], TILES))
def test_a_step_of_a_model_of_images_in_tiles_is_proved(sizes):
    def program(layout: md.Layout, sizes):
        mesh: Any = abstract_mesh(sizes)
        return Job(config, layout.with_mesh(sizes) if sizes else layout, mesh).program()

    config = override(Config(), ["batch=8"], **model_values("unet"))
    reference = Reference(program(md.Layout(), {}).jaxpr)
    found = program(find_layout("spatial"), {"cols": 1, **sizes})
    proof = reference.agrees(found.jaxpr, [result.name for result in found.results])
    assert proof.proved, proof.doubt
