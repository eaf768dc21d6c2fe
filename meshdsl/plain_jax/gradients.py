"""Functions that bring a gradient of their own, by `jax.custom_vjp` or `jax.custom_jvp`.

JAX itself is asked for both passes: what it traces for `jax.vjp` of the one equation has the rules
of the user in it, whatever form they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from meshdsl.errors import MeshDSLError
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
      closed_over: the numbers of operands of floats for which the function brings no gradient.
      fixed: returns such an operand; its derivative is an error.
    """

    forward: Any
    backward: Any
    kept: int
    results: tuple[int, ...]
    operands: tuple[int, ...]
    closed_over: tuple[int, ...]
    fixed: Callable

    @property
    def bodies(self) -> tuple:
        """Both passes."""
        return self.forward, self.backward


def rules_of(e: Any, what: str) -> Rules:
    """Both passes of an equation of a jaxpr.

    Args:
      what: the function and its line, for an error.
    """
    # The first operands may be values that the function closes over, without a gradient. JAX loses
    # their number where it maps the function by `vmap` or leaves out some of what it takes.
    first = e.params.get("num_consts", 0)
    while True:
        try:
            return _rules_of(e, first, what)
        except Exception as error:
            if type(error).__name__ != "CustomVJPException" or first == len(e.invars):
                raise
        first += 1


def _rules_of(e: Any, first: int, what: str) -> Rules:
    """Both passes, with gradients for the operands from the number `first` on."""
    closed_over, results = _with_cotangents(e.invars[:first]), _with_cotangents(e.outvars)
    operands = tuple(first + i for i in _with_cotangents(e.invars[first:]))
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in e.invars]

    def of_operands(*xs):
        run = lambda *ys: tuple(bind_arrays(e.primitive, e.params, (*xs[:first], *ys)))
        return jax.vjp(run, *xs[first:])

    forward, (out, pull) = jax.make_jaxpr(of_operands, return_shape=True)(*shapes)
    kept, tree = jax.tree.flatten(pull)

    def backward(kept, cotangents):
        given = iter(cotangents)
        every = tuple(
            next(given) if i in results else np.zeros(x.shape, jax.dtypes.float0)
            for i, x in enumerate(out)
        )
        found = jax.tree.unflatten(tree, kept)(every)
        return [found[i - first] for i in operands]

    both = forward, jax.make_jaxpr(backward)(kept, [out[i] for i in results])
    fixed = _fixed(
        f"from_jax: {what} is differentiated by a value that it closes over: give it the value as "
        "an argument"
    )
    return Rules(*both, len(kept), results, operands, closed_over, fixed)


def _fixed(message: str) -> Callable:
    """A function that returns its argument, and raises an error where that is differentiated."""

    @jax.custom_jvp
    def fixed(x):
        return x

    def derivative(primals, tangents):
        if not isinstance(tangents[0], SymbolicZero):
            raise MeshDSLError(message)
        return primals[0], tangents[0]

    fixed.defjvp(derivative, symbolic_zeros=True)
    return fixed


def named(fn: Callable, what: str) -> Callable:
    """A function of arrays to a list of them, an error in whose derivative says what it is of."""

    @jax.custom_jvp
    def run(*xs):
        return fn(*xs)

    def derivative(primals, tangents):
        changing = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

        def of(*xs):
            given = dict(zip(changing, xs, strict=True))
            return fn(*[given.get(i, x) for i, x in enumerate(primals)])

        at = [primals[i] for i in changing], [tangents[i] for i in changing]
        with naming(f"{what} has no derivative"):
            return jax.jvp(of, *at)

    run.defjvp(derivative, symbolic_zeros=True)
    return run


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Errors of JAX inside of this `with` are ours, and begin with `what`."""
    try:
        yield
    except (MeshDSLError, jax.errors.JAXTypeError):
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise MeshDSLError(f"from_jax: {what}: {type(error).__name__}: {said}") from error


def _with_cotangents(variables: Any) -> tuple[int, ...]:
    return tuple(i for i, v in enumerate(variables) if jnp.issubdtype(v.aval.dtype, jnp.inexact))
