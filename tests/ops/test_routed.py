"""`routed` sends each element through the experts that were chosen for it; and `cumcount`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    integers,
    layout,
    only,
    weight,
)

B, L, D, F, E, K = dims(b=4, l=8, d=6, f=10, experts=8, top=2)
LAYOUTS = {
    "batch": layout("b -> x", mesh={"x": 4}),
    "experts": layout("experts -> x", mesh={"x": 8}),
    "both": layout("b -> x", "experts -> y", mesh={"x": 2, "y": 4}),
    "experts over data": layout("experts -> x", "b -> x", mesh={"x": 4}),
    "with tensor": layout("experts -> x", "f -> y", "l -> y", mesh={"x": 4, "y": 2}),
    "uneven": layout("experts -> x", "f -> y", mesh={"x": 3, "y": 2}, uneven="pad"),
    "zigzag": layout({"rule": "l -> x", "order": "zigzag"}, "experts -> y", mesh={"x": 2, "y": 2}),
    "fsdp": md.Layout(["b -> x"], ["d -> x"], mesh={"x": 2}),
}


def swiglu(groups, rows, gate, up, down):
    return groups.dot(jax.nn.silu(groups.dot(rows, gate)) * groups.dot(rows, up), down)


def run(x, ids, share, gate, up, down, **how):
    return md.routed(swiglu, x, ids, share, (gate, up, down), E, sums=F, **how)


def dense(x, ids, share, gate, up, down):
    """Every element through every expert."""
    chosen = md.sum(md.one_hot(ids, E) * md.broadcast(share, (*share.dims, E)), K)
    h = md.silu(md.einsum(x, gate, out=(B, L, E, F))) * md.einsum(x, up, out=(B, L, E, F))
    return md.einsum(md.einsum(h, down, out=(B, L, E, D)), chosen, out=(B, L, D))


def operands(ids=None):
    ids = integers(B, L, K, below=E.size) if ids is None else ids
    weights = weight(E, D, F, seed=3), weight(E, D, F, seed=4), weight(E, F, D, seed=5)
    return (data(B, L, D), ids, data(B, L, K, seed=2), *weights)


ONE = md.tensor(np.full((4, 8, 2), 3, np.int32), (B, L, K))
MANY = md.tensor(np.arange(64, dtype=np.int32).reshape(4, 8, 2) % 3 * 3, (B, L, K))


def gradients(fn, *args):
    loss = lambda x, share, *weights: md.sum(md.sin(fn(x, args[1], share, *weights))).array
    return jax.grad(loss, argnums=(0, 1, 2, 3, 4))(args[0], *args[2:])


@pytest.mark.slow
@pytest.mark.parametrize("ids", [None, ONE, MANY], ids=["some", "one", "empty between"])
def test_routed_is_the_weighted_sum_over_the_experts_that_are_chosen(ids):
    args = operands(ids)
    np.testing.assert_allclose(run(*args).array, dense(*args).array, atol=2e-5)
    both = [jax.jit(partial(gradients, fn))(*args) for fn in (run, dense)]
    for found, expected in zip(*both, strict=True):
        np.testing.assert_allclose(found.array, expected.array, atol=5e-5)


@pytest.mark.parametrize(
    "name", only(["experts"], LAYOUTS, ["both", "with tensor", "uneven", "zigzag", "fsdp"])
)
def test_routed_and_its_gradients_are_the_same_under_every_layout(name):
    args = operands(MANY)
    _, reference = assert_same(run, *args, layout=LAYOUTS[name], floor=1.0)
    assert_equal(reference[0], dense(*args), floor=1.0)


@pytest.mark.parametrize(
    "name", only([], ["experts", "with tensor", "uneven", "fsdp"], ["with tensor", "uneven"])
)
def test_the_kernels_for_gpu_are_the_same_under_every_layout(name):
    fn = partial(run, implementation="pallas")
    program, reference = assert_same(fn, *operands(MANY), layout=LAYOUTS[name], floor=1.0)
    assert [op.kernel for op in program.ops if op.name == "routed"] == ["pallas"]
    assert_equal(reference[0], dense(*operands(MANY)), floor=1.0)


def test_a_function_may_weigh_its_rows_itself():
    def weighing(groups, rows, gate, up, down):
        hidden = jax.nn.silu(groups.dot(rows, gate)) * groups.dot(rows, up) * groups.weights
        return groups.dot(hidden, down.swapaxes(1, 2), transposed=True)

    def weighed(x, ids, share, *weights):
        return md.routed(weighing, x, ids, share, weights, E, sums=F, weighs=True)

    args = operands(MANY)
    found, expected = (jax.jit(partial(gradients, fn))(*args) for fn in (weighed, run))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.array, other.array, atol=2e-5)


@pytest.mark.slow
def test_experts_that_are_split_leave_one_sum():
    args = operands()
    assert collectives(run, *args, layout=LAYOUTS["experts"]) == {("psum", ("x",)): 1}
    found = collectives(run, *args, layout=layout("experts -> x", "b -> x", mesh={"x": 4}))
    assert found[("psum_scatter", ("x",))] == 1 and ("psum", ("x",)) not in found


@pytest.mark.slow
def test_no_product_is_with_an_expert_that_was_not_chosen():
    """FLOPs grow with the choices, and a dense derivative would have all experts."""
    text = str(jax.make_jaxpr(lambda *a: [t.array for t in gradients(run, *a)])(*operands()))
    assert "ragged" not in text and f"{E.size},{B.size * L.size}" not in text


def test_cumcount_counts_equal_elements_before_each():
    ids = integers(B, md.Dim("c", 13), below=5)
    found, bins = md.cumcount(ids, "c", md.Dim("e", 4)).array, 4
    for row, counted in zip(np.asarray(ids.array), np.asarray(found), strict=True):
        expected = [sum(row[:i] == n) if n < bins else 0 for i, n in enumerate(row)]
        assert counted.tolist() == expected


@pytest.mark.slow
def test_cumcount_makes_no_table_of_elements_by_indices():
    n, e = dims(n=4096, e=256)
    jaxpr = jax.make_jaxpr(lambda ids: md.cumcount(md.tensor(ids, n), n, e).array)(
        jnp.zeros(4096, jnp.int32)
    )
    sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
    assert max(sizes) <= 4096


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 4, "y": 2}, {"x": 3}])
def test_cumcount_is_the_same_where_the_dim_is_split(mesh):
    ids = integers(B, md.Dim("c", 16), below=5)
    rules = layout("c -> x", *(["b -> y"] if "y" in mesh else []), mesh=mesh, uneven="pad")
    fn = lambda ids: md.cumcount(ids, "c", md.Dim("e", 4))
    assert_same(fn, ids, layout=rules, gradients=False)
