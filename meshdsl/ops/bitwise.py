"""Functions of float32 whose result depends on the operand alone, to the bit.

What XLA makes of `log` or `erf_inv` differs in the last bit between versions, and in one version between the fusions that it stands in:
their polynomials are approximations of its own, and a product that meets a sum is rounded once or twice. Here
every product that meets a sum is kept apart from it, and the polynomials are our own: Cephes' (Moshier, `logf`, `expf`) and
Giles' ("Approximating the erfinv function", GPU Computing Gems, 2011). Errors are below 3e-7 of the result.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1,
    -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_ERF_INV_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
    1.50140941,
)  # fmt: skip
_ERF_INV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
    2.83297682,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = (
    0.693359375,
    -2.12194440e-4,
)  # the first has 9 bits, so that its product with an exponent is exact


def apart(product) -> jax.Array:
    """`product`, which then meets a sum: a bound that it never reaches keeps a compiler from rounding the two together."""
    return jnp.maximum(product, -1e38)


def _polynomial(coefficients, x) -> jax.Array:
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = apart(total * x) + jnp.float32(c)
    return total


def log(x) -> jax.Array:
    """The natural logarithm of positive, normal numbers."""
    words = lax.bitcast_convert_type(x, jnp.int32)
    exponent = ((words - 0x3F3504F3) >> 23).astype(
        jnp.float32
    )  # so that the rest lies between root 1/2 and root 2
    rest = lax.bitcast_convert_type(words - (((words - 0x3F3504F3) >> 23) << 23), jnp.float32) - 1
    square = apart(rest * rest)
    low = apart(_polynomial(_LOG, rest) * rest * square) + apart(exponent * _LN2_LOW)
    return rest + (low - square * 0.5) + exponent * _LN2_HIGH


def exp(x) -> jax.Array:
    """The exponential function of numbers that are not positive; 0 where the result would not be a normal number."""
    count = jnp.floor(apart(jnp.maximum(x, -88) * 1.4426950408889634) + 0.5)
    rest = (x - count * _LN2_HIGH) - apart(count * _LN2_LOW)
    value = apart(_polynomial(_EXP, rest) * (rest * rest)) + rest + 1
    power = lax.bitcast_convert_type((count.astype(jnp.int32) + 127) << 23, jnp.float32)
    return jnp.where(x >= -87, value * power, 0)


def erf_inv(x) -> jax.Array:
    """The inverse of the error function, between -1 and 1."""
    w = -log((1 - x) * (1 + x))
    centre = _polynomial(_ERF_INV_CENTRE, w - 2.5)
    tail = _polynomial(_ERF_INV_TAIL, jnp.sqrt(jnp.maximum(w, 5)) - 3)
    return jnp.where(w < 5, centre, tail) * x
