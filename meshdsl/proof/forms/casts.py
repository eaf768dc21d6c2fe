"""Casts between floats: they keep numbers, up to rounding, and go inwards through what is linear.

So it does not matter whether what is added up, or put in another order, was cast before or after.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from meshdsl.proof.forms.assumed import again
from meshdsl.proof.forms.orders import each_row
from meshdsl.proof.forms.products import factors, product
from meshdsl.proof.forms.sums import elementwise, form
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, arguments_of


def has_all_of(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether a dtype has every number of another one."""
    if not jnp.issubdtype(narrow, np.floating) or not jnp.issubdtype(wide, np.floating):
        return narrow == wide
    w, n = jnp.finfo(wide), jnp.finfo(narrow)
    return bool(w.nmant >= n.nmant and w.maxexp >= n.maxexp and w.minexp <= n.minexp)


@form("cast")
def _cast(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """Of what a number is times; and of each that is added up, or that lies in another order."""
    (x,), (old, new) = values, map(np.dtype, params)
    if old == new:
        return x
    if x.term.op == "const":
        number = x.term.params[1]
        number = np.asarray(float(number) if isinstance(number, str) else number, old).astype(new)
        return Value(terms.constant(number, new), (), ())
    each = lambda value: elementwise(terms, op, params, [value], value.dims)
    if x.term.op == "cast" and has_all_of(*map(np.dtype, x.term.params[1::-1])):
        return elementwise(terms, op, (x.term.params[0], params[1]), arguments_of(x), ())
    whole = factors(x)
    if not whole.plain:
        factor = whole.factor or Value(terms.constant(1.0, old), (), ())
        return product(terms, whole._replace(factor=each(factor)))
    if x.term.op == "ordered":
        return each_row(terms, x, each)
    args = arguments_of(x)
    summed = [arg for arg in args if x.term.op == "reduce_sum"]
    stays = all(arg.term.op != "ordered" and factors(arg).plain for arg in summed)
    if x.term.op == "sum" or not stays:
        return again(terms, x, args, list(map(each, args)))
    return None
