"""Gradients that a function brings, and what `jax.checkpoint` keeps, as in plain JAX."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.ode import odeint
from jax.extend.core import jaxprs_in_params

import meshdsl as md
from tests.from_jax.test_primitives import LAYOUTS, NAMES, check, mixed, operands
from tests.helpers import only


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
@pytest.mark.parametrize("first, name", [(0, "swapped"), (1, "uneven")])
def test_own_gradients_in_every_place(first, name):
    """Every second one under each of two layouts."""
    check(dict([*{**CASES, **KEPT}.items()][first::2]), LAYOUTS[name])


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


def solved(w, y):
    """A differential equation whose slope closes over the weights."""
    return odeint(lambda y, t: jnp.tanh(w * y) - y * t, y, jnp.linspace(0, 1, 3), rtol=1e-6)[-1]


# Maps of the equation, and gradients of it, lose which of its operands it closes over.
SOLVED = {
    "rows -> data": solved,
    "other? -> data": lambda w, y: jax.vmap(solved)(w, y),
    "rows? -> data": lambda w, y: jax.grad(lambda y: solved(w, y).sum())(y),
}


@pytest.mark.parametrize("rule", only(["rows -> data"], SOLVED))
def test_odeint_has_the_gradient_of_plain_jax(rule):
    loss = lambda args: mixed(SOLVED[rule](*args))
    args = jnp.linspace(0.5, 1, 8), jnp.linspace(1, 2, 8)
    named = md.from_jax(loss, {"0": "rows", "1": "rows"})
    layout = md.Layout([rule], mesh={"data": 4})
    step = md.lower(md.value_and_grad(named), layout)
    value, slopes = step(named.pack(args))
    want, wanted = jax.jit(jax.value_and_grad(loss))(args)
    for a, b in zip((value.array, *named.unpack(slopes)), (want, *wanted), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-5)


@jax.custom_vjp
def two_slopes(x):
    return x * 2.0


two_slopes.defvjp(lambda x: (x, None), lambda _, slope: (slope, slope))


def by_what_it_closes_over(w):
    @jax.custom_vjp
    def scaled(x):
        return jnp.cumsum(x * w)

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, slope: (slope,))
    return scaled(jnp.ones(8))


NO_GRADIENT = {
    "closes over": (by_what_it_closes_over, "`scaled`", " is differentiated by a value that it"),
    "two slopes": (two_slopes, "`two_slopes`", " has no gradient: TypeError: Custom VJP bwd rule"),
    "callback": (
        lambda w: jax.pure_callback(jnp.sin, w, w),
        "`pure_callback`",
        " has no derivative: ValueError: Pure callbacks do not support JVP",
    ),
    "no rule": (
        lambda w: jnp.nextafter(w, 2.0),
        "`nextafter`",
        " has no derivative: NotImplementedError: Differentiation rule for 'nextafter'",
    ),
    "no rule of a matrix": (
        lambda w: lax.linalg.schur(jnp.diag(w))[0],
        "`schur`",
        " has no derivative: NotImplementedError: Differentiation rule for 'schur'",
    ),
}


@pytest.mark.parametrize("name", NO_GRADIENT)
def test_an_error_in_a_derivative_is_one_with_a_line(name):
    fn, what, said = NO_GRADIENT[name]
    named = md.from_jax(lambda w: fn(w).sum(), {"w": "rows"})
    layout = md.Layout(["rows -> data"], mesh={"data": 4})
    with pytest.raises(md.MeshDSLError) as error:
        md.lower(md.value_and_grad(named), layout)(named.pack(jnp.ones(8)))
    assert str(error.value).startswith(f"from_jax: {what} at test_gradients.py:")
    assert said in str(error.value)
