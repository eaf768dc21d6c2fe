"""shift, roll and flip do what numpy does, and move only the elements that a device lacks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from meshdsl.ops.shift import _permuted
from tests.helpers import assert_same, data, dims, layout
from tests.ops.along import assert_all_same, assert_as_numpy, every_layout


def shifted(x, by, fill=0):
    """numpy's: element i of the second dimension at i + by."""
    out = np.full_like(x, fill)
    n = x.shape[1]
    if abs(by) < n:
        out[:, max(by, 0) : n + min(by, 0)] = x[:, max(-by, 0) : n - max(by, 0)]
    return out


ROLLS, SHIFTS = (1, -5, 8, 0, 29), (2, -1, -9, 0, 40)


def moved(x, a, b, c):
    return {
        **{f"roll by {by}": md.roll(x, b, by) for by in ROLLS},
        **{f"shift by {by}": md.shift(x, b, by) for by in SHIFTS},
        "shift of something in": md.shift(x, "b", 3, fill=-7),
        "flip": md.flip(x, "b"),
        "flip of all": md.flip(md.flip(md.flip(x, a), b), c),
    }


def of_numpy(x, a, b, c):
    return {
        **{f"roll by {by}": np.roll(x, by, 1) for by in ROLLS},
        **{f"shift by {by}": shifted(x, by) for by in SHIFTS},
        "shift of something in": shifted(x, 3, -7),
        "flip": x[:, ::-1],
        "flip of all": x[::-1, ::-1, ::-1],
    }


def test_elements_move_as_in_numpy():
    assert_as_numpy(moved, of_numpy)


@every_layout
def test_elements_move_the_same_lowered(rules):
    assert_all_same(moved, rules)


A, B = dims(a=3, b=32)
X, COLUMN = data(A, B), A.size * 4
PARTS, BLOCK = 4, 8
LACKING = {
    **{
        f"roll by {by}": (lambda x, by=by: md.roll(x, B, by), min(by % B.size, -by % B.size, BLOCK))
        for by in (1, 8, 11, 16, 30, -3)
    },
    **{
        f"shift by {by}": (
            lambda x, by=by: md.shift(x, B, by),
            min(abs(by), BLOCK, B.size - abs(by)),
        )
        for by in (1, 8, 11, 30, -3, -25)
    },
    "flip": (lambda x: md.flip(x, B), BLOCK),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_move_sends_only_what_a_device_lacks(name):
    """Each way the compiled program moves the bytes that the device that lacks most receives."""
    fn, columns = LACKING[name]
    program, _ = assert_same(fn, X, layout=layout("b -> m", mesh={"m": PARTS}))
    for phase in ("forward", "backward"):
        found = [c for c in program.collectives if c.phase == phase and c.operation != "psum"]
        assert {c.operation for c in found} == {"ppermute"}
        assert sum(c.bytes for c in found) == columns * COLUMN


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_a_permutation_matrix_rolls_to_the_last_digit(dtype):
    x = (np.random.default_rng(0).normal(size=(5, 8)) * 100).astype(dtype)
    for by in (1, 4):
        np.testing.assert_array_equal(_permuted(jnp.asarray(x), by), np.roll(x, by, 1))


@pytest.mark.parametrize(
    "kind, finite, products", [("tpu", True, 1), ("tpu", False, 0), ("cpu", True, 0)]
)
def test_only_tpus_roll_by_a_matrix_and_only_what_is_finite(kind, finite, products):
    a, b = dims(a=4, b=8)
    run = lambda x: md.roll(x, b, 4, finite=finite)
    mesh: Any = abstract_mesh({"m": 2}, kind)
    lowered = md.lower(run, layout("a -> m", mesh={"m": 2}), mesh)
    traced = jax.make_jaxpr(lowered)(md.abstract((a, b), jnp.float32))
    assert str(traced).count("dot_general") == products
