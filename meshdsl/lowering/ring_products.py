"""Products of the parts of a ring: while a device multiplies one part, the next one travels.

Two kinds. A product of a whole dim takes the parts of an operand as they come: that is an
all_gather and a product in pieces. A product that leaves a sum over devices makes its terms part by
part, and the sum of each part comes round to gather them: a product and a psum_scatter in pieces.
Each is the transpose of the other, so by JAX's own differentiation the backward pass of the first
is one of the second. (Wang et al., "Overlap Communication with Dependent Computation via
Decomposition in Large Deep Learning Models", 2023.)

The gradient of what does not travel, a weight, is one product of the whole operand and not a sum of
products of parts: a sum would be read and written once for each part, and rounded as often. The
whole is at hand: the parts are put together as they come, for this and for other products with the
same operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax.custom_derivatives import SymbolicZero

from meshdsl.lowering import collectives
from meshdsl.lowering.moves.ring import Ring


class _Way(NamedTuple):
    """What is known of a product while tracing.

    Attributes:
      product: of arrays, linear in each of them; the first is the one that is taken in parts.
      ring: of the dim.
      at, out_at: its positions in the first array and in the result.
      arrives: whether the parts come round. Otherwise the terms of a sum leave part by part.
    """

    product: Callable
    ring: Ring
    at: int
    out_at: int
    arrives: bool


def of_arriving(product: Callable, ring: Ring, part, others, at: int, out_at: int) -> jax.Array:
    """The product of the whole of an operand, of which this device has a `part`, and `others`."""
    parts, whole = ring.arriving(part, at)
    way = _Way(product, ring, at, out_at, True)
    return _product(way, *_varying_alike(parts, whole, others))


def summed(product: Callable, ring: Ring, whole, others, at: int, out_at: int) -> jax.Array:
    """This device's part of the sum over devices of the products of `whole` and `others`."""
    way = _Way(product, ring, at, out_at, False)
    return ring.summed(_product(way, *_varying_alike([], whole, others)))


def _varying_alike(*arrays):
    """Each device has its own term of every gradient: they are summed where arrays are made to
    vary.
    """
    axes = frozenset().union(*map(collectives.varying, jax.tree.leaves(arrays)))
    return jax.tree.map(lambda x: collectives.vary(x, axes), arrays)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(way: _Way, parts, whole, others):
    """The product if the parts arrive, else the products of all parts by their turns."""
    return _all_parts(way, parts, whole, others)


def _all_parts(way: _Way, parts, whole, others):
    parts = parts if way.arrives else way.ring.taken_apart(whole, way.at)
    result = [way.product(part, *others) for part in parts]
    return way.ring.put_together(result, way.out_at) if way.arrives else result


def _derivative(way: _Way, primals, tangents):
    parts, whole, others = primals
    of_parts, of_whole, of_others = tangents
    moved: Sequence = of_parts if way.arrives else [of_whole]
    terms = []
    if not any(isinstance(t, SymbolicZero) for t in moved):
        terms.append(_all_parts(way, of_parts, of_whole, others))
    for i, tangent in enumerate(of_others):
        if not isinstance(tangent, SymbolicZero):
            term = way.product(whole, *others[:i], tangent, *others[i + 1 :])
            terms.append(term if way.arrives else way.ring.taken_apart(term, way.out_at))
    result = _product(way, parts, whole, others)
    first, *rest = terms
    for term in rest:
        first = jax.tree.map(lambda a, b: a + b, first, term)
    return result, first


_product.defjvp(_derivative, symbolic_zeros=True)
