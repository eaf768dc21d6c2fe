"""Attention by the Pallas kernel for GPUs, interpreted on CPU, equals that by blocks."""

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.ops.attention import pallas, parts
from meshdsl.ops.attention.kernels import Place, Runs, kernel_of
from meshdsl.ops.attention.operands import Options, Sides
from tests.helpers import assert_equal, assert_same, layout, only, text_for_gpu
from tests.ops.attention_operands import RING, beside, blocks_and, operands

# For each case what it asks for, and the sizes.
CASES = {
    "causal segments": ({"causal": True, "segments": True}, {}),
    "window": ({"window": 77}, {"rows": 256, "columns": 300, "features": 80}),
    "soft cap": ({"causal": True, "softcap": 1.5, "segments": True}, {}),
    "other features": ({"causal": True}, {"features": 128, "of_values": 40}),
    "wide heads": ({"causal": True}, {"features": 256}),
}


@pytest.mark.parametrize("name", only(["causal segments"], CASES))
def test_pallas_equals_blocks(name):
    numbers, sizes = CASES[name]
    args = operands(**{"rows": 150, "columns": 150, "features": 64} | sizes)
    expected, found = blocks_and("pallas", numbers, *args)
    assert_equal(found, expected, tolerance=1e-5)


LAYOUTS = {
    "ring": layout("queries -> y", RING, mesh={"y": 2}, uneven="pad"),
    "ring of 4": layout("queries -> y", RING, mesh={"y": 4}, uneven="pad"),
    "memory": layout("batch -> x", "memory -> y", mesh={"x": 2, "y": 2}, uneven="pad"),
}


@pytest.mark.parametrize("under", only(["ring"], LAYOUTS))
def test_pallas_is_the_same_under_every_layout(under):
    """Parts of the keys and of the queries are uneven, and a part may see nothing of another."""
    args = operands(rows=65, columns=65, features=16)
    how = {"segments": beside("segments", *args[:2]), "causal": True, "window": 50}
    fn = lambda q, k, v: md.attention(q, k, v, implementation="pallas", **how)
    program, _ = assert_same(fn, *args, layout=LAYOUTS[under])
    assert [op.kernel for op in program.ops if op.name == "attention"] == ["pallas"]


def test_the_kernels_are_programs_for_a_gpu():
    """JAX makes them without one, of forward and backward pass, for an H100."""
    options = Options(shared=2, causal=True, window=50, softcap=3.0, scale=0.1)
    runs = Runs(((0,),), 256)
    place = Place(None, 1, False, True, "gpu", False, True, runs, runs, False)
    way = parts.whole(options)._replace(kernel=kernel_of(pallas, options, place))
    positions = jnp.arange(256)
    sides = Sides(*(positions.reshape(shape) for shape in ((1, 1, 1, -1, 1), (1, 1, 1, 1, -1)) * 2))

    def loss(q, k, v):
        return parts.attend(way, q, k, v, sides).sum()

    args = [t.array for t in operands(rows=256, columns=256, features=80, dtype=jnp.bfloat16)]
    assert text_for_gpu(jax.grad(loss, argnums=(0, 1, 2)), *args).count("triton") == 3
