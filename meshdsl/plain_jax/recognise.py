"""Softmax, its logarithm, `logsumexp` and known indices, found among the equations of a program.

`jax.nn.softmax` is a maximum, exponentials, a sum and a quotient. Evaluated one by one, along a dim
that is split, their statistics cost more collectives than the op of the language does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from meshdsl.plain_jax.indices import SCATTERS, aligned
from meshdsl.plain_jax.primitives import MOVES, moved_positions
from meshdsl.plain_jax.program import Equation, Literal, Program, Value, Variable
from meshdsl.plain_jax.static_masks import Affine, Definitions

_SHAPES = ("reshape", "squeeze", "expand_dims")


def recognise(program: Program, *, ops: bool) -> None:
    """Put ops of the language in the place of what makes them up, here and in the bodies.

    Args:
      ops: whether to do so; else only known indices are noted.
    """
    made = Definitions(program)
    for i, e in enumerate(program.equations):
        for body in e.bodies:
            recognise(body, ops=ops)
        found = _op(e, made) if ops else None
        if found is not None:
            program.equations[i] = found
        if e.name == "gather" or e.name in SCATTERS:
            e.notes["aligned"] = aligned(e, made)
        if e.name == "gather":
            e.notes["inside"] = _are_inside(e, made)
        elif e.name == "sort":
            e.notes["indices"] = _sorts_indices(e, made)
        elif e.name == "pad":
            value = made.known(e.ins[1])
            e.notes["value"] = None if value is None else np.asarray(value).item()
        elif e.name in ("dynamic_slice", "dynamic_update_slice"):
            first = 1 if e.name == "dynamic_slice" else 2
            e.notes["starts"] = [made.known(v) for v in e.ins[first:]]
    drop_unused(program)


def _op(e: Equation, made: Definitions) -> Equation | None:
    """The op of the language that an equation is the last one of."""
    if e.name not in _LAST:
        return None
    name, find = _LAST[e.name]
    found = find(e, made)
    if found is None:
        return None
    x, axes = found
    if x.dtype != e.outs[0].dtype or not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    return Equation(name, None, [x], e.outs, {"axes": axes}, e.lines)


def _softmax(e: Equation, made: Definitions) -> tuple[Value, tuple[int, ...]] | None:
    """`exp(x - max) / sum(exp(x - max))`: what it is of, and over which positions."""
    terms, total = made.by(e.ins[0], "exp"), _statistic(e.ins[1], made, "reduce_sum")
    if terms is None or total is None or total.through:
        return None
    return _shifted(e, terms.ins[0], made, _axes(e.ins[0], total, made))


def _log_softmax(e: Equation, made: Definitions) -> tuple[Value, tuple[int, ...]] | None:
    """`(x - max) - log(sum(exp(x - max)))`."""
    total = _statistic(e.ins[1], made, "reduce_sum")
    if total is None or total.through != ["log"]:
        return None
    terms = made.by(total.reduction.ins[0], "exp")
    if terms is None or terms.ins[0] is not e.ins[0]:
        return None
    return _shifted(e, e.ins[0], made, _axes(total.reduction.ins[0], total, made))


def _logsumexp(e: Equation, made: Definitions) -> tuple[Value, tuple[int, ...]] | None:
    """`log(sum(exp(x - max))) + max`, with whatever in the place of a `max` that is infinite."""
    for total_at, top_at in ((0, 1), (1, 0)):
        total = _statistic(e.ins[total_at], made, "reduce_sum")
        if total is None or total.through not in (["log"], ["log", "abs"]):
            continue
        summed = total.reduction.ins[0]
        cast = made.by(summed, "convert_element_type")  # to take sums of short floats
        terms = made.by(summed if cast is None else cast.ins[0], "exp")
        less = None if terms is None else made.by(terms.ins[0], "sub")
        if less is None:
            continue
        x, out = less.ins[0], e.outs[0]
        axes = _axes_of_top(less, made)
        same = _as_reduced(less.ins[1], made) is _as_reduced(e.ins[top_at], made)
        if axes is None or not same or axes != total.reduction.params["axes"]:
            continue
        kept = [None if i in axes else i for i in range(len(x.shape))]
        ones = len(out.shape) == len(x.shape)  # in the place of what is summed over
        kept = kept if ones else [i for i in kept if i is not None]
        fits = [1 if i is None else x.shape[i] for i in kept] == list(out.shape)
        placed = all(j in (None, i) for i, j in zip(kept, total.places, strict=False))
        if fits and placed and len(total.places) == len(kept):
            return x, axes
    return None


# By the primitive that comes last.
_LAST = {
    "div": ("softmax", _softmax),
    "sub": ("log_softmax", _log_softmax),
    "add": ("logsumexp", _logsumexp),
}


def _as_reduced(v: Value, made: Definitions) -> Value:
    """What `v` is before it is broadcast again."""
    while (e := made.maker(v)) is not None and len(e.ins) == 1:
        if e.name != "broadcast_in_dim" and not (e.name in _SHAPES and _adds_ones(e)):
            break
        v = e.ins[0]
    return v


def _shifted(
    e: Equation, shifted: Value, made: Definitions, axes: tuple[int, ...] | None
) -> tuple[Value, tuple[int, ...]] | None:
    """What a softmax is of, which does not depend on what that is shifted by."""
    if axes is None or shifted.shape != e.outs[0].shape:
        return None
    less = made.by(shifted, "sub")
    if less is None or _axes_of_top(less, made) != axes or less.ins[0].shape != shifted.shape:
        return shifted, axes
    return less.ins[0], axes


def _axes_of_top(less: Equation, made: Definitions) -> tuple[int, ...] | None:
    """The positions of `x` in `x - max(x)` over which the largest is taken."""
    top = _statistic(less.ins[1], made, "reduce_max")
    usual = top is not None and set(top.through) <= {"stop_gradient", "max", "select_n"}
    return _axes(less.ins[0], top, made) if usual else None


class _Statistic(NamedTuple):
    """A reduction whose result is broadcast again.

    Attributes:
      places: for each position of what it became the position of what was reduced; None where
        it is the same all along.
      through: the elementwise ops that come in between, the last one first.
    """

    reduction: Equation
    places: list[int | None]
    through: list[str]


def _statistic(v: Value, made: Definitions, name: str) -> _Statistic | None:
    """The reduction that `v` is, moved and broadcast, behind a few elementwise ops."""
    places: list[int | None] = list(range(len(v.shape)))
    through: list[str] = []
    while (e := made.maker(v)) is not None:
        operand = e.ins[0] if e.ins else v
        if e.name == name:
            kept: list = [i for i in range(len(operand.shape)) if i not in e.params["axes"]]
            return _Statistic(e, _placed(places, kept), through)
        if e.name == "convert_element_type":  # sums of short floats are taken in float32
            if not jnp.issubdtype(v.dtype, jnp.floating):
                return None
        elif e.name in MOVES and len(e.ins) == 1:
            moved = moved_positions(e.name, e.params, len(operand.shape))
            back = {j: i for i, j in moved.items()}
            places = _placed(places, [back.get(i) for i in range(len(v.shape))])
        elif e.name in _SHAPES and _adds_ones(e):
            rest = iter([i for i, n in enumerate(operand.shape) if n != 1])
            places = _placed(places, [None if n == 1 else next(rest) for n in v.shape])
        else:
            found = _behind(e, made)
            if found is None:
                return None
            operand = found
            through.append(e.name)
        v = operand
    return None


def _behind(e: Equation, made: Definitions) -> Value | None:
    """What an elementwise op is of, that may stand between a reduction and its use."""
    if e.name in ("log", "abs", "stop_gradient"):
        return e.ins[0]
    if e.name == "max" and _is_minus_infinity(e.ins[0]):
        return e.ins[1]
    if e.name == "select_n" and len(e.ins) == 3:  # another number where it is not finite
        finite = made.by(e.ins[0], "is_finite")
        return e.ins[2] if finite is not None and finite.ins[0] is e.ins[2] else None
    return None


def _placed(places: list[int | None], by: Any) -> list[int | None]:
    return [None if i is None else by[i] for i in places]


def _axes(x: Value, found: _Statistic | None, made: Definitions) -> tuple[int, ...] | None:
    """The positions of `x` that a statistic of it is over.

    None if it is of something else, or does not stand beside `x` as it was reduced.
    """
    if found is None or len(found.places) != len(x.shape):
        return None
    reduced, moved = found.reduction.ins[0], made.by(x, "transpose")
    while reduced is not x and (cast := made.by(reduced, "convert_element_type")) is not None:
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


def _sorts_indices(e: Equation, made: Definitions) -> bool:
    """Whether a sort is one of values, by which the indices where they were are ordered, too."""
    if len(e.ins) != 2 or e.params["num_keys"] != 1 or not e.params["is_stable"]:
        return False
    index = Affine(((e.params["dimension"], 1),), 0)
    return made.read(e.ins[1]) == index


def _are_inside(e: Equation, made: Definitions) -> bool:
    """Whether the indices of a lookup are known, and none is outside of what it looks up in."""
    positions = e.params["dimension_numbers"].start_index_map
    if len(positions) != 1:
        return False
    ids = made.known(e.ins[1])
    if ids is None:
        return False
    ids = np.asarray(ids)
    return bool((ids >= 0).all() and (ids < e.ins[0].shape[positions[0]]).all())
