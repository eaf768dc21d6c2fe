"""Products of groups of rows: every kernel gives the same, and each platform has its own."""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.mesh import abstract_mesh
from meshdsl.ops import grouped_dot as ways
from meshdsl.ops import grouped_kernels as kernels
from meshdsl.ops.grouped_dot import Way, grouped_dot
from meshdsl.ops.routed import Groups
from meshdsl.predict.explain import explain
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.program.recorder import tag_in
from meshdsl.tools.explanation_text import describe
from tests.helpers import covering, data, dims, integers, only, text_for_gpu, weight, with_gradients

# The sizes of the groups, and how many rows, inner features and features there are.
CASES = {
    "uneven": ((7, 0, 1, 20), 33, 21, 19),
    "one has all": ((0, 40, 0), 40, 16, 150),
    "all empty": ((0, 0), 17, 8, 8),
    "whole tiles": ((16, 32, 16), 64, 64, 128),
    "one row": ((0, 1), 1, 5, 3),
    "several turns": ((50, 3, 90), 150, 130, 70),
}
LARGE = {
    "some": ((0, 100, 0, 60), 300, 128, 200),
    "one has all": ((256, 0, 0, 0), 256, 128, 200),
    "all empty": ((0, 0, 0, 0), 256, 128, 200),
}


def _operands(case, dtype):
    sizes, rows, inner, features = case
    shapes = (rows, inner), (len(sizes), inner, features)
    x, w = (jax.random.normal(jax.random.key(i), s).astype(dtype) for i, s in enumerate(shapes))
    return x, w, jnp.cumsum(jnp.asarray((0, *sizes), jnp.int32))


def _slopes(dot, x, w):
    """The products, and the gradients of a sum that counts rows of zeros too."""

    def loss(x, w):
        y = dot(x, w)
        return jnp.sum(jnp.cos(y.astype(jnp.float32))), y

    (_, y), slopes = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, w)
    return y, *slopes


def _assert_right(way, case, dtype, *, transposed=False):
    x, w, starts = _operands(case, dtype)
    owner = np.repeat(np.arange(len(case[0])), case[0])
    chosen = jnp.eye(len(w), dtype=dtype)[owner]
    chosen = jnp.pad(chosen, ((0, len(x) - len(owner)), (0, 0)))
    plain = partial(jnp.einsum, "mk,gkn,mg->mn", precision="highest")
    expected = _slopes(lambda x, w: plain(x, w, chosen), *(a.astype(jnp.float32) for a in (x, w)))
    turned = lambda w: w.swapaxes(1, 2) if transposed else w
    found = _slopes(lambda x, w: grouped_dot(way, transposed, x, turned(w), starts), x, w)
    atol = 1e-3 if dtype == jnp.float32 else 0.03 * float(max(jnp.abs(e).max() for e in expected))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=atol)


@pytest.mark.parametrize(
    "name, dtype",
    only(
        [("uneven", jnp.float32), ("one has all", jnp.bfloat16)],
        [(name, dtype) for name in CASES for dtype in (jnp.float32, jnp.bfloat16)],
        covering(CASES, (jnp.bfloat16, jnp.float32)),
    ),
)
def test_the_kernels_for_gpu_give_the_products_and_their_gradients(name, dtype):
    """Rows without a group give zeros, and no gradient depends on them."""
    _assert_right(Way("pallas", "cpu", False, 16, 1.0), CASES[name], dtype)


@pytest.mark.parametrize("name", only(["uneven"], CASES, ["all empty", "several turns"]))
def test_blocks_as_on_gpu_give_the_products_and_their_gradients(name):
    """Turns after the last block change nothing."""
    _assert_right(Way("blocks", "gpu", False, 8, 1.0), CASES[name], jnp.float32, transposed=True)


KERNELS = "megablox", "pallas", "blocks"


@pytest.mark.parametrize(
    "name, kernel",
    only(
        [],
        [(name, kernel) for name in LARGE for kernel in KERNELS],
        [*covering(["some"], KERNELS), ("one has all", "pallas"), ("all empty", "blocks")],
    ),
)
def test_every_kernel_gives_the_products_and_their_gradients(name, kernel):
    way, transposed = Way(kernel, "cpu", False, 256, 1.0), name == "some"
    _assert_right(way, LARGE[name], jnp.float32, transposed=transposed)


@pytest.mark.slow
def test_a_tile_may_be_of_any_size_and_the_result_of_another_dtype():
    x, _, starts = _operands(CASES["several turns"], jnp.bfloat16)
    found = kernels.outer(kernels.Tile(16, 32, 16, 4, 2, band=2), True, "float32", x, x, starts)
    parts = np.split(np.asarray(x, np.float32)[:143], starts[1:-1])
    np.testing.assert_allclose(found, [p.T @ p for p in parts], rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_products_may_be_mapped():
    x, w, starts = _operands(CASES["uneven"], jnp.float32)
    several = jnp.stack([starts, jnp.minimum(starts, 9)])
    found = {
        kernel: jax.vmap(
            lambda starts, kernel=kernel: _slopes(
                lambda x, w: grouped_dot(Way(kernel, "cpu", False, 16, 1.0), False, x, w, starts),
                x,
                w,
            )
        )(several)
        for kernel in ("pallas", "blocks")
    }
    for a, b in zip(found["pallas"], found["blocks"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_on_gpu_the_host_is_not_asked_how_many_blocks_there_are():
    """But where most rows are of other devices' experts, blocks without rows would cost more."""
    x, w, starts = _operands(CASES["uneven"], jnp.float32)

    def loops(platform, share):
        way = Way("blocks", platform, False, 8, share)
        return str(
            jax.make_jaxpr(partial(_slopes, lambda x, w: grouped_dot(way, False, x, w, starts)))(
                x, w
            )
        )

    assert "while[" not in loops("gpu", 0.8)
    assert "while[" in loops("gpu", 0.25) and "while[" in loops("cpu", 1.0)


@pytest.mark.parametrize("dtype", only([jnp.bfloat16], [jnp.bfloat16, jnp.float32, jnp.float16]))
def test_the_kernels_are_programs_for_a_gpu(dtype):
    """JAX makes them without one, of forward and backward pass."""
    x, w, starts = _operands(((100, 900), 1000, 520, 300), dtype)
    way = Way("pallas", "gpu", False, 512, 1.0)
    fn = lambda x, w, starts: _slopes(lambda x, w: grouped_dot(way, False, x, w, starts), x, w)
    assert text_for_gpu(fn, x, w, starts).count("triton") == 3


@pytest.mark.parametrize(
    "capability, memory, stages",
    [(None, 99, 3), (8.0, 163, 3), (8.9, 99, 3), (9.0, 227, 4), (10.0, 227, 4), (12.0, 99, 3)],
)
def test_tiles_fit_the_shared_memory_of_a_program(capability, memory, stages, monkeypatch):
    """A stage fewer is there than a kernel has, but not on Hopper, whose products go on beside."""
    monkeypatch.setattr(kernels, "compute_capability", lambda: capability)
    assert kernels.tile_of(jnp.bfloat16, 512).stages == stages
    for dtype, rows in product((jnp.float32, jnp.bfloat16, jnp.float16), (8, 32, 128, 512)):
        tile = kernels.tile_of(dtype, rows)
        stage = tile.depth * (tile.rows + tile.columns) * jnp.dtype(dtype).itemsize
        kept = tile.stages - (memory < 227)
        assert kept * stage <= memory * 1024
        assert tile.rows == {8: 16, 32: 32}.get(rows, tile.rows)


# -- experts ---------------------------------------------------------------------------------------

B, L, D, F, E, K = dims(b=8, l=16, d=128, f=256, experts=8, top=2)


def _expert(groups, rows, up, bias, down):
    return groups.dot(jnp.tanh(groups.dot(rows, up) + groups.take(bias)), down)


def _program_on(platform, dtype=jnp.bfloat16, rules=("experts -> x", "b -> x"), **how):
    args = data(B, L, D), data(B, L, K), weight(E, D, F), weight(E, F, seed=2), weight(E, F, D)
    args = [md.cast(t, dtype) for t in args]
    ids = integers(B, L, K, below=E.size)

    def fn(x, share, *parameters):
        return md.routed(_expert, x, ids, share, parameters, E, sums=F, **how)

    where: Any = abstract_mesh({"x": 4}, platform)
    lowered = md.lower(with_gradients(fn, args), md.Layout(list(rules), mesh={"x": 4}), where)
    return lowered.program(*args)


def _op(program):
    (op,) = (op for op in program.ops if op.name == "routed")
    return op


def test_each_platform_has_its_kernel_and_explain_names_it_with_its_products():
    """Forward two products; backward each has two more."""
    for platform, kernel in (("tpu", "megablox"), ("gpu", "pallas"), ("cpu", "blocks")):
        program = _program_on(platform)
        op = _op(program)
        assert op.kernel == kernel and not op.lacks
        stated = [(k, n) for k, n in kernel_graph(program).walk() if tag_in(k.scope) == op.tag]
        one = 2 * B.size * L.size * K.size * D.size * F.size / 4
        assert sum(n * k.flops for k, n in stated) == pytest.approx(6 * one)
        assert f"by {kernel}" in describe(explain(program))


def test_tiles_have_fewer_rows_where_groups_are_small():
    way = Way("megablox", "tpu", True, 128, 1.0)
    assert [ways.tile_rows(way, rows, 8) for rows in (8, 2048, 8192, 32768)] == [128, 128, 256, 512]
    assert ways.tile_rows(way._replace(share=0.25), 32768, 8) == 256


def test_blocks_serve_what_the_kernel_of_a_gpu_does_not(monkeypatch):
    monkeypatch.setattr(ways, "compute_capability", lambda: 7.5)
    op = _op(_program_on("gpu"))
    assert op.kernel == "blocks"
    assert op.lacks == (("pallas", "it runs on GPUs of NVIDIA, from Ampere on"),)
    monkeypatch.setattr(ways, "of_amd", lambda: True)
    assert _op(_program_on("gpu")).kernel == "blocks"


@pytest.mark.slow
def test_half_floats_go_by_the_kernel_of_a_gpu_and_not_by_that_of_a_tpu():
    assert _op(_program_on("gpu", jnp.float16)).kernel == "pallas"
    op = _op(_program_on("tpu", jnp.float16))
    assert op.lacks == (("megablox", "it takes float32, bfloat16, not float16"),)


def test_a_function_may_multiply_in_a_dtype_that_the_kernel_lacks():
    way = Way("pallas", "gpu", True, 16, 1.0)
    assert way.taking(jnp.dtype(jnp.float16)) == way
    assert way.taking(jnp.dtype(jnp.float8_e4m3fn)) == way._replace(kernel="blocks")


def test_rows_without_an_expert_take_nothing_and_leave_no_gradient():
    starts, of_rows = jnp.asarray([0, 2, 3]), jnp.asarray([0, 0, 1, 2, 2, 2])
    groups = Groups(
        DeviceLoop({}), Way("blocks", "cpu", False, 8, 1.0), starts, of_rows, jnp.ones((6, 1))
    )
    table = jnp.asarray([5.0, 7.0])
    assert groups.take(table).tolist() == [5, 5, 7, 0, 0, 0]
    assert jax.grad(lambda t: groups.take(t).sum())(table).tolist() == [2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_indices_outside_of_the_experts_change_no_gradient(kernel):
    """Of what a function takes for each expert, and of what it closes over."""
    b, d, f, e, k = dims(b=128, d=128, f=20, experts=3, top=2)
    x, share, up, bias, down = data(b, d), data(b, k), weight(e, d, f), data(e, f), weight(e, f, d)
    ids = integers(b, k, below=5)
    chosen = md.sum(md.one_hot(ids, e) * md.broadcast(share, (*share.dims, e)), k)

    def routed(bias, scale):
        def expert(groups, rows, up, bias, down):
            hidden = jnp.cos(groups.dot(rows, up) * scale + groups.take(bias))
            return groups.dot(hidden, down)

        return md.routed(expert, x, ids, share, (up, bias, down), e, sums=f, implementation=kernel)

    def dense(bias, scale):
        hidden = md.einsum(x, up, out=(b, e, f)) * scale + md.broadcast(bias, (b, e, f))
        return md.einsum(md.einsum(md.cos(hidden), down, out=(b, e, d)), chosen, out=(b, d))

    found, expected = (
        jax.grad(lambda *a, fn=fn: md.sum(md.sin(fn(*a))).array, argnums=(0, 1))(
            bias, jnp.float32(2)
        )
        for fn in (routed, dense)
    )
    np.testing.assert_allclose(found[0].array, expected[0].array, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)
