"""Goes through a program, and says what each of its arrays means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from meshdsl.proof import (  # noqa: F401  (they fill the table)
    along,
    conditions,
    elements,
    indexing,
    loops,
    places,
    reductions,
    sorting,
)
from meshdsl.proof.lemmas import CALLS, ELEMENTS, LEMMAS, PARTS, lemma
from meshdsl.proof.moves import gathered, given_out
from meshdsl.proof.sends import edges, ticks  # noqa: F401
from meshdsl.proof.sends.passed import note, passed
from meshdsl.proof.sends.routes import Pieces
from meshdsl.proof.terms import NotProved, Place, Terms
from meshdsl.proof.values import Value, unchanging, whole


class Run:
    """One program, whose arrays become terms.

    Attributes:
      terms: those of this program, and of others that it is compared with.
      sizes: of the mesh axes; empty outside of a `shard_map`.
      depth, pieces, sends, zeros_stay: see `Walk`.
    """

    def __init__(self, terms: Terms, sends: str = PARTS):
        self.terms = terms
        self.sends = sends
        self.sizes: Mapping[str, int] = {}
        self.depth = 0
        self.pieces = Pieces()
        self.zeros_stay = False
        self._place: Place | None = None

    def run(self, jaxpr: Any, args: Sequence[Value]) -> list[Value]:
        """What the results of a program mean.

        Args:
          jaxpr: closed or open.
          args: what its arguments mean.

        Raises:
          NotProved: there is no lemma for a step of the program.
        """
        consts = getattr(jaxpr, "consts", ())
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        known: dict[Any, Value] = dict(zip(jaxpr.invars, args, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            known[var] = self.constant(const, var.aval)

        def read(atom: Any) -> Value:
            return self.constant(atom.val, atom.aval) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            values = [read(atom) for atom in eqn.invars]
            results = self.step(eqn, lambda eqn=eqn, values=values: self.applied(eqn, values))
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def step(self, eqn: Any, lemma: Callable[[], Sequence[Value]]) -> Sequence[Value]:
        """What a lemma finds, which is that of an equation."""
        outer, self._place = self._place, Place(eqn, self._place)
        self.terms.place = self._place
        try:
            return lemma()
        except NotProved as error:
            error.place = error.place or self._place
            raise
        finally:
            self._place = outer

    def applied(self, eqn: Any, values: list[Value]) -> Sequence[Value]:
        if eqn.outvars and all(0 in getattr(var.aval, "shape", ()) for var in eqn.outvars):
            zero = self.terms.constant(0, "")
            return [Value(zero, (), unchanging(var.aval.shape)) for var in eqn.outvars]
        name = eqn.primitive.name
        if name in CALLS:
            return self.run(eqn.params[CALLS[name]], values)
        followed = self.sends == ELEMENTS and self.sizes
        moved = passed(self, eqn, values) if followed else None
        if moved is not None:
            return moved
        found = LEMMAS.get(name)
        if found is not None:
            results = found(self, eqn, *values)
            if followed:
                note(self, eqn, values, results)
            return results
        if any(hasattr(x, "eqns") or hasattr(x, "jaxpr") for x in jax.tree.leaves(eqn.params)):
            raise NotProved(f"there is no lemma for `{name}`")
        return along.anything(self, eqn, *values)

    def argument(self, number: int, shape: tuple[int, ...]) -> Value:
        """What an argument of the program means: itself."""
        return self.leaf("argument", (number,), shape)

    def leaf(self, op: str, params: tuple, shape: tuple[int, ...]) -> Value:
        if 0 in shape:
            return Value(self.terms.constant(0, ""), (), unchanging(shape))
        value = whole(self.terms.term(op, params, shape=tuple(n for n in shape if n != 1)))
        dims = iter(value.dims)
        return value.at(() if n == 1 else next(dims) for n in shape)

    def constant(self, x: Any, aval: Any) -> Value:
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            data = np.asarray(jax.random.key_data(x))
            return self.leaf("array", (str(x.dtype), data.tobytes()), x.shape)
        x = np.asarray(x).astype(aval.dtype)
        if x.size and x.tobytes() == np.broadcast_to(x.ravel()[0], x.shape).tobytes():
            return Value(self.terms.constant(x.ravel()[0], x.dtype), (), unchanging(x.shape))
        if x.dtype == np.int32 and x.ndim == 1 and x.size and (x == np.arange(x.size)).all():
            return whole(self.terms.iota(x.size))
        return self.leaf("array", (str(x.dtype), x.shape, x.tobytes()), x.shape)


@lemma("shard_map")
def _shard_map(walk: Run, eqn, *values: Value) -> list[Value]:
    """Arguments are given out over the axes, and results put together; they differ along no other.

    Raises:
      NotProved: a result differs between devices whose results are taken to be the same.
    """
    p, outside = eqn.params, walk.sizes
    walk.sizes = dict(p["mesh"].shape)

    def axes(entry: Any) -> list[tuple[str, int]]:
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        return [(axis, walk.sizes[axis]) for axis in names]

    local = []
    for value, spec in zip(values, p["in_specs"], strict=True):
        if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
            raise NotProved("there is no lemma for sums that a sharding leaves to be taken")
        for dim, entry in enumerate(spec):
            value = given_out(value, dim, axes(entry))
        local.append(value)
    found = []
    for value, spec in zip(walk.run(p["jaxpr"], local), p["out_specs"], strict=True):
        for dim, entry in enumerate(spec):
            value = gathered(value, dim, axes(entry))
        if value.axes:
            names = ", ".join(f"`{axis}`" for axis in value.axes)
            raise NotProved(f"devices along {names} have different results", value.term)
        found.append(value)
    walk.sizes = outside
    return found


@lemma("call_hi_primitive")
def _written_out(walk: Run, eqn, *values: Value) -> list[Value]:
    """An operation that JAX writes out when it lowers it, as `searchsorted` of JAX 0.12."""
    operation = eqn.params["_prim"]
    return walk.run(jax.make_jaxpr(operation.expand)(*operation.in_avals), values)
