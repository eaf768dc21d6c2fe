"""`local` runs any JAX function on what each device has, Pallas kernels included."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import meshdsl as md
from meshdsl.lowering import kernels
from meshdsl.machine import find_target
from meshdsl.predict.compiler.topology import target_devices
from tests.helpers import assert_same, data, dims, integers, layout, weight

A, B = dims(a=8, b=16)
LAYOUTS = [
    layout("a -> x", mesh={"x": 8}),
    layout("a -> x", "b -> y", mesh={"x": 4, "y": 2}),
    layout(mesh={"x": 2, "y": 4}),
    md.Layout(["a -> x"], ["b -> y"], mesh={"x": 2, "y": 2}),
]


def _product(x, y, o):
    o[...] = x[...] * y[...]


def _call(kernel, *arrays):
    like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    return pl.pallas_call(kernel, out_shape=like, interpret=True)(*arrays)


@jax.custom_vjp
def product(x, y):
    return _call(_product, x, y)


product.defvjp(
    lambda x, y: (product(x, y), (x, y)),
    lambda saved, ct: (_call(_product, ct, saved[1]), _call(_product, ct, saved[0])),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_pallas_kernel_and_its_gradient_are_the_same_under_every_layout(layout):
    def fn(x, w):
        return md.local(product, md.tanh(x), w, out=(A, B))

    assert_same(fn, data(A, B), weight(A, B), layout=layout)


@pytest.mark.parametrize("few, stated", [(2, False), (4, True)])
def test_a_kernel_is_traced_once_for_the_same_types(few, stated):
    """Where the types of its results are stated, only when a program with it is lowered."""
    TRACES.clear()

    def twice(x, times):
        results = jax.ShapeDtypeStruct(x.array.shape, x.array.dtype) if stated else None
        kernel = partial(kernels.opaque, partial(_counted, times), results=results)
        return md.tensor(kernel(kernel(x.array)), x.dims)

    programs = [
        md.lower(partial(twice, times=times), layout(mesh={"x": 2})).trace(data(A, B))
        for times in (few, few + 1, few)
    ]
    assert TRACES == ([] if stated else [few, few + 1])
    for program in programs:
        program.lower()
    assert TRACES == [few, few + 1]


TRACES = []


def _counted(times, x):
    TRACES.append(times)
    return x * times


def test_the_kernel_of_the_documentation():
    def scaled(x, scale):
        return _call(lambda x, scale, o: o.__setitem__(..., x[...] * scale[...]), x, scale)

    kernel = jax.custom_vjp(scaled)
    backward = lambda saved, ct: (ct * saved[1], (ct * saved[0]).sum(0))
    kernel.defvjp(lambda x, scale: (scaled(x, scale), (x, scale)), backward)
    fn = lambda x, scale: md.local(kernel, x, scale, out=(A, B))
    program, _ = assert_same(fn, data(A, B), weight(B), layout=LAYOUTS[0])
    sums = [c for c in program.collectives if (c.operation, c.axes) == ("psum", ("x",))]
    assert len(sums) == 2  # of the loss, and for the scale


def test_a_kernel_inside_over_checkpoint_and_scan():
    def fn(x, w):
        each = md.over(A, lambda row: md.local(product, row, row, out=(B,)))(x)
        kept = md.checkpoint(lambda t: md.local(product, t, w, out=(A, B)))(each)
        step = lambda total, row: (total + md.local(product, row, row, out=(B,)), ())
        return md.scan(step, md.sum(kept, A), x, dim=A)[0]

    assert_same(
        fn, data(A, B), weight(A, B), layout=layout("b -> x", "a -> y", mesh={"x": 2, "y": 2})
    )


def test_whole_numbers_go_through_a_kernel_beside_floats():
    @jax.custom_vjp
    def chosen(x, n):
        return _call(lambda x, n, o: o.__setitem__(..., jnp.where(n[...] > 2, x[...], 0)), x, n)

    chosen.defvjp(lambda x, n: (chosen(x, n), n), lambda n, ct: (jnp.where(n > 2, ct, 0), None))
    numbers = integers(A, B, below=5)
    assert_same(
        lambda x, n: md.local(chosen, x, n, out=(A, B)), data(A, B), numbers, layout=LAYOUTS[1]
    )


def test_a_kernel_compiles_for_tpu():
    """Not interpreted: Mosaic's own lowering, forward and backward, on a mesh of eight chips."""
    pytest.importorskip("libtpu")
    mesh = md.make_mesh({"x": 4, "y": 2}, target_devices(find_target("v5p:2x2x2")))
    rows, columns = dims(rows=64, columns=256)

    def sharper(x, y):
        return pl.pallas_call(_product, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    kernel = jax.custom_vjp(sharper)
    kernel.defvjp(
        lambda x, y: (sharper(x, y), (x, y)),
        lambda saved, ct: (sharper(ct, saved[1]), sharper(ct, saved[0])),
    )

    def loss(w, x):
        return md.sum(md.local(kernel, x, w, out=(rows, columns)))

    lowered = md.lower(
        md.value_and_grad(loss), layout("rows -> x", "columns -> y", mesh=mesh.shape), mesh
    )
    text = lowered.lower(weight(rows, columns), data(rows, columns)).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 2


def _one_part(x, w, start):
    """The term of a sum over `b`, with each element of `w` multiplied by its index."""
    return x @ (w * (start + jnp.arange(len(w), dtype=w.dtype)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [LAYOUTS[1], md.Layout(["b -> x"], mesh={"x": 3}, uneven="pad")], ids=str
)
def test_the_function_gives_a_term_of_a_sum_and_knows_where_its_part_begins(layout):
    fn = lambda x, w: md.local(_one_part, x, w, out=A, sums=B, starts=B)
    x, w = data(A, B), data(B, seed=3)
    expected = x.array @ (w.array * jnp.arange(16))
    assert jnp.allclose(fn(x, w).array, expected, atol=1e-5)
    assert_same(fn, x, w, layout=layout, floor=1.0, tolerance=1e-5)
