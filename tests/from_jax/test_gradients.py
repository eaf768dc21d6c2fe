"""Gradients that a function brings, and what `jax.checkpoint` keeps, as in plain JAX."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import jaxprs_in_params

import meshdsl as md
from meshdsl.plain_jax.calls import called
from meshdsl.plain_jax.program import flatten
from tests.from_jax.test_primitives import LAYOUTS, NAMES, check, mixed, operands


@jax.custom_vjp
def halved(x, y, times):
    """A product whose gradient is half of the true one, and a number that is none of a float."""
    return jnp.sin(x) @ y * times, times + 1


def halved_forward(x, y, times):
    return halved(x, y, times), (x, y, x.shape, times)


def halved_backward(kept, slopes):
    x, y, shape, times = kept
    slope = slopes[0] * times
    return (slope @ y.T * jnp.cos(x) / 2).reshape(shape), x.T @ slope / 2, None


halved.defvjp(halved_forward, halved_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def clipped_slope(x, most):
    return x * 1.0


clipped_slope.defvjp(
    lambda x, most: (x, ()), lambda most, _, slope: (jnp.clip(slope, -most, most),)
)


@jax.custom_jvp
def safe_norm(x):
    return jnp.sqrt(jnp.sum(x * x, -1))


@safe_norm.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    y = safe_norm(x)
    return y, 3 * jnp.sum(x * t, -1) / y


def body(x, y):
    x = checkpoint_name(jnp.sin(x) @ y, "product")
    x = jax.nn.softmax(checkpoint_name(jnp.tanh(x) @ y.T, "scores"))
    return jnp.cos(x) + x.sum()


def products_of_four(prim, *avals, **_):
    return prim.name == "dot_general" and avals[0].shape[0] == 4


POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots without batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "one name": jax.checkpoint_policies.save_only_these_names("scores", "unknown"),
    "other names": jax.checkpoint_policies.save_any_names_but_these("scores"),
    "anything but": jax.checkpoint_policies.save_anything_except_these_names("scores"),
    "own": products_of_four,
    "both": jax.checkpoint_policies.save_from_both_policies(
        products_of_four, jax.checkpoint_policies.save_only_these_names("product")
    ),
}
KEPT = {
    f"policy: {name}": jax.checkpoint(body, policy=policy) for name, policy in POLICIES.items()
} | {
    "policy in a scan": lambda x, y: lax.scan(
        lambda c, _: (
            jax.checkpoint(body, policy=POLICIES["one name"], prevent_cse=False)(c, y),
            None,
        ),
        x,
        None,
        length=3,
    )[0]
}
CASES = {
    "custom vjp": lambda x, y: halved(x, y, 2)[0] * halved(x, y, 2)[1],
    "custom vjp of one": lambda x, y: clipped_slope(x, 0.1) * y[:, 0],
    "custom vjp of a broadcast": lambda x, y: clipped_slope(jnp.broadcast_to(x[0], (4, 8)), 0.1),
    "custom vjp in a scan": lambda x, y: lax.scan(
        lambda c, r: (clipped_slope(c, 0.2) * r, halved(x, y, 1)[0] @ c[:4]), x[0], x
    ),
    "custom vjp in a checkpoint": jax.checkpoint(lambda x, y: halved(jnp.tanh(x), y, 3)[0]),
    "custom vjp under vmap": lambda x, y: jax.vmap(lambda r: clipped_slope(r, 0.3) * r)(x),
    "custom jvp of a reduction": lambda x, y: safe_norm(x)[:, None] * x,
    "losses": lambda x, y: optax.softmax_cross_entropy(x, jax.nn.softmax(y.T)),
}


def test_own_gradients():
    names = "custom vjp", "custom jvp of a reduction"
    check({name: CASES[name] for name in names}, LAYOUTS["inner"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ("swapped", "uneven"))
def test_own_gradients_in_every_place(name):
    check({**CASES, **KEPT}, LAYOUTS[name])


def products(jaxpr) -> int:
    """The matrix products in a jaxpr and in those within it."""
    found = 0
    for e in jaxpr.eqns:
        found += e.primitive.name == "dot_general"
        for inner in jaxprs_in_params(e.params):
            found += products(inner)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_as_much_is_recomputed_as_in_plain_jax(name):
    x, y = operands(0)
    named = md.from_jax(KEPT[name], NAMES)
    tensors = named.pack(x, y)
    plain = jax.make_jaxpr(jax.grad(lambda x, y: mixed(KEPT[name](x, y)), (0, 1)))(x, y)
    of_tensors = lambda x, y: mixed(named(x, y).array)
    assert products(jax.make_jaxpr(jax.grad(of_tensors, (0, 1)))(*tensors).jaxpr) == products(
        plain.jaxpr
    )


def test_calls_that_are_alike_share_a_function_with_its_rule():
    """JAX itself traces `relu` and its rule anew for each call."""
    fn = lambda x: jax.nn.relu6(jax.nn.relu(jnp.sin(jax.nn.relu(x))))
    equations = flatten(jax.make_jaxpr(fn)(jnp.ones(3)), called).equations
    found = [e.notes["function"] for e in equations if e.name == "custom_jvp_call"]
    one, two, other = found
    assert one is two and two is not other
