"""Programs with one mistake each, of the kinds that parallel programs have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Literal


class Mutant(NamedTuple):
    kind: str
    program: Any  # a closed jaxpr


class _At(NamedTuple):
    """An equation in a program: the way to its jaxpr, its number there, and what is around it."""

    way: tuple[tuple[int, str, int | None], ...]
    number: int
    eqn: Any
    before: list[Any]  # the variables that are known there
    sizes: dict[str, int]


def mutants(closed: Any, count: int, seed: int) -> Iterator[Mutant]:
    """So many mutants of what is inside of the `shard_map`s of a program."""
    draw = random.Random(seed)
    places = [at for at in _equations(closed.jaxpr, (), {}, list(closed.jaxpr.invars)) if at.sizes]
    by_kind = {
        kind: [(at, change) for at in places if (change := make(at, draw))]
        for kind, make in KINDS.items()
    }
    kinds = [kind for kind, found in by_kind.items() if found]
    for i in range(count):
        kind = kinds[i % len(kinds)]
        at, _ = draw.choice(by_kind[kind])
        change = KINDS[kind](at, draw)
        if change is not None:
            jaxpr = _replaced(closed.jaxpr, at.way, at.number, change)
            yield Mutant(kind, closed.replace(jaxpr=jaxpr))


def _subs(eqn: Any) -> Iterator[tuple[str, int | None, Any]]:
    if eqn.primitive.name == "local_kernel":  # what is in it is taken for granted
        return
    for key, value in eqn.params.items():
        for i, one in enumerate(value) if isinstance(value, tuple) else [(None, value)]:
            if hasattr(one, "eqns") or hasattr(one, "jaxpr"):
                yield key, i, one


def _equations(jaxpr: Any, way: tuple, sizes: dict[str, int], known: list[Any]) -> Iterator[_At]:
    known = list(known)
    for number, eqn in enumerate(jaxpr.eqns):
        yield _At(way, number, eqn, list(known), sizes)
        inside = dict(eqn.params["mesh"].shape) if eqn.primitive.name == "shard_map" else sizes
        for key, i, sub in _subs(eqn):
            if eqn.primitive.name == "scan" or key in ("jaxpr", "call_jaxpr", "branches", "callee"):
                open_ = getattr(sub, "jaxpr", sub)
                start = [*open_.constvars, *open_.invars]
                yield from _equations(open_, (*way, (number, key, i)), inside, start)
        known += eqn.outvars


def _replaced(jaxpr: Any, way: tuple, number: int, change: list[Any]) -> Any:
    eqns = list(jaxpr.eqns)
    if not way:
        eqns[number : number + 1] = change
        return jaxpr.replace(eqns=eqns)
    (at, key, i), *rest = way
    eqn = eqns[at]
    value = eqn.params[key]
    old = value if i is None else value[i]
    inner = _replaced(getattr(old, "jaxpr", old), tuple(rest), number, change)
    new = old.replace(jaxpr=inner) if hasattr(old, "jaxpr") else inner
    if i is not None:
        new = (*value[:i], new, *value[i + 1 :])
    eqns[at] = eqn.replace(params={**eqn.params, key: new})
    return jaxpr.replace(eqns=eqns)


_BARRIER = jax.make_jaxpr(lax.optimization_barrier)(1.0).eqns[0].primitive
_ADD = jax.make_jaxpr(lax.add)(1.0, 1.0).eqns[0].primitive
_SUMS = ("psum", "psum_invariant")


def _dropped(at: _At, draw) -> list[Any] | None:
    """A sum or a maximum that is not taken."""
    if at.eqn.primitive.name not in (*_SUMS, "pmax"):
        return None
    return [at.eqn.replace(primitive=_BARRIER, params={})]


def _doubled(at: _At, draw) -> list[Any] | None:
    """A sum that is added to itself."""
    if at.eqn.primitive.name not in (*_SUMS, "reduce_scatter") or len(at.eqn.outvars) > 1:
        return None
    (out,) = at.eqn.outvars
    if not jax.numpy.issubdtype(out.aval.dtype, jax.numpy.floating):
        return None
    half = type(out)(out.aval)
    add = at.eqn.replace(primitive=_ADD, params={}, invars=[half, half], effects=set())
    return [at.eqn.replace(outvars=[half]), add]


def _other_axis(at: _At, draw) -> list[Any] | None:
    """A collective, or the number of a device, along another axis of the same size."""
    for key in ("axes", "axis_name"):
        axes = at.eqn.params.get(key)
        names = axes if isinstance(axes, tuple) else (axes,)
        if not set(names) <= set(at.sizes):
            continue
        others = [
            (i, b)
            for i, a in enumerate(names)
            for b in at.sizes
            if b not in names and at.sizes[a] == at.sizes[b] > 1
        ]
        if others:
            i, b = draw.choice(others)
            new = (*names[:i], b, *names[i + 1 :])
            new = new if isinstance(axes, tuple) else new[0]
            return [at.eqn.replace(params={**at.eqn.params, key: new})]
    return None


def _other_order(at: _At, draw) -> list[Any] | None:
    """A gather or a scatter over axes in another order."""
    axes = at.eqn.params.get("axis_name")
    if not isinstance(axes, tuple) or len([a for a in axes if at.sizes[a] > 1]) < 2:
        return None
    return [at.eqn.replace(params={**at.eqn.params, "axis_name": axes[::-1]})]


def _transposed(at: _At, draw) -> list[Any] | None:
    """A transpose that swaps two other dims of the same size."""
    if at.eqn.primitive.name != "transpose":
        return None
    order, shape = at.eqn.params["permutation"], at.eqn.invars[0].aval.shape
    pairs = [
        (i, j)
        for i in range(len(order))
        for j in range(i)
        if shape[order[i]] == shape[order[j]] > 1
    ]
    if not pairs:
        return None
    i, j = draw.choice(pairs)
    new = list(order)
    new[i], new[j] = new[j], new[i]
    return [at.eqn.replace(params={**at.eqn.params, "permutation": tuple(new)})]


def _stale(at: _At, draw) -> list[Any] | None:
    """An operand that is another array of the same type, computed before."""
    found = []
    for i, old in enumerate(at.eqn.invars):
        if isinstance(old, Literal):
            continue
        alike = [v for v in at.before if v is not old and v.aval == old.aval and not _is_drop(v)]
        found += [(i, v) for v in alike]
    if not found or at.eqn.primitive.name in ("shard_map",):
        return None
    i, v = draw.choice(found)
    invars = [v if j == i else old for j, old in enumerate(at.eqn.invars)]
    return [at.eqn.replace(invars=invars)]


def _is_drop(v: Any) -> bool:
    return type(v).__name__ == "DropVar"


def _other_number(at: _At, draw) -> list[Any] | None:
    """A constant that is twice as large: the size of a part taken for that of the whole, say."""
    invars: Any = at.eqn.invars
    places = [
        i
        for i, v in enumerate(invars)
        if isinstance(v, Literal)
        and v.aval.shape == ()
        and v.val != 0
        and v.val == v.val
        and not isinstance(v.val, bool)
        and v.aval.dtype != bool
    ]
    if not places or at.eqn.primitive.name in ("gather", "random_wrap", "random_split"):
        return None
    i = draw.choice(places)
    old = at.eqn.invars[i]
    new = Literal(jax.numpy.asarray(old.val, old.aval.dtype) * 2, old.aval)
    return [at.eqn.replace(invars=[new if j == i else v for j, v in enumerate(at.eqn.invars)])]


def _other_op(at: _At, draw) -> list[Any] | None:
    """A sum that is a difference, or a maximum that is a minimum."""
    swap = {"add": lax.sub, "sub": lax.add, "add_any": lax.sub, "max": lax.min, "lt": lax.le}
    name = at.eqn.primitive.name
    if name not in swap:
        return None
    dtype = at.eqn.invars[0].aval.dtype
    if not jax.numpy.issubdtype(dtype, jax.numpy.number):
        return None
    other = jax.make_jaxpr(swap[name])(jax.numpy.ones((), dtype), jax.numpy.ones((), dtype))
    return [at.eqn.replace(primitive=other.eqns[0].primitive, params={})]


def _off_by_one(at: _At, draw) -> list[Any] | None:
    """A slice that begins one element later or earlier."""
    if at.eqn.primitive.name != "slice":
        return None
    p, shape = at.eqn.params, at.eqn.invars[0].aval.shape
    starts, limits = p["start_indices"], p["limit_indices"]
    may = [(d, 1) for d in range(len(shape)) if limits[d] < shape[d]]
    may += [(d, -1) for d in range(len(shape)) if starts[d] > 0]
    if not may:
        return None
    d, by = draw.choice(may)
    moved = lambda at_: tuple(n + by if i == d else n for i, n in enumerate(at_))
    new = {"start_indices": moved(starts), "limit_indices": moved(limits)}
    return [at.eqn.replace(params={**p, **new})]


def _other_part(at: _At, draw) -> list[Any] | None:
    """The number of a device counted from the end."""
    if at.eqn.primitive.name != "axis_index":
        return None
    (out,) = at.eqn.outvars
    first = type(out)(out.aval)
    axes = at.eqn.params["axis_name"]
    names = axes if isinstance(axes, tuple) else (axes,)
    size = 1
    for axis in names:
        size *= at.sizes[axis]
    if size == 1:
        return None
    sub = jax.make_jaxpr(lax.sub)(1, 1).eqns[0].primitive
    last = Literal(jax.numpy.asarray(size - 1, out.aval.dtype), out.aval)
    turned = at.eqn.replace(primitive=sub, params={}, invars=[last, first], effects=set())
    return [at.eqn.replace(outvars=[first]), turned]


def _other_hop(at: _At, draw) -> list[Any] | None:
    """What is sent to other devices: the other way round, back to who sends it, or to none."""
    if at.eqn.primitive.name != "ppermute":
        return None
    old = tuple(at.eqn.params["perm"])
    found = [tuple((b, a) for a, b in old), tuple((a, a) for a, _ in old), ()]
    perm = draw.choice([each for each in found if set(each) != set(old)])
    return [at.eqn.replace(params={**at.eqn.params, "perm": perm})]


def _other_rounds(at: _At, draw) -> list[Any] | None:
    """A loop whose last round comes first."""
    if at.eqn.primitive.name != "scan" or at.eqn.params["length"] == 1:
        return None
    return [at.eqn.replace(params={**at.eqn.params, "reverse": not at.eqn.params["reverse"]})]


KINDS: dict[str, Callable[[_At, random.Random], list[Any] | None]] = {
    "a sum that is not taken": _dropped,
    "a sum that is taken twice": _doubled,
    "a collective over another axis": _other_axis,
    "axes in another order": _other_order,
    "dims that are swapped": _transposed,
    "another array, or an old one": _stale,
    "a constant that is twice as large": _other_number,
    "another operation": _other_op,
    "a slice that is off by one": _off_by_one,
    "devices in the reverse order": _other_part,
    "sent to another device": _other_hop,
    "rounds in the reverse order": _other_rounds,
}
