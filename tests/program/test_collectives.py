"""What a jaxpr asks for and what the compiler makes of it, where the collectives are known."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program import Collective, from_jaxpr, summary

pytestmark = pytest.mark.usefixtures("compiled_for_users")

A, B = "data", "model"
MESHES = {"data-model": {A: 2, B: 4}, "model-data": {B: 4, A: 2}}


def both(fn, mesh, in_specs, out_specs, *shapes, dtype=jnp.float32):
    """The collectives of a shard_map program by its jaxpr, and by its compiled text."""
    mesh = jax.make_mesh(
        tuple(mesh.values()), tuple(mesh), axis_types=(jax.sharding.AxisType.Auto,) * len(mesh)
    )
    mapped = jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs))
    arrays = [jnp.ones(shape, dtype) for shape in shapes]
    closed = jax.make_jaxpr(mapped)(*arrays)
    return from_jaxpr(closed, mesh.shape), from_hlo(mapped.lower(*arrays).compile().as_text(), mesh)


def facts(collectives):
    return Counter((c.operation, c.axes, c.count, c.bytes, c.phase) for c in collectives)


# Local arrays are f32[4, 8] (128 bytes), but for pieces of an all_gather and results of a
# psum_scatter.
ONE = {
    "psum": (lambda x: lax.psum(x, A), P(None, B), ("psum", (A,), 1, 128)),
    "psum of both": (lambda x: lax.psum(x, (B, A)), P(), ("psum", (A, B), 1, 128)),
    "pmax": (lambda x: lax.pmax(x, B), P(A), ("pmax", (B,), 1, 128)),
    "pmin": (lambda x: lax.pmin(x, B), P(A), ("pmin", (B,), 1, 128)),
    "all_gather": (
        lambda x: lax.all_gather(x, B, axis=1, tiled=True),
        P(A, B),
        ("all_gather", (B,), 1, 512),
    ),
    "all_gather untiled": (
        lambda x: lax.all_gather(x, A),
        P(A, None, B),
        ("all_gather", (A,), 1, 256),
    ),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, A, scatter_dimension=1, tiled=True),
        P(None, (B, A)),
        ("psum_scatter", (A,), 1, 128),
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, B, 0, 1, tiled=True),
        P(A, B),
        ("all_to_all", (B,), 1, 128),
    ),
    "ppermute": (
        lambda x: lax.ppermute(x, B, [(0, 1), (1, 2)]),
        P(A, B),
        ("ppermute", (B,), 1, 128),
    ),
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("fn, out, expected", ONE.values(), ids=ONE)
def test_each_collective_reads_alike_in_jaxpr_and_compiled_text(fn, out, expected, mesh):
    asked, compiled = both(fn, mesh, P(A, B), out, (8, 32))
    operation, axes, count, size = expected
    in_mesh_order = tuple(axis for axis in mesh if axis in axes)
    assert (
        facts(asked)
        == facts(compiled)
        == Counter([(operation, in_mesh_order, count, size, "forward")])
    )


def step(weights, x):
    """Three rematerialised layers: weights split over `data`, activations over both axes.

    Loss and gradients.
    """

    def layer(x, w):
        h = jnp.tanh(x @ lax.all_gather(w, A, axis=0, tiled=True))
        return x + lax.all_gather(
            lax.psum_scatter(h, B, scatter_dimension=1, tiled=True), B, axis=1, tiled=True
        ), None

    def loss(weights):
        rematerialised = jax.checkpoint(layer, policy=jax.checkpoint_policies.nothing_saveable)
        y, _ = lax.scan(
            rematerialised, lax.pcast(x, B, to="varying"), lax.pcast(weights, B, to="varying")
        )
        return lax.psum(jnp.sum(y**2), (A, B))

    return jax.value_and_grad(loss)(weights)


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_scan_multiplies_counts_and_remat_is_told_from_backward(mesh):
    asked, compiled = both(step, mesh, (P(None, A), P(A)), (P(), P(None, A)), (3, 16, 16), (8, 16))
    weight, hidden = 16 * 16 * 4, 4 * 16 * 4
    assert facts(asked) == Counter(
        [
            ("all_gather", (A,), 3, weight, "forward"),
            ("psum_scatter", (B,), 3, hidden, "forward"),
            ("all_gather", (B,), 3, hidden, "forward"),
            ("psum", tuple(mesh), 1, 4, "forward"),
            ("all_gather", (A,), 3, weight, "recompute"),
            ("psum_scatter", (B,), 3, hidden, "backward"),
            ("all_gather", (B,), 3, hidden, "backward"),
            ("psum_scatter", (A,), 3, weight, "backward"),
            ("psum", (B,), 1, 3 * weight // 2, "backward"),
        ]
    )
    assert facts(compiled) == facts(asked)


def test_axis_of_size_one_is_no_collective():
    for found in both(lambda x: lax.psum(x, (A, B)), {A: 1, B: 4}, P(A, B), P(), (8, 32)):
        assert [c.axes for c in found] == [(B,)]
    for found in both(
        lambda x: lax.all_gather(x, A, tiled=True), {A: 1, B: 4}, P(A, B), P(A, B), (8, 32)
    ):
        assert found == []


def test_pcast_is_no_collective():
    for found in both(
        lambda x: lax.pcast(x, B, to="varying"), MESHES["data-model"], P(A), P(A, B), (8, 32)
    ):
        assert found == []


def test_one_psum_of_several_arrays_is_one_collective_each():
    asked, compiled = both(
        lambda x: lax.psum((x, x * x, x[0]), B), MESHES["data-model"], P(None, B), P(), (8, 32)
    )
    assert facts(asked) == facts(compiled)
    assert sorted(c.bytes for c in asked) == [32, 256, 256]


def test_every_branch_is_listed_and_a_loop_of_unknown_length_counts_once():
    def fn(x):
        y = lax.cond(
            lax.psum(x.sum(), (A, B)) > 0, lambda x: lax.psum(x, A), lambda x: lax.pmax(x, A), x
        )
        return lax.while_loop(
            lambda y: lax.pmax(y.sum(), B) < 9, lambda y: y + lax.ppermute(y, B, [(0, 1)]), y
        )

    asked, compiled = both(fn, MESHES["data-model"], P(A, B), P(None, B), (8, 32))
    assert facts(asked) == facts(compiled)
    assert sorted(c.operation for c in asked) == ["pmax", "pmax", "ppermute", "psum", "psum"]


def test_custom_derivatives_are_walked_once():
    @jax.custom_vjp
    def f(x):
        return lax.psum(x, B)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (lax.pcast(g, B, to="varying"),))
    asked, compiled = both(f, MESHES["data-model"], P(A, B), P(A), (8, 32))
    assert facts(asked) == facts(compiled) == Counter([("psum", (B,), 1, 128, "forward")])


def test_cpu_moves_bfloat16_as_float32():
    asked, compiled = both(
        lambda x: lax.psum(x, B), MESHES["data-model"], P(A, B), P(A), (8, 32), dtype=jnp.bfloat16
    )
    assert [(c.dtype, c.bytes) for c in asked] == [("bfloat16", 64)]
    assert [(c.dtype, c.bytes) for c in compiled] == [("float32", 128)]


def test_summary_adds_counts_and_total_bytes():
    parts = [
        Collective("psum", (A,), 3, 10, "float32"),
        Collective("psum", (A,), 1, 5, "bfloat16", "other"),
    ]
    parts.append(Collective("all_gather", (B,), 2, 7, "float32"))
    assert summary(parts) == {("all_gather", (B,)): (2, 14), ("psum", (A,)): (4, 35)}
