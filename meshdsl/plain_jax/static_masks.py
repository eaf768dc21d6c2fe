"""What is known of the variables of a program while names are inferred.

`Definitions.known` computes arrays that depend on no argument. `Definitions.read` reads masks that
depend on positions alone, such as a causal one, from the code that makes them.

A mask is made of index arrays, comparisons and selections. What it says is found without computing
it, so its size does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from meshdsl.plain_jax.known_values import known_result
from meshdsl.plain_jax.primitives import ELEMENTWISE, MOVES, moved_positions
from meshdsl.plain_jax.program import Equation, Literal, Program, Value, Variable


class Affine(NamedTuple):
    """Whole numbers: a constant and a multiple of the index at each position."""

    by_position: tuple[tuple[int, int], ...]  # position and factor, in order, no factor is 0
    constant: Any


class Choice(NamedTuple):
    """One constant where a condition holds, which is that numbers are at least 0, and another."""

    condition: Affine
    there: Any
    elsewhere: Any


Read = Affine | Choice | None
_COMPARED: dict[str, Callable[[Affine, Affine], Affine]] = {
    "ge": lambda a, b: _combined(a, b, -1),
    "gt": lambda a, b: _plus(_combined(a, b, -1), -1),
    "le": lambda a, b: _combined(b, a, -1),
    "lt": lambda a, b: _plus(_combined(b, a, -1), -1),
}
_MOST = 2**26  # elements of an array that is looked at
_MOST_KNOWN = 2**20  # elements of an array of indices that is computed beforehand
_KEPT = ("convert_element_type", "copy", "copy_p", "stop_gradient", "reduce_precision")


class Definitions:
    """What the equations of a program say of its variables.

    Attributes:
      made: which equation makes a variable.
      constants: the arrays that the program closes over.
    """

    def __init__(self, program: Program):
        self.made: dict[Variable, Equation] = {v: e for e in program.equations for v in e.outs}
        self.constants: dict[Variable, Any] = dict(program.constants)
        self._read: dict[Variable, Read] = {}
        self._known: dict[Variable, Any] = {}

    def maker(self, v: Value) -> Equation | None:
        """The equation that makes `v`."""
        return self.made.get(v) if isinstance(v, Variable) else None

    def by(self, v: Value, name: str) -> Equation | None:
        """The equation of this name that makes `v`."""
        e = self.maker(v)
        return e if e is not None and e.name == name else None

    def read(self, v: Value) -> Read:
        """What the elements of `v` are; None where that is no function of their positions."""
        if isinstance(v, Literal):
            return _constant(v.value)
        if v not in self._read:
            self._read[v] = self._of_variable(v)
        return self._read[v]

    def _of_variable(self, v: Variable) -> Read:
        if v in self.constants:
            return _array(self.constants[v])
        e = self.maker(v)
        if e is None or e.primitive is None or len(e.outs) != 1:
            return None
        if e.name == "iota":
            return Affine(((e.params["dimension"], 1),), 0)
        places = _places(e)
        if places is not None:
            return moved(self.read(e.ins[0]), places) if len(e.ins) == 1 else None
        if e.name not in ELEMENTWISE:
            return None
        found = []
        for w in e.ins:
            found.append(self.read(w))
            if found[-1] is None:
                return None
        return _elementwise(e, found)

    def known(self, v: Value) -> Any:
        """The array of a variable that depends on no argument; None if it does, or is too large."""
        if isinstance(v, Literal):
            return v.value
        if v not in self._known:
            self._known[v] = None if v.is_key else self._computed(v)
        return self._known[v]

    def _computed(self, v: Variable) -> Any:
        if np.prod(v.shape, dtype=float) > _MOST_KNOWN:
            return None
        if v in self.constants:
            array = self.constants[v]
            return None if isinstance(array, Tracer) else array
        e = self.made.get(v)
        if e is None or e.primitive is None or e.bodies or len(e.outs) != 1:
            return None
        ins = [self.known(w) for w in e.ins]
        if any(x is None for x in ins) or e.name == "custom_jvp_call":
            return None
        return known_result(e, ins)


def _constant(value: Any) -> Affine | None:
    value = np.asarray(value)
    if value.ndim or not (value.dtype == bool or jnp.issubdtype(value.dtype, jnp.number)):
        return None
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        return None
    wide = value.astype(np.float64) if jnp.issubdtype(value.dtype, jnp.floating) else value
    return Affine((), wide.item())


def _array(array: Any) -> Read:
    """Of an array of indices that was closed over."""
    if not isinstance(array, (np.ndarray, jax.Array)) or isinstance(array, Tracer):
        return None
    if array.ndim == 0:
        return _constant(array)
    long = [i for i, n in enumerate(array.shape) if n != 1]
    if array.dtype.kind not in "iu" or len(long) != 1 or array.size > _MOST:
        return None
    values = np.squeeze(np.asarray(array))
    if not np.array_equal(values, values[0] + (values[1] - values[0]) * np.arange(len(values))):
        return None
    step = int(values[1]) - int(values[0])
    return Affine(((long[0], step),) if step else (), int(values[0]))


def _places(e: Equation) -> dict[int, int] | None:
    """Where the positions of an operand go, of a primitive that only moves them."""
    shape = e.ins[0].shape if e.ins else ()
    if e.name in MOVES:
        found = moved_positions(e.name, e.params, len(shape))
        return {i: j for i, j in found.items() if shape[i] != 1}
    if e.name in ("reshape", "expand_dims"):
        long = lambda shape: [i for i, n in enumerate(shape) if n != 1]
        a, b = long(shape), long(e.outs[0].shape)
        if [shape[i] for i in a] == [e.outs[0].shape[j] for j in b]:
            return dict(zip(a, b, strict=True))
    return None


def moved(found: Read, places: Mapping[int, int]) -> Read:
    """What was found, at other positions. One without a place has one element, of index 0."""
    if isinstance(found, Choice):
        return found._replace(condition=_replaced(found.condition, places))
    return None if found is None else _replaced(found, places)


def _replaced(found: Affine, places: Mapping[int, int]) -> Affine:
    factors = sorted((places[i], k) for i, k in found.by_position if i in places)
    return Affine(tuple(factors), found.constant)


def _elementwise(e: Equation, found: list) -> Read:
    name = e.name
    if name in _KEPT:
        (x,) = found
        if isinstance(x, Affine) and x.by_position:
            return x if e.outs[0].dtype.kind in "iuf" else None  # numbers, and small ones
        return _by_constants(e, found)
    if name == "select_n" and isinstance(found[0], Affine) and not found[0].by_position:
        return found[1 + int(found[0].constant)]
    if all(isinstance(x, Affine) for x in found):
        if name in ("add", "sub") and any(x.by_position for x in found):
            return _combined(found[0], found[1], 1 if name == "add" else -1)
        if name in _COMPARED and all(float(x.constant).is_integer() for x in found):
            condition = _COMPARED[name](found[0], found[1])
            least, most = _bounds(condition, e.outs[0].shape)
            if least >= 0 or most < 0:
                return Affine((), least >= 0)
            return Choice(condition, True, False)
    return _by_constants(e, found)


def _bounds(found: Affine, shape: tuple[int, ...]) -> tuple[int, int]:
    """The least and the greatest of some numbers."""
    ends = [k * (shape[i] - 1) for i, k in found.by_position]
    low, high = (sum(limit(0, x) for x in ends) for limit in (min, max))
    return found.constant + low, found.constant + high


def _by_constants(e: Equation, found: list) -> Read:
    """An elementwise function of constants, and of one choice."""
    choices = {x.condition for x in found if isinstance(x, Choice)}
    if len(choices) > 1 or any(isinstance(x, Affine) and x.by_position for x in found):
        return None
    value = lambda there: _value(
        e,
        [x.constant if isinstance(x, Affine) else x.there if there else x.elsewhere for x in found],
    )
    if not choices:
        return Affine((), value(there=True))
    return Choice(next(iter(choices)), value(there=True), value(there=False))


def _value(e: Equation, numbers: list) -> Any:
    arrays = [np.asarray(x).astype(v.dtype) for x, v in zip(numbers, e.ins, strict=True)]
    return np.asarray(known_result(e, arrays)).item()


def _combined(a: Affine, b: Affine, sign: int) -> Affine:
    factors = dict(a.by_position)
    for i, k in b.by_position:
        factors[i] = factors.get(i, 0) + sign * k
    kept = tuple(sorted((i, k) for i, k in factors.items() if k))
    return Affine(kept, a.constant + sign * b.constant)


def _plus(a: Affine, number: int) -> Affine:
    return a._replace(constant=a.constant + number)
