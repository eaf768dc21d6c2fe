"""Softmax, its logarithm, `logsumexp` and known indices, found among the equations of a program.

`jax.nn.softmax` is a maximum, exponentials, a sum and a quotient. Evaluated one by one, along a dim
that is split, their statistics cost more collectives than the op of the language does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from meshdsl.plain_jax.indices import SCATTERS, aligned
from meshdsl.plain_jax.known_values import known_result
from meshdsl.plain_jax.program import Equation, Literal, Program, Value, Variable
from meshdsl.plain_jax.static_masks import Affine, read

_SHAPES = ("reshape", "squeeze", "expand_dims")
_MOST_KNOWN = 2**20  # elements of an array of indices that is computed beforehand

Definitions = dict[Variable, Equation]


def recognise(program: Program, *, ops: bool) -> None:
    """Put ops of the language in the place of what makes them up, here and in the bodies.

    Args:
      ops: whether to do so; else only known indices are noted.
    """
    made: Definitions = {v: e for e in program.equations for v in e.outs}
    constants = dict(program.constants)
    for i, e in enumerate(program.equations):
        for body in e.bodies:
            recognise(body, ops=ops)
        found = _op(e, made) if ops else None
        if found is not None:
            program.equations[i] = found
        if e.name == "gather" or e.name in SCATTERS:
            e.notes["aligned"] = aligned(e, made.get, constants)
        if e.name == "gather":
            e.notes["inside"] = _are_inside(e, made, constants)
        elif e.name == "sort":
            e.notes["indices"] = _sorts_indices(e, made, constants)
        elif e.name == "pad":
            value = known(e.ins[1], made, constants, {})
            e.notes["value"] = None if value is None else np.asarray(value).item()
        elif e.name in ("dynamic_slice", "dynamic_update_slice"):
            first = 1 if e.name == "dynamic_slice" else 2
            e.notes["starts"] = [known(v, made, constants, {}) for v in e.ins[first:]]
    drop_unused(program)


def _op(e: Equation, made: Definitions) -> Equation | None:
    """The op of the language that an equation is the last one of."""
    find = {"div": _softmax, "sub": _log_softmax, "add": _logsumexp}.get(e.name)
    return None if find is None else find(e, made)


def _softmax(e: Equation, made: Definitions) -> Equation | None:
    """`exp(x - max) / sum(exp(x - max))`."""
    top, total = _by(e.ins[0], made, "exp"), _statistic(e.ins[1], made, "reduce_sum")
    axes = _axes(e.ins[0], total, made)
    if top is None or axes is None:
        return None
    return _of_shifted(e, top.ins[0], made, axes, "softmax")


def _log_softmax(e: Equation, made: Definitions) -> Equation | None:
    """`(x - max) - log(sum(exp(x - max)))`."""
    total = _statistic(e.ins[1], made, "reduce_sum", ("log",))
    if total is None:
        return None
    terms = _by(total.reduction.ins[0], made, "exp")
    if terms is None or terms.ins[0] is not e.ins[0]:
        return None
    axes = _axes(total.reduction.ins[0], total, made)
    return None if axes is None else _of_shifted(e, e.ins[0], made, axes, "log_softmax")


def _logsumexp(e: Equation, made: Definitions) -> Equation | None:
    """`log(sum(exp(x - max))) + max`, with whatever in the place of a `max` that is infinite."""
    for total_at, top_at in ((0, 1), (1, 0)):
        total = _statistic(e.ins[total_at], made, "reduce_sum", ("log", "abs"))
        if total is None:
            continue
        summed = total.reduction.ins[0]
        cast = _by(summed, made, "convert_element_type")  # to take sums of short floats
        terms = _by(summed if cast is None else cast.ins[0], made, "exp")
        less = None if terms is None else _by(terms.ins[0], made, "sub")
        if less is None:
            continue
        x, out = less.ins[0], e.outs[0]
        top = _statistic(less.ins[1], made, "reduce_max", ("stop_gradient", "max", "select_n"))
        axes = _axes(x, top, made)
        same = _as_reduced(less.ins[1], made) is _as_reduced(e.ins[top_at], made)
        if axes is None or not same or axes != total.reduction.params["axes"]:
            continue
        kept = [None if i in axes else i for i in range(len(x.shape))]
        ones = len(out.shape) == len(x.shape)  # in the place of what is summed over
        kept = kept if ones else [i for i in kept if i is not None]
        fits = [1 if i is None else x.shape[i] for i in kept] == list(out.shape)
        placed = all(j in (None, i) for i, j in zip(kept, total.places, strict=False))
        if fits and placed and len(total.places) == len(kept) and _is_float_as(x, out):
            return Equation("logsumexp", None, [x], e.outs, {"axes": axes}, e.lines)
    return None


def _as_reduced(v: Value, made: Definitions) -> Value:
    """What `v` is before it is broadcast again."""
    while isinstance(v, Variable) and (e := made.get(v)) is not None and len(e.ins) == 1:
        if e.name != "broadcast_in_dim" and not (e.name in _SHAPES and _adds_ones(e)):
            break
        v = e.ins[0]
    return v


def _is_float_as(x: Value, out: Variable) -> bool:
    return x.dtype == out.dtype and bool(jnp.issubdtype(x.dtype, jnp.floating))


def _of_shifted(
    e: Equation, shifted: Value, made: Definitions, axes: tuple[int, ...], name: str
) -> Equation | None:
    """The op of what `shifted` is, which does not depend on what it is shifted by."""
    x, less = shifted, _by(shifted, made, "sub")
    if less is not None:
        top = _statistic(less.ins[1], made, "reduce_max", ("stop_gradient", "max"))
        if _axes(less.ins[0], top, made) == axes:
            x = less.ins[0]
    if x.shape != e.outs[0].shape or not _is_float_as(x, e.outs[0]):
        return None
    return Equation(name, None, [x], e.outs, {"axes": axes}, e.lines)


def _by(v: Value, made: Definitions, name: str) -> Equation | None:
    """The equation of this name that makes `v`."""
    e = made.get(v) if isinstance(v, Variable) else None
    return e if e is not None and e.name == name else None


class _Statistic(NamedTuple):
    """A reduction whose result is broadcast again.

    Attributes:
      places: for each position of what it became the position of what was reduced; None where
        it is the same all along.
    """

    reduction: Equation
    places: list[int | None]


def _statistic(
    v: Value, made: Definitions, name: str, through: tuple[str, ...] = ()
) -> _Statistic | None:
    """The reduction that `v` is, moved and broadcast.

    Args:
      through: elementwise ops that may come in between; `max` only with minus infinity.
    """
    places: list[int | None] = list(range(len(v.shape)))
    while isinstance(v, Variable) and (e := made.get(v)) is not None:
        operand = e.ins[0] if e.ins else v
        if e.name == name:
            rank, axes = len(operand.shape), e.params["axes"]
            kept: list = [i for i in range(rank) if i not in axes]
            return _Statistic(e, _placed(places, kept))
        if e.name == "convert_element_type":  # sums of short floats are taken in float32
            pass
        elif e.name == "transpose":
            places = _placed(places, e.params["permutation"])
        elif e.name == "broadcast_in_dim" and len(e.ins) == 1:
            at = list(e.params["broadcast_dimensions"])
            places = _placed(
                places, [at.index(i) if i in at else None for i in range(len(v.shape))]
            )
        elif e.name in _SHAPES and _adds_ones(e):
            long = [i for i, n in enumerate(operand.shape) if n != 1]
            rest = iter(long)
            places = _placed(places, [None if n == 1 else next(rest) for n in v.shape])
        elif e.name == "max" and "max" in through and _is_minus_infinity(operand):
            operand = e.ins[1]
        elif e.name == "select_n" and "select_n" in through:  # another number where not finite
            finite = _by(e.ins[0], made, "is_finite")
            if len(e.ins) != 3 or finite is None or finite.ins[0] is not e.ins[2]:
                return None
            operand = e.ins[2]
        elif e.name not in through or e.name == "max":
            return None
        v = operand
    return None


def _placed(places: list[int | None], by: Any) -> list[int | None]:
    return [None if i is None else by[i] for i in places]


def _axes(x: Value, found: _Statistic | None, made: Definitions) -> tuple[int, ...] | None:
    """The positions of `x` that a statistic of it is over.

    None if it is of something else, or does not stand beside `x` as it was reduced.
    """
    if found is None or len(found.places) != len(x.shape):
        return None
    reduced, moved = found.reduction.ins[0], _by(x, made, "transpose")
    while reduced is not x and (cast := _by(reduced, made, "convert_element_type")) is not None:
        reduced = cast.ins[0]
    where = list(range(len(x.shape)))
    if reduced is not x:
        if moved is None or moved.ins[0] is not reduced:
            return None
        where = list(moved.params["permutation"])
    axes = tuple(i for i, j in enumerate(where) if j in found.reduction.params["axes"])
    kept = [i for i in range(len(x.shape)) if i not in axes and x.shape[i] != 1]
    return axes if all(found.places[i] == where[i] for i in kept) else None


def _adds_ones(e: Equation) -> bool:
    squeezed = lambda shape: [n for n in shape if n != 1]
    return squeezed(e.ins[0].shape) == squeezed(e.outs[0].shape) and len(e.ins) == 1


def _is_minus_infinity(v: Value) -> bool:
    return isinstance(v, Literal) and bool(np.isneginf(np.asarray(v.value, np.float64)))


def drop_unused(program: Program) -> None:
    """Leave out equations whose results nothing needs."""
    needed = {v for v in program.outvars if isinstance(v, Variable)}
    kept = []
    for e in reversed(program.equations):
        if any(v in needed for v in e.outs):
            e.notes["needed"] = [i for i, v in enumerate(e.outs) if v in needed]
            needed.update(v for v in e.ins if isinstance(v, Variable))
            kept.append(e)
    program.equations = kept[::-1]


def _sorts_indices(e: Equation, made: Definitions, constants: dict[Variable, Any]) -> bool:
    """Whether a sort is one of values, by which the indices where they were are ordered, too."""
    if len(e.ins) != 2 or e.params["num_keys"] != 1 or not e.params["is_stable"]:
        return False
    index = Affine(((e.params["dimension"], 1),), 0)
    return read(e.ins[1], made.get, constants) == index


def _are_inside(e: Equation, made: Definitions, constants: dict[Variable, Any]) -> bool:
    """Whether the indices of a lookup are known, and none is outside of what it looks up in."""
    positions = e.params["dimension_numbers"].start_index_map
    if len(positions) != 1:
        return False
    ids = known(e.ins[1], made, constants, {})
    if ids is None:
        return False
    ids = np.asarray(ids)
    return bool((ids >= 0).all() and (ids < e.ins[0].shape[positions[0]]).all())


def known(v: Value, made: Definitions, constants: dict, found: dict) -> Any:
    """The array of a variable that depends on no argument; None if it does, or is too large."""
    if isinstance(v, Literal):
        return v.value
    if v not in found:
        found[v] = None
        e = made.get(v)
        if v.is_key or np.prod(v.shape, dtype=float) > _MOST_KNOWN:
            return None
        if v in constants:
            array = constants[v]
            found[v] = None if isinstance(array, Tracer) else array
        elif e is not None and e.primitive is not None and not e.bodies and len(e.outs) == 1:
            ins = [known(w, made, constants, found) for w in e.ins]
            if all(x is not None for x in ins) and e.name != "custom_jvp_call":
                found[v] = known_result(e, ins)
    return found[v]
