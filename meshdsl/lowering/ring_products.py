"""Products of the parts of a ring: while a device multiplies one part, the next one travels.

There are two kinds. A product that needs a whole dim multiplies the parts of an operand as they
arrive: an all_gather and a product, in pieces. A product that leaves a sum over devices computes
its terms part by part, and the sum of each part goes round to collect them: a product and a
psum_scatter, in pieces. Each kind is the transpose of the other, so JAX's own differentiation gives
a product of the one kind a backward pass of the other. (Wang et al., "Overlap Communication with
Dependent Computation via Decomposition in Large Deep Learning Models", 2023.)

The gradient of the operand that does not travel, a weight, is one product with the whole of the
operand that does. A sum of products with its parts would be read and written once for each part,
and rounded as often. The whole is there anyway: the parts are joined as they arrive, also for other
products with the same operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax.custom_derivatives import SymbolicZero

from meshdsl.lowering import collectives
from meshdsl.lowering.moves.ring import Ring


class _Static(NamedTuple):
    """What is known of a product while tracing.

    Attributes:
      product: a function of arrays, linear in each of them. The first array is taken in parts.
      ring: the ring of the dim.
      at, out_at: the positions of the dim in the first array and in the result.
      arrives: whether the parts of the first array arrive one by one. Otherwise the array is whole,
        and the terms of a sum leave part by part.
    """

    product: Callable
    ring: Ring
    at: int
    out_at: int
    arrives: bool


def of_arriving(product: Callable, ring: Ring, part, others, at: int, out_at: int) -> jax.Array:
    """The product of an operand that is whole along the ring with `others`.

    Args:
      part: this device's part of the operand.
    """
    parts, whole = ring.arriving(part, at)
    static = _Static(product, ring, at, out_at, True)
    return _product(static, *collectives.vary_together((parts, whole, others)))


def summed(product: Callable, ring: Ring, whole, others, at: int, out_at: int) -> jax.Array:
    """This device's part of the sum over devices of the products of `whole` and `others`."""
    static = _Static(product, ring, at, out_at, False)
    return ring.summed(_product(static, *collectives.vary_together(([], whole, others))))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(static: _Static, parts, whole, others):
    """The product, if the parts arrive; else the products of the parts in the order of turns."""
    return _all_parts(static, parts, whole, others)


def _all_parts(static: _Static, parts, whole, others):
    parts = parts if static.arrives else static.ring.taken_apart(whole, static.at)
    result = [static.product(part, *others) for part in parts]
    return static.ring.put_together(result, static.out_at) if static.arrives else result


def _derivative(static: _Static, primals, tangents):
    parts, whole, others = primals
    of_parts, of_whole, of_others = tangents
    moved: Sequence = of_parts if static.arrives else [of_whole]
    terms = []
    if not any(isinstance(t, SymbolicZero) for t in moved):
        terms.append(_all_parts(static, of_parts, of_whole, others))
    for i, tangent in enumerate(of_others):
        if not isinstance(tangent, SymbolicZero):
            term = static.product(whole, *others[:i], tangent, *others[i + 1 :])
            terms.append(term if static.arrives else static.ring.taken_apart(term, static.out_at))
    result = _product(static, parts, whole, others)
    first, *rest = terms
    for term in rest:
        first = jax.tree.map(lambda a, b: a + b, first, term)
    return result, first


_product.defjvp(_derivative, symbolic_zeros=True)
