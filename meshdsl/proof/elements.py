"""Lemmas of primitives that compute each element by itself, and of those that change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshdsl.proof.forms import casts, lookups  # noqa: F401  (casts have a form)
from meshdsl.proof.forms.signs import is_at_most
from meshdsl.proof.forms.sums import LATER, elementwise, is_zero, linear
from meshdsl.proof.labels import Parts
from meshdsl.proof.lemmas import PARTS, Walk, lemma
from meshdsl.proof.sends import alone, orders
from meshdsl.proof.terms import NotProved, Terms
from meshdsl.proof.values import Value, aligned, joined, unchanging

# These move nothing and compute nothing: they say something to JAX or to a compiler.
SAME = (
    *("copy", "copy_p", "device_put", "hidden_on_cpu", "layout_constraint", "mesh_cast", "name"),
    *("optimization_barrier", "pvary", "reshard", "sharding_constraint", "stop_gradient"),
)
_SUMS = {"add": (1, 1), "add_any": (1, 1), "sub": (1, -1), "neg": (-1,)}
_EACH_ELEMENT = (
    *("abs", "acos", "acosh", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e"),
    *("bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "cos", "cosh", "digamma"),
    *("div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma"),
    *("igammac", "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic"),
    *("lt", "max", "min", "mul", "ne", "nextafter", "not", "one_minus_square", "or", "polygamma"),
    "population_count",
    *("pow", "real", "reduce_precision", "regularized_incomplete_beta", "rem", "round", "rsqrt"),
    *("select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin"),
    *("sinh", "sqrt", "square", "tan", "tanh", "threefry2x32", "xor", "zeta"),
)
_SAYS_HOW = ("accuracy", "sharding", "out_sharding", "weak_type")  # parameters that change no value


def together(values: Sequence[Value]) -> tuple[list[Value], tuple[Parts, ...]]:
    """Values of one shape, or scalars beside it, in which the same parts have the same labels.

    Returns:
      The values, and the dims of what is computed of each of their elements.
    """
    shape = max((value.shape for value in values), key=len)
    alone = lambda value: len(value.dims) < len(shape)
    full = [Value(v.term, v.parts, unchanging(shape)) if alone(v) else v for v in values]
    ranks = range(len(shape))
    full = aligned(full, [[d] * len(full) for d in ranks])
    return full, tuple(joined(value.dims[d] for value in full) for d in ranks)


@lemma(*SAME)
def _same(walk: Walk, eqn, *values: Value) -> Sequence[Value]:
    return values


@lemma(*_SUMS)
def _sum(walk: Walk, eqn, *values: Value) -> list[Value]:
    values_, dims = together(values)
    factors = _SUMS[eqn.primitive.name]
    return [linear(walk.terms, zip(factors, values_, strict=True), dims)]


@lemma(*_EACH_ELEMENT)
def _each_element(walk: Walk, eqn, *given: Value) -> list[Value]:
    terms, op = walk.terms, eqn.primitive.name
    values, dims = together(given)
    params = tuple((k, str(v)) for k, v in sorted(eqn.params.items()) if k not in _SAYS_HOW)
    integers = _is_integer(eqn.invars[-1].aval.dtype)
    if op == "mul" and integers:
        for number, other in (values, reversed(values)):
            if number.term.op == "const":
                return [linear(terms, [(number.term.params[1], other)], dims)]
    elif op == "select_n":
        found = _chosen(values) or alone.chosen(terms, values, dims)
        if found is None and walk.sends == PARTS:
            found = orders.chosen(values)
        found = found or lookups.looked_up(terms, values, dims)
        if found is None and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
            found = LATER["by_round"](terms, values)
        if found is not None:
            return [found.at(dims)]
    elif (found := decided(terms, op, values)) is not None:
        return [found.at(dims)]
    elif op == "lt" and is_zero(values[1]) and _counts(values[0], eqn.invars[0].aval.dtype):
        return [Value(terms.constant(False, bool), (), ()).at(dims)]
    if integers and op not in ("mul", "select_n"):  # what it computes depends on signs and widths
        params = (*params, str(eqn.invars[-1].aval.dtype))
        op = "integer_div" if op == "div" else op
        if op == "eq" and (same := lookups.same_number(terms, params, values)):
            return [same.at(dims)]
    if op in ("abs", "exp", "log") and eqn.invars[0].aval.dtype.kind == "c":
        op = f"complex_{op}"  # their rules are those of real numbers
    if len(eqn.outvars) == 1:
        return [elementwise(terms, op, params, values, dims)]
    count = range(len(eqn.outvars))
    return [elementwise(terms, op, (*params, i), values, dims) for i in count]


def decided(terms: Terms, op: str, values: Sequence[Value]) -> Value | None:
    """One of the values, or a constant, if that is what an operation makes of them."""
    if op == "select_n":
        return _chosen(values)
    truth = lambda value: value.term.op == "const" and isinstance(value.term.params[1], bool)
    if op in ("and", "or"):
        for one, other in (values, reversed(values)):
            if truth(one):
                return other if one.term.params[1] == (op == "and") else one
    if op == "lt" and values[0].term.op in ("argmax", "argmin") and is_zero(values[1]):
        return Value(terms.constant(False, bool), (), ())
    if op == "lt" and values[0].term.op == "iota" and values[1].term.op == "const":
        number = values[1].term.params[1]
        if isinstance(number, int) and number >= values[0].term.shape[0]:
            return Value(terms.constant(True, bool), (), ())
    if op == "div" and values[1].term.op == "const" and values[1].term.params[1] == 1:
        return values[0]
    if op in ("max", "min"):
        for one, other in (values, reversed(values)):
            low, high = (one, other) if op == "min" else (other, one)
            if is_at_most(low.term, high.term):
                return one
    if op == "clamp":
        low, x, high = (value.term for value in values)
        if is_at_most(low, x) and is_at_most(x, high):
            return values[1]
    return None


def _chosen(values: Sequence[Value]) -> Value | None:
    """The case that a condition has chosen before the program runs, or that all cases are."""
    which, *cases = values
    if which.term.op == "const" and which.term.params[1] in range(len(cases)):
        return cases[int(which.term.params[1])]
    first = cases[0]
    alike = all(case.term is first.term and case.parts == first.parts for case in cases)
    return first if alike else None


def _counts(value: Value, dtype: Any) -> bool:
    """Whether integers are counted up from 0 or more, and none is too large for their dtype."""
    term = value.term
    if not _is_integer(dtype):
        return False
    pairs = zip(*term.params[:1], term.args, strict=True) if term.op == "sum" else [(1, term)]
    largest = 0
    for factor, each in pairs:
        if factor < 0 or each.op not in ("iota", "const"):
            return False
        number = each.params[1] if each.op == "const" else each.shape[0] - 1
        if not isinstance(number, int) or number < 0:
            return False
        largest += factor * number
    return largest <= jnp.iinfo(dtype).max


@lemma("convert_element_type")
def _convert(walk: Walk, eqn, x: Value) -> list[Value]:
    old, new = eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    return [converted(walk, x, np.dtype(old), np.dtype(new))]


@lemma("bitcast_convert_type")
def _bitcast(walk: Walk, eqn, x: Value) -> list[Value]:
    if eqn.outvars[0].aval.shape != x.shape:
        raise NotProved("there is no lemma for a number that is cut into others, bit by bit")
    params = str(eqn.invars[0].aval.dtype), str(eqn.params["new_dtype"])
    return [elementwise(walk.terms, "bitcast_convert_type", params, [x], x.dims)]


def converted(walk: Walk, x: Value, old: np.dtype, new: np.dtype) -> Value:
    """`x` in another dtype. Integers that are counted up from constants keep their terms.

    What keeps numbers up to rounding is additive; what drops fractions, signs or digits is not.
    """
    terms = walk.terms
    if old == new:
        return x
    if x.term.op == "const":
        number = x.term.params[1]
        value = np.asarray(float(number) if isinstance(number, str) else number, old)
        if not _is_integer(new) or _is_integer(old) or old == bool or _fits(number, new):
            return Value(terms.constant(value.astype(new), new), (), ()).at(x.dims)
    if _is_integer(old) and _is_integer(new) and _counts(x, old) and _counts(x, new):
        return x
    both = jnp.issubdtype(old, np.inexact) and jnp.issubdtype(new, np.inexact)
    if both and (old.kind != "c" or new.kind == "c"):
        return elementwise(terms, "cast", (str(old), str(new)), [x], x.dims)
    return elementwise(terms, "convert_element_type", (str(old), str(new)), [x], x.dims)


def _fits(number: Any, dtype: np.dtype) -> bool:
    info = jnp.iinfo(dtype)
    return isinstance(number, (int, float)) and info.min <= number <= info.max


def _is_integer(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)
