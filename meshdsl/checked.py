"""Public functions are held to their annotations, before anything is computed.

`roll(x: Tensor, dim, by: int)` takes a whole number for `by`. That 1.5 is none, nor a Tensor, nor a
value that is still being traced, is said here, once for all functions. What an annotation cannot
say, such as that `x` has a dim, the function says itself; so dims are left to it, which knows the
dims at hand.

What JAX refuses nevertheless, such as the logarithm of random keys, becomes a MeshDSLError that
names the operands. Functions that call one of the user's leave errors as they are, because these
may be the user's own.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import chain, repeat
from types import FunctionType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import UnexpectedTracerError
from jax.sharding import AbstractMesh, Mesh
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import COMPUTED, LEAKED, MeshDSLError, either, is_whole, quote
from meshdsl.layout import Layout
from meshdsl.stand_in import stand_in
from meshdsl.tensor import Tensor, is_tensor

_REFUSALS = (TypeError, ValueError, OverflowError, NotImplementedError, AttributeError)
_LONGEST = 200  # characters that are quoted of a message of JAX


def _is_number(value) -> bool:
    """Whether `value` is a real number that is known while the program is traced."""
    if isinstance(value, (bool, np.bool_, str)) or is_tensor(value) or np.ndim(value):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_list(value) -> bool:
    return (
        isinstance(value, Iterable)
        and not isinstance(value, (str, bytes))
        and not hasattr(value, "dtype")
    )


def _is_dtype(value) -> bool:
    if value is None or isinstance(value, (Tensor, jax.Array, np.ndarray, np.generic)):
        return False
    try:
        return jnp.issubdtype(value, jnp.number) or jnp.dtype(value) == np.bool_
    except (TypeError, ValueError):
        return False


# For each annotation: what is accepted, and how a message calls it.
_KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    Tensor: (is_tensor, "a Tensor"),
    Dim: (lambda value: isinstance(value, Dim), "a Dim such as Dim('batch', 8)"),
    int: (is_whole, "a whole number"),
    float: (_is_number, "a number"),
    bool: (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    str: (lambda value: isinstance(value, str), "a name"),
    NoneType: (lambda value: value is None, "None"),
    Callable: (callable, "a function"),
    Mapping: (lambda value: isinstance(value, Mapping), "a mapping"),
    Sequence: (_is_list, "a list or tuple"),
    tuple: (lambda value: isinstance(value, tuple), "a tuple"),
    DTypeLike: (_is_dtype, "a dtype such as jnp.bfloat16"),
    Layout: (lambda value: isinstance(value, Layout), "a Layout"),
    Mesh: (lambda value: isinstance(value, Mesh), "a mesh"),
    AbstractMesh: (lambda value: isinstance(value, AbstractMesh), "a mesh without devices"),
}
_ADVICE = {
    Tensor: "give an array dims with md.tensor(array, dims)",
    Layout: "make one with md.Layout(rules, mesh={...}), or read one with md.Layout.load(file)",
    Mesh: "make one with md.make_mesh(layout)",
}


def _kinds(hint) -> tuple | None:
    """What a value with this annotation may be; None where the function checks for itself."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    of_dtype = get_args(DTypeLike)  # it is a union itself, so `DTypeLike | None` has its members
    if set(of_dtype) <= set(members):
        members = (DTypeLike, *(m for m in members if m not in of_dtype))
    kinds = tuple(m if m in _KINDS else get_origin(m) for m in members)
    return kinds if set(kinds) <= set(_KINDS) and not {Dim, str} <= set(kinds) else None


def _calls(hint) -> bool:
    """Whether an argument with this annotation is a function, or holds some."""
    return Callable in (hint, get_origin(hint)) or any(_calls(part) for part in get_args(hint))


class _Wrong(Exception):
    """An argument that is not of its annotation: what to say of it, and the argument."""


def _taker(what: str, kinds) -> Callable | None:
    """A function that gives a legal argument back, and raises `_Wrong` for any other.

    None where every argument is legal.
    """
    if kinds is None:
        return None
    legal = [_KINDS[kind][0] for kind in kinds]
    wanted = f"{what} is {either([_KINDS[kind][1] for kind in kinds])}, not"
    advice = next((_ADVICE[kind] for kind in kinds if kind in _ADVICE), "")

    def take(value):
        for is_legal in legal:
            if is_legal(value):
                return operator.index(value) if is_legal is is_whole else value
        more = COMPUTED if int in kinds and hasattr(value, "dtype") else advice
        raise _Wrong(f"{wanted} {quote(value)}{more and '; '}{more}", value)

    return take


def described(tensors: Iterable[Tensor]) -> str:
    """`[a=4] of int32 and [] of bool`: Tensors as a message names them."""
    return " and ".join(f"{dim_algebra.show(t.dims)} of {t.dtype}" for t in tensors)


def _translated(name: str, error: Exception, arguments, calls: bool) -> MeshDSLError | None:
    """What JAX refuses, in the words of the op; None for an error that is to stay as it is.

    Args:
      calls: the op calls a function of the user's, whose error it may be.
    """
    raised = error.__traceback__
    of_the_call = raised is None or raised.tb_next is None  # an argument too many, or one too few
    if of_the_call or isinstance(error, MeshDSLError):
        return None
    if calls or isinstance(error, AttributeError):
        return None
    operands = described(x for x in arguments if is_tensor(x))
    said = " ".join(str(error).split())[:_LONGEST]
    said = LEAKED if isinstance(error, UnexpectedTracerError) else said
    return MeshDSLError(f"{name}: cannot be done{f' with {operands}' if operands else ''}: {said}")


def checked(fn: Callable, explain: Callable[[str, Exception, tuple], None] | None = None):
    """`fn`, with each argument held to its annotation.

    Args:
      explain: knows more about what JAX refuses. It gets the name of `fn`, the error and the
        arguments, and raises an error that says more, or returns.
    """
    name, hints, parameters = fn.__name__, get_type_hints(fn), inspect.signature(fn).parameters
    kinds = {p: _kinds(hints[p]) if p in hints else None for p in parameters}
    takers = {p: _taker(f"{name}: `{p}`", k) for p, k in kinds.items()}
    by_place = [takers[p] for p, how in parameters.items() if how.kind == how.POSITIONAL_OR_KEYWORD]
    of_rest = [
        _taker(f"{name}: each of `{p}`", kinds[p])
        for p, how in parameters.items()
        if how.kind == how.VAR_POSITIONAL
    ]
    of_rest = of_rest[0] if of_rest else None
    calls = any(_calls(hint) for p, hint in hints.items() if p != "return")

    @wraps(fn)
    def call(*args, **named):
        if (other := stand_in(args, named)) is not None:
            return other.compute(call, args, named)
        try:
            taken = [
                x if take is None else take(x)
                for take, x in zip(chain(by_place, repeat(of_rest)), args, strict=False)
            ]
            named = {p: x if (take := takers.get(p)) is None else take(x) for p, x in named.items()}
        except _Wrong as wrong:
            said, value = wrong.args
            dims = " and ".join(
                dim_algebra.show(x.dims)
                for x in (*args, *named.values())
                if is_tensor(x) and x is not value
            )
            raise MeshDSLError(f"{said}; called with {dims}" if dims else said) from None
        try:
            return fn(*taken, **named)
        except _REFUSALS as error:
            if explain and not isinstance(error, MeshDSLError):
                explain(name, error, (*args, *named.values()))
            if translated := _translated(name, error, (*args, *named.values()), calls):
                raise translated from error
            raise

    return call


def hold(names: Iterable[str], namespace: dict[str, Any]) -> None:
    """Hold every function of `namespace` that is called one of `names` to its annotations."""
    for name in names:
        if isinstance(namespace[name], FunctionType):
            namespace[name] = checked(namespace[name])
