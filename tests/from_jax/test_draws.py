"""Random numbers under a layout: those of plain JAX, of which each device draws its part."""

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md

KEY = jax.random.key(3)
LAYOUT = md.Layout(["rows -> data", "length -> model"], mesh={"data": 2, "model": 4})


def dropout(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def added(draw, **how):
    return lambda x: x + draw(KEY, shape=x.shape, **how).astype(x.dtype)


DRAWS = {
    "dropout": lambda x: dropout(KEY, x),
    "dropout of each row": lambda x: jax.vmap(dropout)(jax.random.split(KEY, len(x)), x),
    "uniform": added(jax.random.uniform),
    "normal": added(jax.random.normal),
    "normal in bfloat16": added(jax.random.normal, dtype=jnp.bfloat16),
    "truncated normal": added(jax.random.truncated_normal, lower=-1, upper=2),
    "gumbel": added(jax.random.gumbel),
    "exponential": added(jax.random.exponential),
    "laplace": added(jax.random.laplace),
    "randint": added(jax.random.randint, minval=-3, maxval=9),
    "bits of a byte": added(jax.random.bits, dtype=jnp.uint8),
    "categorical": lambda x: x[..., 0] + jax.random.categorical(KEY, x),
}


def flops(traced) -> float:
    """The operations of one device."""
    return traced.lower().compile().cost_analysis()["flops"]


def test_draws_are_those_of_one_device_and_each_device_draws_its_part():
    x = jnp.ones((16, 24, 6))
    every = lambda x: [fn(x) for fn in DRAWS.values()]
    named = md.from_jax(every, {"x": "rows length width"}, strict=True)
    step, packed = md.lower(named, LAYOUT), named.pack(x)
    made, wanted = named.unpack_result(step(packed)), jax.jit(every)(x)
    for case, a, b in zip(DRAWS, made, wanted, strict=True):
        assert (np.asarray(a) == np.asarray(b)).all(), case
    assert flops(step.trace(packed)) < 0.16 * flops(jax.jit(every).trace(x))


def test_draws_of_more_elements_than_divide_are_those_of_one_device():
    layout = md.Layout(["rows -> data"], mesh={"data": 3}, uneven="pad")
    fn = lambda x: dropout(KEY, jax.vmap(dropout)(jax.random.split(KEY, len(x)), x))
    named = md.from_jax(fn, {"x": "rows _"}, strict=True)
    x = jnp.ones((8, 5))
    made = named.unpack_result(md.lower(named, layout)(named.pack(x)))
    assert (np.asarray(made) == np.asarray(fn(x))).all()
