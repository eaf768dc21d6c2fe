"""The dtypes of value_and_grad.

Parameters are gathered in that of `compute`, gradients are summed over devices in that of `reduce`.
"""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.predict.compiler.collectives import from_hlo
from tests.helpers import assert_equal, data, dims, layout, only, weight

BATCH, D, FF, LAYERS, MICRO = dims(batch=8, d=16, ff=8, layers=3, micro=2)
W = (
    weight(LAYERS, D, FF, ins=(D,), seed=1),
    weight(LAYERS, FF, D, ins=(FF,), seed=2),
    weight(D, seed=3),
)
X = data(BATCH, D)
BOTH = {"n": 2, "m": 4}
LAYOUTS = {
    "data": layout("batch -> m", mesh={"m": 8}),
    "fsdp": layout("batch -> m", mesh={"m": 8}, parameters=["d -> m"]),
    "fsdp-tensor": layout("batch -> n", "ff -> m", mesh=BOTH, parameters=["d -> n"]),
    "hybrid-fsdp": layout("batch -> n, m", mesh=BOTH, parameters=["d -> m"]),
    "zero1": layout("batch -> m", mesh={"m": 8}, optimizer=["d -> m"]),
    "zero2": layout("batch -> m", mesh={"m": 8}, gradients=["d -> m"]),
    "hybrid-zero2": layout("batch -> n, m", mesh=BOTH, parameters=["d -> m"], gradients=["d -> n"]),
    "gathered once": layout("batch -> m", mesh={"m": 8}, parameters=["d -> m"], gather="step"),
    "gathered once, zero2": layout(
        "batch -> m", mesh={"m": 8}, parameters=["d -> m"], gradients=["d -> m"], gather="step"
    ),
}
# A device rounds its term of a gradient to bfloat16 (to 2^-9 of it), and sums in bfloat16 round
# each partial sum. One device has a single term. Norms of the differences add up like random walks,
# so a few roundings stay below 2^-6.
COARSE = 2.0**-6


def loss(weights, x):
    up, down, scale = weights
    turned = lambda down: md.transpose(down, (D, FF))  # it stays a parameter
    layer = md.checkpoint(
        lambda x, w: (
            x + md.einsum(md.tanh(md.einsum(x, w[0], out=(..., FF))), turned(w[1]), out=x.dims),
            (),
        )
    )
    y, _ = md.scan(layer, md.cast(x, scale.dtype), (up, down), dim=LAYERS)
    return md.mean(md.square(md.cast(y * scale, jnp.float32)))


def promised(program):
    """How often each collective runs, by what is recorded of its op; scalars left out."""
    found: Counter = Counter()
    for c in (c for c in program.collectives if c.bytes > 4):
        op = program.op_of(c)
        backward = c.phase == "backward" and op.name != "gradient"
        sizes = [
            (m.backward, set(m.axes), m.backward_bytes or m.bytes)
            if backward
            else (m.operation, set(m.axes), m.bytes)
            for m in op.moves
        ]
        assert (c.operation, set(c.axes), c.bytes) in sizes, (
            f"{c} is not what {op} recorded: {op.moves}"
        )
        found[c.operation, c.axes, c.bytes, c.dtype] += c.count
    return found


def compiled_for_cpu(collectives):
    """The CPU compiler runs every collective of bfloat16 in float32: `compiler.collectives`."""
    twice = {(o, a, 2 * n if dtype == "bfloat16" else n): 0 for o, a, n, dtype in collectives}
    for (operation, axes, size, dtype), count in collectives.items():
        twice[operation, axes, 2 * size if dtype == "bfloat16" else size] += count
    return twice


QUICK = ("fsdp-tensor", "zero1", "hybrid-zero2", "gathered once, zero2")


@pytest.mark.parametrize(
    "name, reduce",
    only(
        [(name, "bfloat16") for name in QUICK] + [("fsdp-tensor", "float32")],
        [(name, "bfloat16") for name in LAYOUTS] + [(name, "float32") for name in QUICK],
        [(name, "bfloat16") for name in LAYOUTS],
    ),
)
def test_parameters_are_gathered_in_one_dtype_and_gradients_summed_in_another(name, reduce):
    run = md.value_and_grad(loss, compute="bfloat16", reduce=reduce)
    lowered = md.lower(run, LAYOUTS[name])
    compiled = lowered.lower(W, X).compile()
    (_, grads), (_, expected) = compiled(W, X), jax.jit(run)(W, X)
    assert_equal(grads, expected, tolerance=COARSE)
    assert all(g.dtype == jnp.float32 for g in grads)

    recorded = promised(lowered.program(W, X))
    sums = {dtype for operation, *_, dtype in recorded if operation in ("psum", "psum_scatter")}
    gathers = {dtype for operation, *_, dtype in recorded if operation == "all_gather"}
    assert sums >= {reduce} and gathers <= {"bfloat16"}
    if name != "fsdp-tensor":  # whose activations are summed too
        assert sums == {reduce}
    made: Counter = Counter()
    for c in (c for c in from_hlo(compiled.as_text(), lowered.mesh) if c.bytes > 4):
        made[c.operation, c.axes, c.bytes] += c.count
    assert made == compiled_for_cpu(recorded)


@pytest.mark.parametrize("name", ["zero2", "gathered once"])
def test_microbatches_are_summed_in_the_dtype_at_rest(name):
    """The mean of equal gradients is each of them, which sums in bfloat16 would not leave so."""
    xs = md.tensor(jnp.stack([X.array] * MICRO.size), (MICRO, BATCH, D))
    how = dict(compute="bfloat16", reduce="float32")
    _, grads = md.lower(
        md.value_and_grad(loss, accumulate=MICRO, **how), LAYOUTS[name], dims=["micro"]
    )(W, xs)
    _, once = md.lower(md.value_and_grad(loss, **how), LAYOUTS[name], dims=["micro"])(W, X)
    assert_equal(grads, once)


def test_sums_in_the_dtype_at_rest_are_not_rounded_to_that_of_use():
    """Of 1 and 2^-12, on two devices, bfloat16 would keep the 1."""
    batch = md.Dim("batch", 2)
    x = md.tensor(jnp.array([1.0, 2.0**-12]), (batch,))
    for rules in (dict(), dict(parameters=["d -> m"]), dict(gradients=["d -> m"])):
        how = layout("batch -> m", mesh={"m": 2}, **rules)
        value = lambda w, x: md.sum(md.einsum(md.cast(x, w.dtype), w, out=()))
        run = md.lower(md.value_and_grad(value, compute=jnp.bfloat16), how, dims=["d"])
        _, grad = run(weight(md.Dim("d", 4)), x)
        assert (grad.array == 1 + 2.0**-12).all()


USES = {
    "cast and renamed": lambda w, x: md.mean(
        md.einsum(x, md.rename(md.cast(w, jnp.float32), FF, "out"), out=(BATCH, md.Dim("out", 8)))
    ),
    "mapped over": lambda w, x: md.mean(
        md.over(D, lambda w, x: md.tanh(md.cast(w, jnp.float32) * md.mean(x)))(w, x)
    ),
    "carried": lambda w, x: md.sum(
        md.scan(lambda h, r: (h * md.cast(md.cos(r), h.dtype), ()), md.sum(w, FF), x, dim=BATCH)[0]
    ),
    "by cond": lambda w, x: md.cond(md.sum(x) > 0, lambda: md.mean(w), lambda: md.sum(w)),
    "kept by gathers": lambda w, x: md.mean(
        md.checkpoint(lambda x, w: md.tanh(md.einsum(x, w, out=(BATCH, FF))), "gathers")(x, w)
    ),
    "differentiated": lambda w, x: md.sum(
        md.value_and_grad(lambda w: md.mean(md.square(md.einsum(x, w, out=(BATCH, FF)))))(w)[1]
    ),
    "by its own gradient": lambda w, x: md.mean(
        md.custom_gradient(lambda w: (md.square(w), lambda g: 3 * w * g))(w)
    ),
    "not at all": lambda w, x: md.mean(x),
}


@pytest.mark.parametrize("name", ["hybrid-zero2", "gathered once"])
def test_a_cast_parameter_may_be_used_in_every_way(name):
    def every(w, x):
        assert w.dtype == jnp.bfloat16 and w.array.dtype == jnp.bfloat16
        terms = [md.cast(use(w, x), jnp.float32) for use in USES.values()]
        return sum(terms[1:], start=terms[0]), w

    run = md.value_and_grad(every, has_aux=True, compute="bfloat16")
    w = weight(D, FF, ins=(D,))
    (_, seen), grad = md.lower(run, LAYOUTS[name], dims=["layers"])(w, X)
    assert seen.dtype == jnp.bfloat16 and grad.dtype == jnp.float32
    assert_equal(grad, run(w, X)[1], tolerance=COARSE)


def test_without_dtypes_or_with_those_of_the_parameters_the_program_is_the_same():
    texts = {
        str(md.lower(md.value_and_grad(loss, **how), LAYOUTS["fsdp"]).trace(W, X).jaxpr)
        for how in (dict(), dict(compute=jnp.float32), dict(compute="float32", reduce="float32"))
    }
    assert len(texts) == 1
