"""One form for sums: what is linear is added up, and a sum over a dim goes inwards.

By these rules the products of what each device has of a contracted dim, summed over the devices,
become the product over the whole dim. They are those of real numbers: a sum may be taken in any
order, and a number that nothing depends on may be taken out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import jax.numpy as jnp

from meshdsl.proof.forms.orders import each_row, of_places, of_rows
from meshdsl.proof.labels import Label, Part, Parts, labelled
from meshdsl.proof.terms import Term, Terms
from meshdsl.proof.values import Value, arguments_of, lacking, made, opened, own_dims

# Of one argument, with f(x + y) = f(x) + f(y). `cast` is a conversion that keeps numbers, up to
# rounding.
ADDITIVE = {"cast", "real", "imag", "conj"}
COMMUTATIVE = {"mul", "max", "min", "and", "or", "xor", "eq", "ne"}

Pairs = list[tuple[Fraction, Value]]  # what is added up: numbers, and what each of them is times

# How a sum goes into a term of another operation: a function of the terms, the value, the labels of
# the parts to sum, and the sizes of all parts. None: it does not go in.
Inwards = Callable[[Terms, Value, Collection[Label], Mapping[Label, int]], Value | None]
INWARDS: dict[str, Inwards] = {}


def inwards(*operations: str):
    """Says of a function that it is how a sum goes into terms of these operations."""

    def register(rule: Inwards) -> Inwards:
        INWARDS.update(dict.fromkeys(operations, rule))
        return rule

    return register


# The one form of an operation of each element: a function of the terms, the operation, its
# parameters and its arguments. None: it is as it is.
Form = Callable[[Terms, str, tuple, Sequence[Value]], Value | None]
FORMS: dict[str, list[Form]] = {}
LATER: dict[str, Callable[..., Any]] = {}  # functions that sums call, and that need sums themselves


def later(function: Callable[..., Any]):
    """Says of a function that it is the one of its name in `LATER`."""
    LATER[function.__name__] = function
    return function


def form(*operations: str):
    """Says of a function that it brings these operations to one form."""

    def register(rule: Form) -> Form:
        for operation in operations:
            FORMS.setdefault(operation, []).append(rule)
        return rule

    return register


# How some terms of a sum go together: functions of the terms and of all that is added up, each
# with its factor. None: they do not.
Together = Callable[[Terms, Pairs], Value | None]
TOGETHER: list[Together] = []


def is_zero(value: Value) -> bool:
    return value.term.op == "const" and value.term.params[1] in (0, False, "-0.0")


def summands(value: Value) -> Pairs:
    """What is added up in a value."""
    if value.term.op == "sum":
        return list(zip(value.term.params[0], arguments_of(value), strict=True))
    return [] if is_zero(value) else [(Fraction(1), value)]


def elementwise(
    terms: Terms, op: str, params: tuple, values: Sequence[Value], dims: Iterable[Parts]
) -> Value:
    """An operation of each element, of values in which the same parts have the same labels."""
    if any(value.term.op == "sorted" for value in values):
        found = LATER["each_in_order"](terms, op, params, values)
        if found is not None:
            return found.at(dims)
    if any(value.term.op == "cond" for value in values):
        found = LATER["of_cases"](terms, op, params, values)
        if found is not None:
            return found.at(dims)
    if op in COMMUTATIVE:
        values = sorted(values, key=lambda value: value.term.number)
    if op in ("mul", "div") or op in ADDITIVE:
        for value in values[:1] if op == "div" else values:
            if is_zero(value):
                return value.at(dims)
    for rule in FORMS.get(op, ()):
        found = rule(terms, op, params, values)
        if found is not None:
            return found.at(dims)
    return made(terms, op, params, values, dims)


def linear(
    terms: Terms, pairs: Iterable[tuple[Fraction | int, Value]], dims: Sequence[Parts]
) -> Value:
    """A sum of values, each times a number."""
    found: dict[object, tuple[Fraction, Value]] = {}

    def add(factor: Fraction, value: Value) -> None:
        if value.term.op == "sum":
            for each, arg in zip(value.term.params[0], arguments_of(value), strict=True):
                add(factor * each, arg)
        elif not is_zero(value):
            key = value.term.number, value.parts
            before = found[key][0] if key in found else 0
            found[key] = before + factor, value

    for factor, value in pairs:
        add(Fraction(factor), value)
    kept = _numbered(terms, [(factor, value) for factor, value in found.values() if factor])
    if len(kept) > 1 and any(_of_neighbours(value.term) for _, value in kept):
        kept = LATER["overlaps"](terms, kept)
    if not kept:
        return Value(terms.constant(0, ""), (), ()).at(dims)
    if len(kept) == 1 and kept[0][0] == 1:
        return kept[0][1].at(dims)
    for rule in TOGETHER:
        result = rule(terms, kept)
        if result is not None:
            return result.at(dims)
    kept.sort(key=lambda pair: pair[1].term.number)
    factors = tuple(factor for factor, _ in kept)
    return made(terms, "sum", (factors,), [value for _, value in kept], dims)


def _of_neighbours(term: Term) -> bool:
    return term.op == "windows" or (term.op == "pad" and term.args[0].op == "windows")


def _numbered(terms: Terms, pairs: Pairs) -> Pairs:
    """`n * iota(m) + iota(n)` is `iota(m * n)`, along the dim of m and then that of n."""
    for i, (factor, major) in enumerate(pairs):
        for j, (unit, minor) in enumerate(pairs):
            if not major.term.op == minor.term.op == "iota" or i == j:
                continue
            if major.labels.keys() & minor.labels.keys():
                continue
            n = minor.term.shape[0]
            if factor == unit * n:
                both = terms.iota(major.term.shape[0] * n)
                value = Value(both, (major.parts[0] + minor.parts[0],), ())
                rest = [pair for k, pair in enumerate(pairs) if k not in (i, j)]
                return _numbered(terms, [*rest, (unit, value)])
    return pairs


def total(
    terms: Terms,
    value: Value,
    labels: Iterable[Label],
    sizes: Mapping[Label, int],
    dims: Iterable[Parts] | None = None,
) -> Value:
    """The sum of a value over parts of it.

    Args:
      labels: of the parts. Where nothing changes along one of them, its size is a factor.
      sizes: of these parts.
      dims: of the local result; by default as they are, without those parts.
    """
    dims = tuple(value.dims if dims is None else dims)
    have = value.labels
    inside = {label for label in labels if label in have}
    factor = prod(sizes[label] for label in labels if label not in have)
    value, more = unpadded(terms, value, inside, lambda number: number == 0)
    if more:
        left = inside & value.labels.keys() | more.keys()
        found = total(terms, value, left, {**have, **more}, dims)
        return linear(terms, [(factor, found)], dims) if factor != 1 else found
    found = _inwards(terms, value, inside, {**sizes, **have}) if inside else value
    return linear(terms, [(factor, found)], dims) if factor != 1 else found.at(dims)


def unpadded(
    terms: Terms, value: Value, labels: Collection[Label], fits: Callable[[int | float], bool]
) -> tuple[Value, Mapping[Label, int]]:
    """See `padding.unpadded`."""
    if not value.term.pads or not labels:
        return value, {}
    return LATER["unpadded"](terms, value, labels, fits)


def summed_over(terms: Terms, value: Value, parts: Iterable[Part], dims: Iterable[Parts]) -> Value:
    """As `total`, of parts of local dims, some of which may have no label."""
    parts, sizes = list(parts), {}
    for size, label in parts:
        if label is not None:
            sizes[label] = size
    free = prod(part.size for part in parts if part.label is None)
    dims = tuple(dims)
    found = total(terms, value, sizes, sizes, dims)
    return linear(terms, [(free, found)], dims) if free != 1 else found


def _inwards(
    terms: Terms, value: Value, labels: Collection[Label], sizes: Mapping[Label, int]
) -> Value:
    op, params = value.term.op, value.term.params
    rule = INWARDS.get(op)
    if rule is not None:
        found = rule(terms, value, labels, sizes)
        if found is not None:
            return found
    elif op in ADDITIVE:
        (arg,) = arguments_of(value)
        arg = total(terms, arg, labels, sizes)
        return elementwise(terms, op, params[:-2], [arg], value.dims)
    here, places = of_places(terms, value, labels)
    if here is not value:
        return _inwards(terms, here, places, {**sizes, **here.labels})
    return made(terms, "reduce_sum", (), [value], value.dims, over=labels)


@inwards("sum")
def _of_sum(terms: Terms, value: Value, labels, sizes) -> Value:
    args = [total(terms, arg, labels, sizes) for arg in arguments_of(value)]
    return linear(terms, zip(value.term.params[0], args, strict=True), value.dims)


@inwards("reduce_sum")
def _of_reduce_sum(terms: Terms, value: Value, labels, sizes) -> Value:
    (arg,) = arguments_of(value)
    before = {label: n for label, n in arg.labels.items() if label not in value.labels}
    return total(terms, arg, {*labels, *before}, {**sizes, **before}, value.dims)


@inwards("ordered")
def _of_ordered(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """Where all rows are added up, their order does not matter; other sums are taken first."""
    own = set(labelled(value.parts[-1]))
    rest = set(labels) - own
    found = of_rows(value, labels)
    if found is not None:
        arg, part = found
        if part.label is None or part.label not in arg.labels:
            return None
        return total(terms, arg, {*rest, part.label}, {**sizes, part.label: part.size}, value.dims)
    if not rest:
        return None
    value = each_row(terms, value, lambda arg: total(terms, arg, rest, sizes))
    return total(terms, value, set(labels) & own, sizes)


@inwards("select_n")
def _of_select(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum goes into the cases, where the condition is the same all along it."""
    which, *cases = arguments_of(value)
    ready = {label for label in labels if label not in which.labels}
    if not ready:
        return None
    cases = [total(terms, case, ready, sizes) for case in cases]
    found = elementwise(terms, "select_n", value.term.params[:-2], [which, *cases], value.dims)
    return total(terms, found, set(labels) - ready, sizes)


# Operations that are linear in some of their arguments, each taken by itself, and in which.
LINEAR_IN = {
    "cumsum": (0,),
    "div": (0,),
    "mul": (0, 1),
    "pad": (0,),  # where zeros are around it
    "put": (1,),
    "rev": (0,),
    "slice": (0,),
    "spread": (1,),
    "windows": (0,),
}


@inwards(*LINEAR_IN)
def of_linear(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum goes into an argument that alone changes along it."""
    op, params = value.term.op, value.term.params[:-2]
    args, along = opened(value)
    new = own_dims(value, args)
    if op == "pad" and not is_zero(args[1]):
        return None
    for i in LINEAR_IN[op]:
        others = {label for j, arg in enumerate(args) if j != i for label in arg.labels}
        ready = {label for label in labels if label in args[i].labels and label not in others}
        if not ready:
            continue
        args[i] = total(terms, args[i], ready, sizes)
        if op == "mul":
            found = elementwise(terms, op, params, args, value.dims)
        else:
            found = made(terms, op, params, args, value.dims, along=along, new=new)
        return total(terms, found, set(labels) - ready, sizes)
    return None


def _no_larger(dtype: str) -> Callable[[int | float], bool]:
    return lambda number: number <= (jnp.iinfo(dtype).min if dtype else -math.inf)


def _no_smaller(dtype: str) -> Callable[[int | float], bool]:
    return lambda number: number >= (jnp.iinfo(dtype).max if dtype else math.inf)


# For operations of `extreme`, whether a number is sure not to be the result.
EXTREMES: dict[str, Callable[[str], Callable[[int | float], bool]]] = {
    "max": _no_larger,
    "min": _no_smaller,
    "and": lambda dtype: lambda number: number is True,
    "or": lambda dtype: lambda number: number is False,
}


def extreme(
    terms: Terms,
    op: str,
    params: tuple,
    value: Value,
    labels: Iterable[Label],
    dims: Iterable[Parts],
) -> Value:
    """The largest element along parts; for `op` of "max", "min", "and" or "or"."""
    over = {label for label in labels if label in value.labels}
    if not over:
        return value.at(dims)
    if value.term.op == f"reduce_{op}" and value.term.params[:-2] == params:
        (arg,) = arguments_of(value)
        over |= labelled(lacking(arg, value)).keys()
        value = arg
    value, places = of_places(terms, value, over)
    over = set(places)
    if (found := of_rows(value, over)) is not None:
        value, part = found
        over = over & value.labels.keys() | labelled([part]).keys()
    value, more = unpadded(terms, value, over, EXTREMES[op](*params))
    over = {label for label in (*over, *more) if label in value.labels}
    if not over:
        return value.at(dims)
    return made(terms, f"reduce_{op}", params, [value], dims, over=over)
