"""The products of experts in few bits: what rounds depends on values alone, under every layout."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.layers import Experts
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.mesh import abstract_mesh
from meshdsl.ops.grouped_dot import Way
from meshdsl.ops.precision import grouped
from meshdsl.ops.precision.few_bits import FewBits
from meshdsl.ops.precision.formats import RECIPES
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from tests.helpers import (
    assert_same,
    covering,
    data,
    dims,
    distance,
    integers,
    layout,
    made,
    only,
    weight,
)

B, L, D, F, E, K = dims(batch=4, length=6, d_model=16, d_ff=24, experts=5, top=2)
X = data(B, L, D)
EXPERTS = made(Experts.init, jax.random.key(0), D, F, E, top=2)
EXCHANGE = {"rule": "experts -> p", "move": "exchange"}
LAYOUTS = {
    "tensor": layout("batch -> p", "d_ff -> q", mesh={"p": 2, "q": 4}),
    "exchange": layout("batch -> p", "d_ff -> q", EXCHANGE, mesh={"p": 2, "q": 2}, uneven="pad"),
    "fsdp": layout("batch -> p", mesh={"p": 4}, parameters=["d_model -> p"]),
    "features": layout("d_model -> p", mesh={"p": 4}),
    "experts": layout("length -> q", "experts -> p", mesh={"p": 4, "q": 2}, uneven="pad"),
}


def in_few_bits(experts, name, largest=None):
    low = {n: FewBits(getattr(experts, n), RECIPES[name], largest) for n in ("gate", "up", "down")}
    return experts.replace(**low)


def loss(name, largest=None):
    return lambda experts, x: md.sum(md.square(in_few_bits(experts, name, largest)(x)))


FORMATS = [("int8", None), ("fp8", None), ("int8", 4.0)]


@pytest.mark.parametrize(
    "rules, name, largest",
    only(
        [("exchange", "fp8", None)],
        [(rules, *how) for rules in LAYOUTS for how in FORMATS],
        [(rules, *how) for rules, how in covering([*LAYOUTS, "exchange"], FORMATS)],
    ),
)
def test_products_and_gradients_are_those_of_one_device(rules, name, largest):
    fn, rules = loss(name, largest), LAYOUTS[rules]
    program, _ = assert_same(fn, EXPERTS, X, layout=rules, tolerance=2e-6)
    if rules is LAYOUTS["tensor"]:
        assert ("pmax", ("q",)) in {(c.operation, c.axes) for c in program.collectives}


def test_the_numbers_are_close_to_those_of_the_matrices():
    of = lambda fn: jax.jit(md.value_and_grad(fn))(EXPERTS, X)
    value, wide = of(loss("int8")), of(lambda e, x: md.sum(md.square(e(x))))
    for a, b in zip(*map(jax.tree.leaves, (value, wide)), strict=True):
        assert 0 < distance(a, b) < 0.03


def _operands():
    rows = data(*dims(m=40, i=16)).array
    w = weight(*dims(groups=3, i=16, o=24), ins="i")
    sizes = jnp.asarray([7, 0, 20])
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes)])
    return rows, w, starts, jnp.repeat(jnp.arange(4), jnp.asarray([7, 0, 20, 13]))


KERNELS = [
    (kernel, kind, name, transposed)
    for kernel in ("megablox", "pallas", "blocks")
    for kind in ("TPU v5", "TPU7x")
    for name in ("int8", "fp8")
    for transposed in (False, True)
]
# Each kernel with each of the others, and each pair of those.
PAIRS = [("megablox", "TPU v5", "int8", False), ("megablox", "TPU7x", "fp8", True)]
PAIRS += [("pallas", "TPU v5", "fp8", False), ("pallas", "TPU7x", "int8", True)]
PAIRS += [("blocks", "TPU v5", "int8", True), ("blocks", "TPU7x", "fp8", False)]


@pytest.mark.parametrize("kernel, kind, name, transposed", only([], KERNELS, PAIRS))
def test_every_kernel_gives_the_same(kernel, kind, name, transposed):
    """A row that has no group gives zeros."""
    way = Way(kernel, "cpu", False, 16, 1.0, device_kind=kind)
    rows, w, starts, of_rows = _operands()
    (values, scale), how = grouped.in_few_bits(w, w.dims[0], RECIPES[name], None)
    if transposed:
        values = md.transpose(values, ("groups", "o", "i"))
        how = how._replace(dims=values.dims)
    matrices = how.matrices(values.array, scale.array)

    def products(way, rows, values):
        given = how.matrices(values, scale.array)
        result = grouped.dot(DeviceLoop({}), way, transposed, rows, given, starts, of_rows)
        return jnp.sum(jnp.sin(result)), result

    found, expected = (
        jax.jit(jax.value_and_grad(partial(products, way), argnums=(0, 1), has_aux=True))(
            rows, matrices.values
        )
        for way in (way, Way("blocks", "cpu", False, 8, 1.0))
    )
    # Only the gradient of a matrix is computed by another kernel in another order.
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)
    assert not found[0][1][27:].any()


def test_matrices_are_those_numbers_to_everything_else():
    _, w, *_ = _operands()
    (values, scale), how = grouped.in_few_bits(w, w.dims[0], RECIPES["int8"], None)
    matrices = how.matrices(values.array, scale.array)
    expected = md.dequantize(values, scale).array
    np.testing.assert_array_equal(jnp.asarray(matrices), expected)
    np.testing.assert_array_equal(matrices.swapaxes(1, 2), expected.swapaxes(1, 2))
    x = data(B, L, D)
    ids, share = integers(B, L, K, below=5), data(B, L, K)
    table = FewBits(weight(E, D, ins="d_model"), RECIPES["int8"])
    same = lambda groups, rows, table: rows * groups.take(table)
    found = md.routed(same, x, ids, share, (table,), E)
    np.testing.assert_array_equal(
        found.array, md.routed(same, x, ids, share, (table.weight,), E).array
    )


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_products_are_counted_in_the_dtype_of_the_kernel(name):
    """The gradients of matrices stay in bfloat16; nobody asks for that of what goes in."""
    kind = {"int8": "TPU v5", "fp8": "TPU7x"}[name]
    b, d, f, e = dims(batch=4, d_model=256, d_ff=128, experts=2)
    length = md.Dim("length", 128)
    experts = Experts.init(jax.random.key(0), d, f, e, top=2)
    x = md.cast(data(b, length, d), jnp.bfloat16)
    where = abstract_mesh({"p": 4}, "tpu", kind)
    step = md.value_and_grad(
        lambda e, x: md.sum(md.square(md.cast(in_few_bits(e, name)(x), jnp.float32)))
    )
    program = md.lower(step, layout("batch -> p", mesh={"p": 4}), where).program(experts, x)
    grouped_dots = [
        (dot.dtype, n)
        for kernel, n in kernel_graph(program).walk()
        for dot in kernel.dots
        if dot.grouped
    ]
    counts = {dtype: sum(n for d, n in grouped_dots if d == dtype) for dtype, _ in grouped_dots}
    low = {"int8": {"int8": 4}, "fp8": {"float8_e4m3fn": 3, "float8_e5m2": 1}}[name]
    assert counts == low | {"bfloat16": 3}
