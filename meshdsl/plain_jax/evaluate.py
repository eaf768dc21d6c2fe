"""A program with names, evaluated with the ops of the language: the law splits each of them.

What stands for a variable is a Tensor with some of the variable's dims, in any order: a dim that it
lacks is one along which all elements are equal, as after a broadcast. Numbers without dims, and
random keys, may also be arrays. Every rule goes by positions: an operand's dims are renamed to what
stands at their place in the result. So names decide how a program is split, never what it computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.scope import Scope
from meshdsl.ops import checkpoint, component, reshape
from meshdsl.plain_jax import source
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
      like: a Tensor of the computation, by which random draws find its lowering.
    """

    def __init__(self, fallback: Rule, *, strict: bool):
        self.strict = strict
        self.fallbacks: dict[str, None] = {}
        self.like: Tensor | None = None
        self._fallback = fallback

    def program(self, program: Program, args: Sequence[Any]) -> list:
        """What the program gives for these arguments, which are as the class says."""
        env: dict[Variable, Any] = {v: constant(v, c) for v, c in program.constants}
        env.update(zip(program.invars, args, strict=True))
        if self.like is None or self.like.placement is None:
            placed = (x for x in args if is_tensor(x) and x.placement is not None)
            self.like = next(placed, self.like)
        read = lambda v: v.value if isinstance(v, Literal) else env[v]
        for e in program.equations:
            made = self.equation(e, [read(v) for v in e.ins])
            env.update(zip(e.outs, made, strict=True))
        return [read(v) for v in program.outvars]

    @property
    def scope(self) -> Scope | None:
        """The lowering that the program is evaluated in; None outside of one."""
        placement = None if self.like is None else self.like.placement
        return None if placement is None else placement.scope

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
        """A context that records an equation of arrays that every device has, as a mask is.

        The ops of the language run such arrays as outside of any lowering, and record nothing.
        """
        placed = any(is_tensor(x) and x.placement is not None for x in xs)
        dims = e.outs[0].flat if e.outs else ()
        if self.scope is None or placed or e.bodies or e.name == "random_bits" or not dims:
            return nullcontext()
        op = self.scope.recorder.begin(e.name, dims, ((),) * len(dims))
        return jax.named_scope(op.tag)

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
    return Tensor(jnp.reshape(array, [d.size for d in v.flat]), v.flat)


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


def as_tensor(x: Any, v: Value) -> Tensor:
    """`x`, which stands for `v`, as a Tensor."""
    if is_tensor(x):
        return x
    array = jnp.asarray(x)
    return Tensor(array, ()) if array.ndim == 0 else constant_of(array, v)


def constant_of(array: Any, v: Value) -> Tensor:
    """An array that has the shape of `v`."""
    return Tensor(jnp.reshape(array, [d.size for d in v.flat]), v.flat)


def full(x: Any, v: Value, dims: Dims | None = None) -> Tensor:
    """`x`, which stands for `v`, with all of `dims`; by default all that `v` has."""
    x = as_tensor(x, v)
    wanted = v.flat if dims is None else dims
    missing = dim_algebra.without(wanted, x.dims)
    return reshape.broadcast(x, (*missing, *x.dims)) if missing else x


def ordered(x: Any, v: Value) -> Tensor:
    """`x`, which stands for `v`, with all of its dims, in order."""
    x = full(x, v)
    return x if x.dims == v.flat else reshape.transpose(x, v.flat)


def renamed(x: Any, names: dict[str, str]) -> Any:
    """`x` with those of its dims renamed that are in `names`, all at once."""
    if not is_tensor(x):
        return x
    present = {d.name for d in x.dims}
    names = {a: b for a, b in names.items() if a != b and a in present}
    return reshape.rename(x, names) if names else x


def fits(have: Iterable[Dims], want: Iterable[Dims]) -> bool:
    """Whether the factors at each position have the same sizes."""
    sizes = lambda positions: [[d.size for d in dims] for dims in positions]
    return sizes(have) == sizes(want)


def as_positions(x: Any, v: Value, at: Sequence[int], want: Sequence[Dims]) -> Any:
    """`x`, which stands for `v`, with the dims at the positions `at` as those of `want`.

    Where the factors have other sizes the elements are regrouped. Dims at other positions must not
    be called as those of `want` are.
    """
    if not is_tensor(x):
        return x
    have = [v.dims[i] for i in at]
    names: dict[str, str] = {}
    torn = []
    for a, b in zip(have, want, strict=True):
        if fits([a], [b]):
            names.update((d.name, e.name) for d, e in zip(a, b, strict=True))
        else:
            torn.append((a, b))
    if not torn:
        return renamed(x, names)
    x = full(x, v, tuple(d for a, _ in torn for d in a))
    aside = {d.name: f"{d.name}__torn" for a, _ in torn for d in a}
    x = renamed(x, {**names, **aside})
    for a, b in torn:
        old = tuple(d.alias(aside[d.name]) for d in a)
        x = regrouped(x, old, b)
    return x


def regrouped(x: Tensor, old: Dims, new: Dims) -> Tensor:
    """`x`, whose dims `old` become `new`: as many elements, in the same order."""
    rest = dim_algebra.without(x.dims, old)
    if x.dims != (*rest, *old):
        x = reshape.transpose(x, (*rest, *old))
    return reshape.reshape(x, (*rest, *new))


def like_result(
    x: Any, v: Value, out: Variable, pairs: Iterable[tuple[int, int]] | None = None
) -> Any:
    """Operand `x`, which stands for `v`, with the names of the result where they correspond.

    Args:
      pairs: positions of the operand and of the result, by default each and itself. A position of
        one element in the operand has no dims, whatever the result has there.
    """
    if not is_tensor(x):
        return x
    if pairs is None:
        pairs = [(i, i) for i in range(len(v.shape))] if len(v.shape) == len(out.shape) else []
    pairs = [(i, j) for i, j in pairs if v.shape[i] == out.shape[j]]
    return as_positions(x, v, [i for i, _ in pairs], [out.dims[j] for _, j in pairs])


def numpy_scalar(x: Any) -> Any:
    """A number that is known as one of NumPy, so that functions that close over it are alike."""
    if isinstance(x, (np.generic, np.ndarray)) and np.ndim(x) == 0:
        return np.asarray(x)[()]
    return x


def size_of(dims: Iterable[Dim]) -> int:
    return math.prod(d.size for d in dims)


def where(e: Equation) -> str:
    """`model.py:31`, the line of an equation."""
    return source.shown(e.lines)


def is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))
