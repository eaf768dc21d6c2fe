"""einsum: what jnp.einsum computes, over names, under any layout."""

from itertools import pairwise

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, distance, every, layout, weight

A, B, C, D, E = dims(a=4, b=8, c=2, d=8, e=4)
X, Y, Z = data(A, B, C, seed=1), data(B, C, D, seed=2), data(A, D, E, seed=3)
LAYOUTS = {
    "contracted": layout("b -> m", mesh={"m": 4}),
    "contracted over two axes": layout("b -> m, n", "a -> r", mesh={"r": 2, "m": 2, "n": 2}),
    "contracted, result scattered": layout("b -> m", "d -> m", "a -> m", mesh={"m": 4}),
    "kept": layout("a -> m", "d -> n", mesh={"m": 2, "n": 4}),
    "everything": layout("a -> m", "b -> n", "d -> r", "c? -> m", mesh={"r": 2, "n": 2, "m": 2}),
}
# For each case the formula of `jnp.einsum`, the names of the operands, and the arguments.
CASES = {
    "matrices": ("abc,bcd->ad", "xy", dict(out=(A, D))),
    "shared and kept": ("abc,bcd->bad", "xy", dict(out=(B, A, D))),
    "nothing contracted": ("abc,bcd->dcba", "xy", dict(out=(D, C, B, A))),
    "three operands": ("abc,bcd,ade->ce", "xyz", dict(out=(C, E))),
    "three into one": ("abc,bcd,ade->", "xyz", dict(out=())),
    "one operand": ("abc->ca", "x", dict(out=(C, A))),
    "one operand, transposed": ("abc->cba", "x", dict(out=(C, B, A))),
    "an operand twice": ("abc,abc->b", "xx", dict(out=B)),
    "rest of the first": ("ac,bcd->abd", "sy", dict(out=(..., B, D))),
    "rest of all": ("abc,bcd->ad", "xy", dict(out=(..., D), contract=(B, "c"))),
    "rest of all, shared": ("abc,bcd->abd", "xy", dict(out=(..., D), contract=C)),
    "rest of another": ("abc,bcd->abd", "xy", dict(out=(A, ...), contract=C)),
    "all kept": ("abc,bcd->abcd", "xy", dict(out=(...,), contract=())),
    "contracted, by name": ("abc,bcd->ad", "xy", dict(out=(A, D), contract=("b", "c"))),
    "rest, and a named one": ("abc,bcd->bad", "xy", dict(out=(B, ..., D))),
    "rest that is empty": ("c,cd->d", "tu", dict(out=(..., D))),
}


def products(x, y, z):
    known = dict(x=x, y=y, z=z, s=md.sum(x, B), t=md.sum(x, (A, B)), u=md.sum(y, B))
    return {
        name: md.einsum(*[known[n] for n in names], **how)
        for name, (_, names, how) in CASES.items()
    }


def test_einsum_is_that_of_jax():
    arrays = dict(x=X.array, y=Y.array, z=Z.array, s=X.array.sum(1))
    arrays |= dict(t=X.array.sum((0, 1)), u=Y.array.sum(0))
    for name, found in products(X, Y, Z).items():
        formula, names, _ = CASES[name]
        expected = jnp.einsum(formula, *[arrays[n] for n in names])
        assert distance(found.array, expected) < 1e-6, name


def test_a_rest_contracts_what_parameters_say_that_they_contract():
    """Several dims of one, dims of a chain, and beside a dim that both have and `out` names."""
    w, v = weight(B, C, D, ins=(B, C)), weight(D, E, ins=(D,))
    assert md.einsum(X, w, out=(..., D)).dims == (A, D)
    assert md.einsum(X, w, v, out=(..., E)).dims == (A, E)
    assert md.einsum(X, weight(B, C, D, ins=(C,)), out=(A, ..., B, D)).dims == (A, B, D)
    with pytest.raises(md.MeshDSLError, match="share .b=8, c=2."):
        md.einsum(X, weight(B, C, D, ins=(C,)), out=(..., D))


@pytest.mark.parametrize("leading", [(), ("batch", "beam")], ids=len)
def test_attention_is_written_for_any_leading_dims(leading):
    """The recipe of docs/language.md."""
    length, memory, head_dim = dims(length=4, memory=6, head_dim=2)
    lead = tuple(md.Dim(name, 2) for name in leading)
    mesh = {"m": 2, "n": 2}
    rules = layout("batch? -> m", "length -> m", "memory -> n", "head_dim -> n", mesh=mesh)

    def attention(q, k, v):
        scores = md.einsum(q, k, out=(..., length, memory), contract=head_dim)
        weights = md.softmax(scores, memory)
        return md.einsum(weights, v, out=(..., length, head_dim), contract=memory)

    q, v = data(*lead, length, head_dim), data(*lead, memory, head_dim, seed=3)
    k = data(memory, *lead, head_dim, seed=2)
    in_order = md.transpose(k, (*lead, memory, head_dim))
    expected = np.einsum("...qh,...kh->...qk", q.array, in_order.array)
    expected = np.einsum("...qk,...kh->...qh", jax.nn.softmax(expected, axis=-1), v.array)
    assert attention(q, k, v).dims == (*lead, length, head_dim)
    assert distance(attention(q, k, v).array, expected) < 1e-6
    assert_same(attention, q, k, v, layout=rules)


@every({name: LAYOUTS[name] for name in ("contracted over two axes", "everything")})
def test_einsum_is_the_same_lowered(rules):
    assert_same(products, X, Y, Z, layout=rules)


def test_contracting_again_and_again_is_the_same_lowered():
    def run(x, y, z, number):
        h = md.einsum(x, y, out=(..., D), contract=(B, C))
        h = md.einsum(h, h, md.einsum(y, out=(D, C)), out=(A, C))
        return md.einsum(h, md.tensor(2.0, ()), number, z, out=(C, E))

    assert_same(run, X, Y, Z, md.tensor(3.0, ()), layout=LAYOUTS["everything"])


def test_preferred_element_type_is_that_of_the_result():
    narrow = lambda *xs: [md.cast(x, jnp.bfloat16) for x in xs]
    run = lambda x, y: md.einsum(*narrow(x, y), out=(A, D), preferred_element_type=jnp.float32)
    assert run(X, Y).dtype == jnp.float32
    assert_same(run, X, Y, layout=LAYOUTS["contracted"], tolerance=1e-2)


def test_a_product_with_parameters_is_the_same_lowered():
    rules = layout(
        "a -> m", "d -> n", mesh={"m": 2, "n": 4}, parameters=["b -> m"], optimizer=["d -> m"]
    )
    run = lambda x, w, v: md.einsum(x, w, md.cast(v, jnp.float32), out=(..., D))
    assert_same(run, X, weight(B, C, D, ins=(B, C)), weight(B), layout=rules)


def test_a_product_costs_what_the_law_says():
    run = lambda x, y: md.einsum(x, y, out=(A, D))
    for name, expected in (
        ("contracted", {("psum", ("m",)): 1}),
        ("contracted over two axes", {("psum", ("m", "n")): 1}),
        ("contracted, result scattered", {("psum_scatter", ("m",)): 1}),
        ("kept", {}),
    ):
        assert collectives(run, X, Y, layout=LAYOUTS[name]) == expected


def dots(fn, *args, layout):
    """The shapes of what the matrix products on one device give, in order, in a lowered program."""
    found = []

    def visit(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "dot_general":
                found.append(eqn.outvars[0].aval.shape)
            for inner in jax.extend.core.jaxprs_in_params(eqn.params):
                visit(inner)

    visit(md.lower(fn, layout).trace(*args).jaxpr.jaxpr)
    return [tuple(sorted(shape)) for shape in found]


def test_the_order_of_contraction_is_the_best_for_what_a_device_has():
    """Of [a, b] [b, c] [c, d]: from the right as a whole, with a = 32.

    From the left on a device that has 4 of a.
    """
    p, q, r, s = dims(p=32, q=8, r=7, s=8)
    operands = data(p, q), data(q, r, seed=2), data(r, s, seed=3)
    run = lambda *xs: md.einsum(*xs, out=(p, s))
    assert dots(run, *operands, layout=layout(mesh={"m": 8})) == [(8, 8), (8, 32)]
    rules = layout("p -> m", mesh={"m": 8})
    assert dots(run, *operands, layout=rules) == [(4, 7), (4, 8)]
    assert_same(run, *operands, layout=rules)


def test_many_operands_make_nothing_larger_than_they_need():
    chain = dims(**{f"n{i}": 4 for i in range(8)})
    operands = [data(*pair, seed=i) for i, pair in enumerate(pairwise(chain))]
    rules = layout("n3 -> m", "n0 -> m", mesh={"m": 4})
    run = lambda *xs: md.einsum(*xs, out=(chain[0], chain[-1]))
    assert max(map(len, dots(run, *operands, layout=rules))) == 2
    assert_same(run, *operands, layout=rules)


def test_there_may_be_more_dims_than_letters():
    chain = dims(**{f"n{i}": 2 for i in range(60)})
    operands = [data(*pair, seed=i) for i, pair in enumerate(pairwise(chain))]
    expected = np.linalg.multi_dot([np.asarray(t.array, np.float64) for t in operands])
    assert distance(md.einsum(*operands, out=(chain[0], chain[-1])).array, expected) < 1e-5


def test_uneven_dims_contract_exactly():
    a, b, c = dims(a=5, b=11, c=3)

    def run(x, y):
        x, y = md.cos(x), md.cos(y)  # their padding is not zero
        return (
            md.einsum(x, y, out=(a, c)),
            md.einsum(x, y, out=()),
            md.einsum(x, x, y, out=(c, b)),
            md.einsum(x, out=b),
        )

    rules = layout("b -> m", "c -> m", "a -> n", mesh={"m": 2, "n": 4}, uneven="pad")
    assert_same(run, data(a, b), data(b, c), layout=rules)


def test_precision_is_handed_on():
    run = lambda x, y: md.einsum(x, y, out=(A, D), precision=jax.lax.Precision.HIGHEST)
    assert "HIGHEST" in str(md.lower(run, LAYOUTS["contracted"], dims=("c",)).trace(X, Y).jaxpr)
    assert_same(run, X, Y, layout=LAYOUTS["contracted"])
