"""log, exp and erf_inv of float32 that give the same bits wherever they are computed.

What XLA makes of `log` or `erf_inv` differs in the last bit between its versions, and in one
version between the fusions that the function stands in. There are two reasons: XLA approximates
these functions by polynomials of its own, and it may round a product together with the sum that
it is added to, once instead of twice. Here the polynomials are our own, Cephes' (Moshier, `logf`,
`expf`) and Giles' ("Approximating the erfinv function", GPU Computing Gems, 2011), and every
product that is added to something is kept apart from the sum. Errors are below 3e-7 of the
result.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


# Coefficients of polynomials, the highest power first.
_LOG = _numbers("""
    7.0376836292e-2 -1.1514610310e-1 1.1676998740e-1 -1.2420140846e-1 1.4249322787e-1
    -1.6668057665e-1 2.0000714765e-1 -2.4999993993e-1 3.3333331174e-1
""")
_EXP = _numbers("""
    1.9875691500e-4 1.3981999507e-3 8.3334519073e-3 4.1665795894e-2 1.6666665459e-1
    5.0000001201e-1
""")
_ERF_INV_CENTRE = _numbers("""
    2.81022636e-08 3.43273939e-07 -3.5233877e-06 -4.39150654e-06 0.00021858087 -0.00125372503
    -0.00417768164 0.246640727 1.50140941
""")
_ERF_INV_TAIL = _numbers("""
    -0.000200214257 0.000100950558 0.00134934322 -0.00367342844 0.00573950773 -0.0076224613
    0.00943887047 1.00167406 2.83297682
""")
# The logarithm of 2 in two parts: the first has 9 bits, so its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4


def apart(product) -> jax.Array:
    """`product`, so that a compiler rounds it before it is added to anything.

    A maximum with a bound that the product never reaches stands between the two.
    """
    return jnp.maximum(product, -1e38)


def _polynomial(coefficients, x) -> jax.Array:
    """The polynomial of `x`, by Horner's rule."""
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = apart(total * x) + jnp.float32(c)
    return total


def log(x) -> jax.Array:
    """The natural logarithm of positive, normal numbers."""
    words = lax.bitcast_convert_type(x, jnp.int32)
    # The exponent is chosen such that the rest lies between the roots of 1/2 and of 2.
    exponent = ((words - 0x3F3504F3) >> 23).astype(jnp.float32)
    rest = lax.bitcast_convert_type(words - (((words - 0x3F3504F3) >> 23) << 23), jnp.float32) - 1
    square = apart(rest * rest)
    low = apart(_polynomial(_LOG, rest) * rest * square) + apart(exponent * _LN2_LOW)
    return rest + (low - square * 0.5) + exponent * _LN2_HIGH


def exp(x) -> jax.Array:
    """The exponential function of numbers up to 0; 0 where the result is no normal number."""
    count = jnp.floor(apart(jnp.maximum(x, -88) * 1.4426950408889634) + 0.5)
    rest = (x - count * _LN2_HIGH) - apart(count * _LN2_LOW)
    value = apart(_polynomial(_EXP, rest) * (rest * rest)) + rest + 1
    power = lax.bitcast_convert_type((count.astype(jnp.int32) + 127) << 23, jnp.float32)
    return jnp.where(x >= -87, value * power, 0)


def erf_inv(x) -> jax.Array:
    """The inverse of the error function, for numbers between -1 and 1."""
    w = -log((1 - x) * (1 + x))
    centre = _polynomial(_ERF_INV_CENTRE, w - 2.5)
    tail = _polynomial(_ERF_INV_TAIL, jnp.sqrt(jnp.maximum(w, 5)) - 3)
    return jnp.where(w < 5, centre, tail) * x
