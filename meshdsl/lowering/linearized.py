"""A function as two: its forward pass, which keeps something, and its backward pass.

    both = Linearized(fn, wanted, fixed, data)
    results, kept = both.forward(wanted, fixed, data)
    ...                                    # later, also inside of another loop
    by_wanted, by_data = both.back(wanted, fixed, kept, cotangents)

What is kept is what JAX keeps for the backward pass of `fn`, with its `jax.checkpoint`s, as far as
it depends on `data`. What depends on `wanted` and `fixed` alone, such as a parameter in another
dtype, or gathered, is computed again. Everything is a list of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from meshdsl.program.jaxpr import body_of, cut_from, variables_of


class Linearized:
    """See the module.

    Args:
      fn: of `wanted`, `fixed` and `data`, to a list of arrays.
      wanted: arrays by which it is differentiated.
      fixed: arrays by which it is not.
      data: arrays by which it is differentiated where they are floating-point numbers.

    Attributes:
      kept: the types of what the forward pass keeps.
    """

    def __init__(self, fn: Callable, wanted: list, fixed: list, data: list):
        self._structure: Any = None
        self._outs: list = []

        def linearized(wanted, fixed, data):
            out, pull = jax.vjp(lambda wanted, data: fn(wanted, fixed, data), wanted, data)
            residuals, self._structure = jax.tree.flatten(pull)
            self._outs = [jax.typeof(x) for x in out]
            return out, residuals

        closed = jax.make_jaxpr(linearized)(wanted, fixed, data)
        jaxpr = body_of(closed)
        count = len(jaxpr.invars) - len(data)
        self._consts = closed.consts
        moving = _depending(jaxpr, jaxpr.invars[count:])
        results, residuals = jaxpr.outvars[: len(self._outs)], jaxpr.outvars[len(self._outs) :]
        variables = dict.fromkeys(variables_of(residuals))
        kept = [v for v in variables if v in moving]
        free = [v for v in variables if v not in moving]
        taken = [*jaxpr.constvars, *jaxpr.invars]
        effects = frozenset(id(e) for e in jaxpr.eqns if e.effects)
        self._forward = _part(jaxpr, taken, [*results, *kept], effects)
        self._again = _part(jaxpr, taken[: len(jaxpr.constvars) + count], free)
        self._residuals, self._kept, self._free = residuals, kept, free
        self.kept = [v.aval for v in kept]

    def forward(self, wanted: list, fixed: list, data: list) -> tuple[list, list]:
        """The results, and what to keep for the backward pass."""
        found = self._forward(*self._consts, *wanted, *fixed, *data)
        return found[: len(self._outs)], found[len(self._outs) :]

    def back(self, wanted: list, fixed: list, kept: list, cotangents: list) -> tuple[list, list]:
        """The cotangents of `wanted`, and of those of `data` that are floating-point numbers.

        Args:
          cotangents: of those of the results that are.
        """
        found = dict(zip(self._kept, kept, strict=True))
        again = self._again(*self._consts, *wanted, *fixed)
        found |= dict(zip(self._free, again, strict=True))
        literal = lambda v: jnp.asarray(v.val, v.aval.dtype)
        read = lambda v: literal(v) if isinstance(v, jex.Literal) else found[v]
        pull = jax.tree.unflatten(self._structure, [read(v) for v in self._residuals])
        by_wanted, by_data = pull(cotangents_of(self._outs, cotangents))
        return by_wanted, floats(by_data)


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def floats(xs) -> list:
    """Those of some arrays that have cotangents."""
    return [x for x in xs if is_float(x)]


def cotangents_of(out, given: list) -> list:
    """The cotangents of some arrays, of which those of the floating-point ones are given."""
    each = iter(given)
    none = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    return [next(each) if is_float(x) else none(x) for x in out]


def _depending(jaxpr, variables) -> set:
    """All variables of a jaxpr that depend on some of them."""
    found = set(variables)
    for e in jaxpr.eqns:
        if not found.isdisjoint(variables_of(e.invars)):
            found.update(e.outvars)
    return found


def _part(jaxpr, arguments: list, results: list, others=frozenset()) -> Callable:
    """The equations of a jaxpr that some results need, and those with the ids `others`.

    It is a function of arrays.
    """
    needed, equations = set(variables_of(results)), []
    for e in reversed(jaxpr.eqns):
        if id(e) in others or not needed.isdisjoint(e.outvars):
            needed.update(variables_of(e.invars))
            equations.append(e)
    return jex.jaxpr_as_fun(cut_from(jaxpr, arguments, equations[::-1], results))
