"""What is known of local functions: the types of their results, and what they move.

A local function is what an op does to the parts that one device has. Where types take the place of
arrays (`array_type`) it does not compute. JAX traces it to find the types of its results, and what
it moves between devices is written down meanwhile. That is done once: the answer is the same for
the same function, on operands of the same types, with the dims of the op split the same way.

An op makes its local function anew each time that it is called. Two of them are the same function
if they have the same code and have closed over the same values.
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
from meshdsl.dims import Dim
from meshdsl.lowering import collectives
from meshdsl.record.recorder import Move, Op
from meshdsl.tensor import Tensor

if TYPE_CHECKING:
    from meshdsl.lowering.device_loop import DeviceLoop
    from meshdsl.lowering.scope import Scope

_MOST_BYTES = 4096  # of an array of NumPy that is compared
# What Python raises for values that have no hash, cannot be compared, or contain themselves.
NOT_COMPARABLE = (TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class _Known:
    """What a local function does.

    Attributes:
      results: the type of each; for one that is an operand, unchanged, the number of that operand.
      moves: what it moves between devices.
      kernel, needed, lacks: what it says of itself, see `Op`.
    """

    results: tuple[ArrayType | int, ...]
    moves: tuple[Move, ...]
    kernel: str
    needed: float
    lacks: tuple[tuple[str, str], ...]


class LocalTypes:
    """What local functions do, found once for each. It may serve any number of layouts.

    Attributes:
      found: how often a function had to be traced.
    """

    def __init__(self):
        self._known: dict[tuple, _Known] = {}
        self.found = 0

    def results(self, local: Callable, at: DeviceLoop, arrays: Sequence, op: Op) -> list:
        """The types of the results of `local(at, *arrays)`; what it moves is written down for `op`.

        In the body of a transformation that JAX traces they are arrays, and not types.
        """
        if not only_types():
            with jax.named_scope(op.tag):
                return local(at, *map(traced, arrays))
        scope = at.scope
        assert scope is not None
        try:
            types = tuple(map(_type_key, arrays))
            mesh = tuple(scope.sizes.items()), scope.platform
            key = key_of(local), at.key, types, mesh
            known = self._known.get(key)
        except NOT_COMPARABLE:
            key = known = None
        if known is None:
            self.found += 1
            given = [_as_traced(a, scope) for a in arrays]
            asked, known = scope.asked, _traced(local, at, given, op)
            depends_on_others = scope.asked != asked  # on what has been made of the operands
            if key is not None and not depends_on_others:
                self._known[key] = known
        else:
            op.moves += known.moves
            op.kernel, op.needed, op.lacks = known.kernel, known.needed, known.lacks
        return [arrays[r] if isinstance(r, int) else _fresh(r) for r in known.results]


def _as_traced(x, scope: Scope):
    """An array of JAX for a type, the same one each time for the same object.

    A local function may ask the scope for what others have made of an operand, as products do
    whose operand goes round a ring: the second one takes the parts that the first one received.
    """
    if not isinstance(x, ArrayType):
        return x
    found = scope.remembered(x, "traced")
    if found is None:
        found = traced(x)
        scope.remember(x, "traced", found)
    return found


def _traced(local: Callable, at: DeviceLoop, arrays: Sequence, op: Op) -> _Known:
    """What a function does, as JAX finds it by a trace."""
    assert at.scope is not None
    before = len(op.moves)
    with of_types(False), jax.named_scope(op.tag):
        made = [jnp.asarray(a) for a in local(at, *arrays)]
    places = {id(a): i for i, a in enumerate(arrays)}
    results = [places.get(id(a), collectives.type_of(a, at.scope.sizes)) for a in made]
    return _Known(tuple(results), tuple(op.moves[before:]), op.kernel, op.needed, op.lacks)


def _fresh(t: ArrayType):
    """The type of another array. Of random keys an array, as users hand these to `jax.random`."""
    return traced(t) if jnp.issubdtype(t.dtype, jax.dtypes.prng_key) else t.like()


def _type_key(x) -> tuple:
    if not isinstance(x, ArrayType):
        of = jax.typeof(x)
        return of.shape, of.dtype, of.manual_axis_type.varying, of.weak_type
    return x.shape, x.dtype, x.varying, x.weak


# Values that are equal only where they do the same, and that are met often.
_THEIR_OWN_KEYS = frozenset({type(None), str, Dim})


class Incomparable(TypeError):
    """Nobody can say at little cost whether two values are equal."""


def key_of(x: Any) -> Any:
    """A key that is equal for two functions, or other values, only if they do the same to types.

    Of an array of JAX only the type counts, as what a trace finds cannot depend on its values.

    Raises:
      TypeError: it cannot be said, as of a value that has no hash and of a large array of NumPy.
    """
    kind = type(x)
    if kind in _THEIR_OWN_KEYS:
        return x
    if kind is tuple:
        return tuple, tuple([y if type(y) in _THEIR_OWN_KEYS else key_of(y) for y in x])
    match x:
        case FunctionType():
            cells = [key_of(c.cell_contents) for c in x.__closure__ or ()]
            defaults = x.__defaults__ and key_of(x.__defaults__)
            named = x.__kwdefaults__ and key_of(x.__kwdefaults__)
            return x.__code__, tuple(cells), defaults, named
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
            if x.nbytes > _MOST_BYTES:
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
