"""What is known of local functions: the types of their results, and what they move.

Where types take the place of arrays (`array_type`), an op does not compute. The types of its
results are those that JAX finds when it traces the local function, and that is done once: for a
function that is the same, on operands of the same types, in a loop that is split the same way, the
answer is the same. What the function moves itself is known then too.

A function is made anew each time that an op is called. It is the same function if it has the same
code and has closed over the same things.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.array_type import ArrayType, of_types, only_types, traced
from meshdsl.lowering import collectives
from meshdsl.record.recorder import Move, Op
from meshdsl.tensor import Tensor

if TYPE_CHECKING:
    from meshdsl.lowering.device_loop import DeviceLoop
    from meshdsl.lowering.scope import Scope

_LARGE = 4096  # bytes of an array of NumPy that are not compared any more


@dataclass(frozen=True)
class _Known:
    """What a local function does.

    Attributes:
      results: their types; for one that is an operand as it was given, the number of that.
      moves: what it moves itself.
      kernel, needed: what it notes of itself, see `Op`.
    """

    results: tuple[ArrayType | int, ...]
    moves: tuple[Move, ...]
    kernel: str
    needed: float


class LocalTypes:
    """The types that local functions give, each found once. It may serve any number of layouts.

    Attributes:
      found: how often a function had to be traced.
    """

    def __init__(self):
        self._known: dict[tuple, _Known] = {}
        self.found = 0

    def results(self, local: Callable, at: DeviceLoop, arrays: Sequence, op: Op) -> list:
        """What `local(at, *arrays)` gives, as types; what it moves is written down for `op`.

        Where JAX traces, in the body of one of its transformations, it is arrays.
        """
        if not only_types():
            with jax.named_scope(op.tag):
                return local(at, *map(traced, arrays))
        scope = at.scope
        assert scope is not None
        try:
            key = (
                *(key_of(local), at.key, tuple(map(_type_key, arrays))),
                *(tuple(scope.sizes.items()), scope.platform),
            )
            known = self._known.get(key)
        except (
            TypeError,
            ValueError,
            RecursionError,
        ):  # it has closed over something that cannot be compared
            key = known = None
        if known is None:
            self.found += 1
            given = [_as_traced(a, scope) for a in arrays]
            asked, known = scope.asked, _traced(local, at, given, op)
            if key is not None and scope.asked == asked:
                self._known[key] = known
        else:
            op.moves += known.moves
            op.kernel, op.needed = known.kernel, known.needed
        return [arrays[r] if isinstance(r, int) else _fresh(r) for r in known.results]


def _as_traced(x, scope: Scope):
    """An array that JAX traces, the same one each time for the same type.

    A local function may ask the scope for what has been made of it, as those do whose operands go
    round a ring. So what such a function does is found anew each time.
    """
    if not isinstance(x, ArrayType):
        return x
    found = scope.remembered(x, "traced")
    if found is None:
        found = traced(x)
        scope.remember(x, "traced", found)
    return found


def _traced(local: Callable, at: DeviceLoop, arrays: Sequence, op: Op) -> _Known:
    """What JAX finds of a function."""
    assert at.scope is not None
    before = len(op.moves)
    with of_types(False), jax.named_scope(op.tag):
        made = [jnp.asarray(a) for a in local(at, *arrays)]
    places = {id(a): i for i, a in enumerate(arrays)}
    results = [places.get(id(a), collectives.type_of(a, at.scope.sizes)) for a in made]
    return _Known(tuple(results), tuple(op.moves[before:]), op.kernel, op.needed)


def _fresh(t: ArrayType):
    """An array of this type. Of random keys it is one of JAX, which users hand to `jax.random`."""
    return traced(t) if jnp.issubdtype(t.dtype, jax.dtypes.prng_key) else t.like()


def _type_key(x) -> tuple:
    if not isinstance(x, ArrayType):
        of = jax.typeof(x)
        return of.shape, of.dtype, of.manual_axis_type.varying, of.weak_type
    return x.shape, x.dtype, x.varying, x.weak


class Incomparable(TypeError):
    """Nobody can say at little cost whether two values are equal."""


def key_of(x: Any) -> Any:
    """What is equal for two functions, or other values, if they do the same to types.

    Raises:
      TypeError: that cannot be said of it.
    """
    match x:
        case FunctionType():
            cells = [key_of(c.cell_contents) for c in x.__closure__ or ()]
            defaults = key_of((x.__defaults__, x.__kwdefaults__))
            return x.__code__, tuple(cells), defaults
        case tuple() | list():
            return type(x), tuple([key_of(y) for y in x])
        case dict():
            return tuple([(k, key_of(v)) for k, v in x.items()])
        case Tensor():
            placement = x.placement and (x.placement.axes, x.placement.pending, x.placement.level)
            return x.dims, x.role, placement, key_of(x.stored)
        case ArrayType() | jax.Array():
            return _type_key(x)
        case np.ndarray():
            if x.nbytes > _LARGE:
                raise Incomparable(f"{x.nbytes} bytes are not compared")
            return x.shape, x.dtype, x.tobytes()
        case bool() | int() | float() | complex():
            return type(x), x
        case partial():
            return key_of((x.func, x.args, x.keywords))
        case MethodType():
            return x.__func__, key_of(x.__self__)
    hash(x)
    return x
