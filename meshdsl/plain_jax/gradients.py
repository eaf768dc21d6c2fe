"""Functions that bring a gradient of their own, by `jax.custom_vjp` or `jax.custom_jvp`.

JAX itself is asked for both passes: what it traces for `jax.vjp` of the one equation has the rules
of the user in it, whatever form they have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.plain_jax.evaluate import bind_arrays


class Rules(NamedTuple):
    """The two passes of a function, as closed jaxprs.

    Attributes:
      forward: from the operands to the results, and then what the backward pass needs.
      backward: from what it needs, and the cotangents of the results that have some, to the
        cotangents of the operands that have some.
      kept: how many arrays the backward pass needs.
      results: the numbers of the results that have cotangents, those of floats.
      operands: the numbers of the operands that have cotangents.
    """

    forward: Any
    backward: Any
    kept: int
    results: tuple[int, ...]
    operands: tuple[int, ...]

    @property
    def bodies(self) -> tuple:
        """Both passes."""
        return self.forward, self.backward


def rules_of(e: Any) -> Rules:
    """Both passes of an equation of a jaxpr."""
    operands, results = (_with_cotangents(variables) for variables in (e.invars, e.outvars))
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in e.invars]
    run = lambda *xs: tuple(bind_arrays(e.primitive, e.params, xs))
    forward, (out, pull) = jax.make_jaxpr(lambda *xs: jax.vjp(run, *xs), return_shape=True)(*shapes)
    kept, tree = jax.tree.flatten(pull)

    def backward(kept, cotangents):
        given = iter(cotangents)
        every = tuple(
            next(given) if i in results else np.zeros(x.shape, jax.dtypes.float0)
            for i, x in enumerate(out)
        )
        found = jax.tree.unflatten(tree, kept)(every)
        return [found[i] for i in operands]

    of_results = [out[i] for i in results]
    return Rules(forward, jax.make_jaxpr(backward)(kept, of_results), len(kept), results, operands)


def _with_cotangents(variables: Any) -> tuple[int, ...]:
    return tuple(i for i, v in enumerate(variables) if jnp.issubdtype(v.aval.dtype, jnp.inexact))
