"""Which element is the largest, where each device has some of them.

A device finds the largest of its own, and where that is. Of the devices whose largest one is the
largest of all, the first says where. They compare integers that have the order of the elements.
"""

from __future__ import annotations

from collections.abc import Collection

import jax.numpy as jnp

from meshdsl.proof.forms.sums import EXTREMES, extreme, is_zero, unpadded
from meshdsl.proof.labels import Label, Part, labelled, size_of
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, arguments_of, made, opened, relabelled


def _alike(a: Value, b: Value) -> bool:
    return a.term is b.term and a.parts == b.parts


def of_largest(terms: Terms, value: Value) -> Value | None:
    """The largest element, if a value is a `gather` of that at the place of the largest one."""
    term = value.term
    one = term.op == "gather" and term.params[1:4] == ((0,), (), (0,))
    if not one or term.args[1].op != "argmax":
        return None
    (x, at), ((run,), _) = opened(value)
    (found,), ((other,),) = opened(at)
    pairs = zip(other, run, strict=False)
    names = {b.label: a.label for b, a in pairs if b.label is not None and a.label is not None}
    if len(run) != len(other) or not _alike(relabelled(found, names), x):
        return None
    return extreme(terms, "max", at.term.params[:-2], x, labelled(run), value.dims)


def first_of_parts(terms: Terms, value: Value, axes: Collection[Label]) -> Value | None:
    """The place of the largest element, if the least of a value along axes is that.

    The value is, where the largest element of a device is the largest of all, its place in the
    whole, and elsewhere a number that is too large for a place.
    """
    if value.term.op != "select_n" or len(value.term.args) != 3:
        return None
    which, other, place = arguments_of(value)
    if which.term.op != "eq" or place.term.op != "sum" or len(place.term.args) != 2:
        return None
    own, of_all = sorted(arguments_of(which), key=lambda side: side.term.op == "reduce_max")
    pairs = zip(arguments_of(place), place.term.params[0], strict=True)
    (first, step), (at, one) = sorted(pairs, key=lambda pair: pair[0].term.op == "argmax")
    if of_all.term.op != "reduce_max" or first.term.op != "iota" or at.term.op != "argmax":
        return None
    (x,), ((run,),) = opened(at)
    dtype, parts = at.term.params[:-2], first.parts[0]
    whole, element = (*parts, *run), _in_order(own)
    largest = extreme(terms, "max", dtype, x, labelled(run), ())
    is_it = (
        other.term is terms.constant(jnp.iinfo(jnp.int32).max, "int32"),
        (step, one) == (size_of(run), 1),
        labelled(parts).keys() == set(axes),
        _alike(extreme(terms, "max", of_all.term.params[:-2], own, axes, ()), of_all),
        element is not None and _alike(element, largest),
        any(whole == p[i : i + len(whole)] for p in x.parts for i in range(len(p))),
    )
    if not all(is_it):
        return None
    x, left = unpadded(terms, x, labelled(whole), EXTREMES["max"](*dtype))
    whole = tuple(Part(n, label) for label, n in left.items()) or whole
    if not labelled(whole).keys() <= x.labels.keys():
        return None
    return made(terms, "argmax", dtype, [x], value.dims, along=[[whole]])


def _in_order(value: Value) -> Value | None:
    """The floats whose order integers have, if they are made of the bits of floats so.

    All zeros are made one, and of negative floats all bits but the sign are inverted.
    """
    if value.term.op == "convert_element_type" and value.term.params[:2] == ("int16", "int32"):
        (value,) = arguments_of(value)
    if value.term.op != "xor":
        return None
    of = lambda op, value, count: value.term.op == op and len(value.term.args) == count
    bits, other = sorted(arguments_of(value), key=lambda side: side.term.op == "and")
    if not of("bitcast_convert_type", bits, 1) or not of("and", other, 2):
        return None
    info = jnp.iinfo(bits.term.params[1])
    sign, rest = sorted(arguments_of(other), key=lambda side: side.term.op == "const")
    if not of("shift_right_arithmetic", sign, 2) or rest.term.params[1:2] != (info.max,):
        return None
    shifted, by = arguments_of(sign)
    if not _alike(shifted, bits) or by.term.params[1:2] != (info.bits - 1,):
        return None
    (x,) = arguments_of(bits)
    if not of("select_n", x, 3):
        return None
    no_number, x, nan = arguments_of(x)
    if not of("select_n", x, 3) or not of("ne", no_number, 2):
        return None
    no_zero, x, zero = arguments_of(x)
    if not of("eq", no_zero, 2) or not is_zero(zero) or nan.term.params[1:2] != ("nan",):
        return None
    numbers = all(_alike(y, x) for y in arguments_of(no_number))
    zeros = sorted(arguments_of(no_zero), key=is_zero)
    return x if numbers and _alike(zeros[0], x) and is_zero(zeros[1]) else None
