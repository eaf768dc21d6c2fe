"""Attention, found among the equations of a program whose dims are known.

Products of queries and keys, scaled, masked, with a bias, a softmax over the keys, and the weighted
sum of values become `md.attention`. Where anything is different, such as dropout of the weights, or
where weights or scores are used elsewhere too, the equations stay as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from meshdsl.plain_jax.constraints import free_positions
from meshdsl.plain_jax.program import (
    REMATERIALISED,
    Equation,
    Program,
    Value,
    Variable,
)
from meshdsl.plain_jax.recognise import drop_unused
from meshdsl.plain_jax.static_masks import Affine, Choice, Definitions, moved
from meshdsl.program.jaxpr import scan_counts

HIDES = -1e4  # what is added to a score, or stands in its place, so that its weight is 0
# Products of short floats as they are, with sums in float32.
_PLAIN_SUMS = {
    jnp.dtype(jnp.bfloat16): lax.DotAlgorithmPreset.BF16_BF16_F32,
    jnp.dtype(jnp.float16): lax.DotAlgorithmPreset.F16_F16_F32,
}
_CASTS = ("convert_element_type", "copy", "copy_p")


class Beside(NamedTuple):
    """A mask, or what is added to the scores.

    Attributes:
      places: for each of its positions that of the scores.
      fill: what a mask puts in the place of hidden scores; None for what is added.
      shows: whether a mask is true for what is visible, and not for what is hidden.
    """

    value: Value
    places: tuple[int, ...]
    fill: float | None = None
    shows: bool = True


@dataclass
class Parts:
    """One attention.

    Attributes:
      first, second: the equations of both products.
      memory, queries: positions of the scores; queries is None where there is one query.
      values_first: whether the values stand first in the second product.
      weights: for each position of the weights that of the scores.
      scale, causal: as `md.attention` takes them.
      beside: masks and what is added, the outermost first.
    """

    first: Equation
    second: Equation
    memory: int
    values_first: bool
    weights: tuple[int, ...]
    scale: float = 1.0
    queries: int | None = None
    causal: bool = False
    beside: list[Beside] = field(default_factory=list)

    @property
    def scores(self) -> Variable:
        return self.first.outs[0]

    @property
    def query(self) -> Value:
        return self.first.ins[0]

    @property
    def key(self) -> Value:
        return self.first.ins[1]

    @property
    def value(self) -> Value:
        return self.second.ins[0 if self.values_first else 1]

    def described(self) -> str:
        """What kind of attention it is, in a few words."""
        words = ["causal"] * self.causal
        words += ["masked"] if any(x.fill is not None for x in self.beside) else []
        words += ["with a bias"] if any(x.fill is None for x in self.beside) else []
        return f"attention ({', '.join(words)})" if words else "attention"


class _Search(Definitions):
    """What the equations of a program, and of the bodies in it, say of their variables."""

    def __init__(self, program: Program):
        super().__init__(program)
        self.uses: Counter[Variable] = Counter()
        self.same: dict[Variable, Value] = {}
        self._add(program)

    def _add(self, program: Program) -> None:
        self.constants.update(program.constants)
        self.uses.update(v for v in program.outvars if isinstance(v, Variable))
        for e in program.equations:
            self.made.update((v, e) for v in e.outs)
            self.uses.update(v for v in e.ins if isinstance(v, Variable))
            for body in e.bodies:
                self._add(body)
            self.same.update(_passed_on(e))

    def maker(self, v: Value) -> Equation | None:
        """The equation that makes `v`, which may stand outside of the body that `v` is given to."""
        while isinstance(v, Variable) and v in self.same:
            v = self.same[v]
        return super().maker(v)

    def alone(self, v: Value) -> Equation | None:
        """The equation that makes `v`, if nothing else uses it."""
        if not isinstance(v, Variable) or self.uses[v] != 1:
            return None
        return self.made.get(v)

    def number(self, v: Value) -> float | None:
        """The number that all elements of `v` are."""
        found = self.read(v)
        if isinstance(found, Affine) and not found.by_position:
            return float(found.constant)
        return None


def _passed_on(e: Equation) -> Iterator[tuple[Variable, Value]]:
    """The variables of bodies that are what the equation is given, in every turn."""
    if e.name == "scan":
        count, _ = scan_counts(e.params)
        yield from zip(e.bodies[0].invars[:count], e.ins, strict=False)
    elif e.name in REMATERIALISED or "gradient" in e.notes:
        yield from zip(e.bodies[0].invars, e.ins, strict=False)


def recognise_attention(program: Program) -> None:
    """Put attention in the place of what makes it up, here and in the bodies."""
    _in_program(program, _Search(program))
    _without_unused(program)


def _without_unused(program: Program) -> None:
    for e in program.equations:
        for body in e.bodies:
            _without_unused(body)
    drop_unused(program)


def _in_program(program: Program, search: _Search) -> None:
    for i, e in enumerate(program.equations):
        for body in e.bodies:
            _in_program(body, search)
        parts = _found(e, search)
        if parts is not None and fits(parts):
            beside = [x.value for x in parts.beside]
            ins = [parts.query, parts.key, parts.value, *beside]
            notes: dict[str, Any] = {"parts": parts}
            if any("saved" in x.notes for x in (e, parts.first)):
                notes["saved"] = (e if "saved" in e.notes else parts.first).notes["saved"]
            program.equations[i] = Equation(
                "attention", None, ins, e.outs, {}, e.lines, notes=notes
            )


def _found(e: Equation, search: _Search) -> Parts | None:
    """The attention whose weighted sum an equation is."""
    if not _plain_product(e):
        return None
    contracted = e.params["dimension_numbers"][0]
    for side in (0, 1):
        weights, at = e.ins[side], contracted[side][0]
        made = search.alone(weights)
        while made is not None and made.name in _CASTS:
            weights = made.ins[0]
            made = search.alone(weights)
        if made is None or made.name != "softmax" or made.params["axes"] != (at,):
            continue
        found = _scored(made.ins[0], e, at, side == 1, search)
        if found is not None:
            return found
    return None


def _plain_product(e: Equation) -> bool:
    """Whether an equation is a product that contracts one dim of each operand."""
    if e.name != "dot_general":
        return False
    (left, _), _ = e.params["dimension_numbers"]
    precision = e.params["precision"]
    each = precision if isinstance(precision, tuple) else (precision,)
    default = {None, lax.Precision.DEFAULT, _PLAIN_SUMS.get(jnp.dtype(e.ins[0].dtype))}
    return len(left) == 1 and all(p in default for p in each)


def _scored(
    v: Value, second: Equation, memory: int, values_first: bool, search: _Search
) -> Parts | None:
    """From the scores that the softmax is of, down to the product of queries and keys."""
    beside: list[Beside] = []
    weights = tuple(range(len(v.shape)))  # for each position of the weights that of `v`
    scale, inner = 1.0, False  # inner: below a scale
    while True:
        e = search.alone(v)
        if e is None:
            return None
        if e.name == "dot_general":
            break
        places = tuple(weights.index(i) for i in range(len(weights)))
        if e.name in _CASTS:
            v = e.ins[0]
        elif e.name == "transpose":
            v, order = e.ins[0], e.params["permutation"]
            weights = tuple(int(order[i]) for i in weights)
        elif e.name in ("mul", "div"):
            k = 1 if search.number(e.ins[1]) is not None else 0
            number = search.number(e.ins[k])
            if number is None or (e.name == "div" and (k == 0 or not number)):
                return None
            v, inner = e.ins[1 - k], True
            scale = scale * number if e.name == "mul" else scale / number
        elif e.name == "select_n" and not inner and len(e.ins) == 3:
            fills = [search.number(w) for w in e.ins[1:]]
            low = [fill is not None and fill <= HIDES for fill in fills]
            hidden = low.index(True) if any(low) else None
            if hidden is None:
                return None
            beside.append(Beside(e.ins[0], places, fills[hidden], hidden == 0))
            v = e.ins[2 - hidden]
        elif e.name == "add" and not inner:
            k = next((k for k in (0, 1) if _leads_to_scores(e.ins[k], search)), None)
            if k is None or _leads_to_scores(e.ins[1 - k], search):
                return None
            beside.append(Beside(e.ins[1 - k], places))
            v = e.ins[k]
        else:
            return None
    if not _plain_product(e) or not scale > 0:
        return None
    parts = _parts(e, second, weights[memory], values_first, weights)
    if parts is None:
        return None
    beside = [x._replace(places=tuple(weights[i] for i in x.places)) for x in beside]
    parts.scale = scale
    return _with_masks(parts, beside, search)


def _leads_to_scores(v: Value, search: _Search, most: int = 12) -> bool:
    """Whether a chain of elementwise equations leads from a product to `v`."""
    e = search.alone(v)
    if e is None or not most:
        return False
    if e.name == "dot_general":
        return True
    if e.name == "transpose":
        return _leads_to_scores(e.ins[0], search, most - 1)
    if e.name in ("mul", "div", "add", "select_n", *_CASTS):
        return any(_leads_to_scores(w, search, most - 1) for w in e.ins if w.shape == v.shape)
    return False


def _parts(
    first: Equation, second: Equation, memory: int, values_first: bool, places: tuple[int, ...]
) -> Parts | None:
    """Both products, if their positions are those of attention."""
    scores = first.outs[0]
    (_, (batch, _)) = first.params["dimension_numbers"]
    free_of_x, _ = free_positions(first)
    count = len(batch)
    of_x = list(range(count, count + len(free_of_x)))
    of_y = list(range(count + len(free_of_x), len(scores.shape)))
    if of_y != [memory]:
        return None
    _, batches = second.params["dimension_numbers"]
    weights, value = (1, 0) if values_first else (0, 1)
    if sorted(places[i] for i in batches[weights]) != list(range(count)):
        return None
    frees = free_positions(second)
    if sorted(places[i] for i in frees[weights]) != of_x or len(frees[value]) != 1:
        return None
    dtypes = {jnp.dtype(v.dtype) for v in (*first.ins, second.ins[value])}
    if len(dtypes) != 1 or not jnp.issubdtype(dtypes.pop(), jnp.floating):
        return None
    parts = Parts(first, second, memory, values_first, places)
    long = [i for i in of_x if scores.shape[i] != 1]
    parts.queries = long[-1] if long else None
    return parts


def _with_masks(parts: Parts, beside: list[Beside], search: _Search) -> Parts | None:
    """With masks and biases; a causal mask is none that is computed, if it is the only one."""
    if any(len(x.value.shape) != len(parts.scores.shape) for x in beside):
        return None
    masks = [x for x in beside if x.fill is not None]
    if len({x.fill for x in masks}) > 1:
        return None
    queries = _causal_queries(masks[0], parts, search) if len(masks) == 1 else None
    if queries is not None:
        parts.causal, parts.queries = True, queries
        beside = [x for x in beside if x.fill is None]
    parts.beside = beside
    return parts


def _causal_queries(mask: Beside, parts: Parts, search: _Search) -> int | None:
    """The position of queries that see keys up to their own position, and no more; None if none."""
    places = {i: j for i, j in enumerate(mask.places) if mask.value.shape[i] != 1}
    found = moved(search.read(mask.value), places)
    if not isinstance(found, Choice) or found[1:] != (mask.shows, not mask.shows):
        return None
    factors = dict(found.condition.by_position)
    rows = [i for i in factors if i != parts.memory and parts.scores.shape[i] != 1]
    causal = len(rows) == 1 and factors == {rows[0]: 1, parts.memory: -1}
    return rows[0] if causal and not found.condition.constant else None


def fits(parts: Parts) -> bool:
    """Whether the dims are such as `md.attention` takes them."""
    scores = parts.scores
    single = lambda dims: len(dims) == 1
    head = lambda e, side: e.ins[side].dims[e.params["dimension_numbers"][0][side][0]]
    if not single(scores.dims[parts.memory]):
        return False
    if not head(parts.first, 0) or not head(parts.first, 1):  # of one element
        return False
    if parts.queries is not None and not single(scores.dims[parts.queries]):
        return False
    at = 0 if parts.values_first else 1
    (feature,) = free_positions(parts.second)[at]
    return bool(parts.value.dims[feature]) and math.prod(scores.shape) > 0
