"""A program with names, evaluated with the ops of the language: the law splits each of them.

What stands for a variable is a Tensor with some of the variable's dims, in any order: a dim that it
lacks is one along which all elements are equal, as after a broadcast. Numbers without dims, and
random keys, may also be arrays. Every rule goes by positions: an operand's dims are renamed to what
stands at their place in the result. So names decide how a program is split, never what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.ops import checkpoint, component
from meshdsl.plain_jax import source
from meshdsl.plain_jax.positions import as_op, as_tensor, constant_of, ordered
from meshdsl.plain_jax.primitives import KEYS
from meshdsl.plain_jax.program import Equation, Literal, Program, Value, Variable
from meshdsl.program.recorder import with_lines
from meshdsl.tensor import Tensor, is_tensor

Rule = Callable[["Evaluation", Equation, list], list]
RULES: dict[str, Rule] = {}
"""By primitive. A rule takes the operands and gives the results; the files in `rules` fill it."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Declare the function that follows as the rule of these primitives."""

    def declare(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return declare


class Evaluation:
    """One evaluation of a program.

    Attributes:
      strict: whether a fallback is an error.
      fallbacks: what had to run on whole operands: sentences with their lines.
      like: an argument that belongs to a lowering, by which random draws find that; None outside.
    """

    def __init__(self, fallback: Rule, args: Iterable[Any], *, strict: bool):
        self.strict = strict
        self.fallbacks: dict[str, None] = {}
        placed = (x for x in args if is_tensor(x) and x.placement is not None)
        self.like: Tensor | None = next(placed, None)
        self._fallback = fallback

    def program(self, program: Program, args: Sequence[Any]) -> list:
        """What the program gives for these arguments, which are as the class says."""
        env: dict[Variable, Any] = {v: constant(v, c) for v, c in program.constants}
        env.update(zip(program.invars, args, strict=True))
        read = lambda v: v.value if isinstance(v, Literal) else env[v]
        for e in program.equations:
            made = self.equation(e, [read(v) for v in e.ins])
            env.update(zip(e.outs, made, strict=True))
        return [read(v) for v in program.outvars]

    def equation(self, e: Equation, xs: list) -> list:
        """The results of one equation. The record of its ops quotes its lines."""
        with with_lines(e.lines), self._as_op(e, xs):
            if self._is_raw(e, xs):
                made = bind(e, [_array_of(x, v) for x, v in zip(xs, e.ins, strict=True)])
                return [constant(v, a) for v, a in zip(e.outs, made, strict=True)]
            made = RULES.get(e.name, self._fallback)(self, e, xs)
            made = [_held(x, v) for x, v in zip(made, e.outs, strict=True)]
            return _save_points(e, made) if "saved" in e.notes else made

    def _as_op(self, e: Equation, xs: list):
        """A context that records an equation of arrays that every device has."""
        placed = any(is_tensor(x) and x.placement is not None for x in xs)
        dims = next((v.flat for v in (*e.outs, *e.ins) if v.flat), ())
        if placed or e.bodies or e.name == "random_bits" or not dims:
            return nullcontext()
        return as_op(e.name, dims)

    def fall_back(self, e: Equation, xs: list) -> list:
        """The results by the primitive itself, on whole operands."""
        return self._fallback(self, e, xs)

    def _is_raw(self, e: Equation, xs: list) -> bool:
        """Whether an equation is of keys, or of numbers that every device has."""
        if e.primitive is None or e.bodies or e.name == "custom_jvp_call":
            return False
        keys = any(v.is_key for v in (*e.ins, *e.outs))
        if e.name in KEYS or (keys and e.name != "random_bits"):
            return True
        scalars = all(v.shape == () for v in (*e.ins, *e.outs))
        return scalars and e.name != "random_bits" and not any(is_tensor(x) for x in xs)


def _save_points(e: Equation, xs: list) -> list:
    """Results that a policy keeps for the backward pass, see `saving`."""
    if e.name == "name":  # one by itself
        return xs
    return [
        checkpoint.checkpoint_name(as_tensor(x, v), e.notes["saved"])
        for x, v in zip(xs, e.outs, strict=True)
    ]


def _held(x: Any, v: Variable) -> Any:
    """A result, which has the dtype of its variable, and no dims but those of it."""
    if not is_tensor(x):
        return x
    assert set(x.dims) <= set(v.flat), (x.dims, v.flat)
    return x if x.dtype == v.dtype else component.cast(x, v.dtype)


def bind(e: Equation, xs: Sequence[Any]) -> list:
    """The primitive itself, on arrays."""
    return bind_arrays(e.primitive, e.params, [jnp.asarray(x) for x in xs])


def bind_arrays(primitive: Any, params: dict[str, Any], xs: Sequence[Any]) -> list:
    """A primitive with the parameters that stand in an equation, on arrays."""
    got = primitive.get_bind_params(params)
    functions, params = got if isinstance(got, tuple) else ((), got)
    made = primitive.bind(*functions, *xs, **params)
    return list(made) if primitive.multiple_results else [made]


def constant(v: Variable, array: Any) -> Any:
    """An array that every device has, as a Tensor that belongs to no lowering.

    Keys and numbers without dims stay as they are.
    """
    if v.is_key or not v.shape:
        return array
    return constant_of(array, v)


def _array_of(x: Any, v: Value) -> Any:
    """The array of what stands for `v`, in the shape of `v`."""
    if not is_tensor(x):
        return x
    if x.split or x.pending:
        raise MeshDSLError(
            "from_jax: random keys and their words are not computed from what is split between "
            "devices"
        )
    return jnp.reshape(ordered(x, v).array, v.shape)


def numpy_scalar(x: Any) -> Any:
    """A number that is known as one of NumPy, so that functions that close over it are alike."""
    if isinstance(x, (np.generic, np.ndarray)) and np.ndim(x) == 0:
        return np.asarray(x)[()]
    return x


def where(e: Equation) -> str:
    """`model.py:31`, the line of an equation."""
    return source.shown(e.lines)


def is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))
