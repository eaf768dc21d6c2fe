"""What one device along an axis has, and what one device alone has.

alone(k, x)        x on device number k along an axis, and zeros on the others
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshdsl.proof.forms.known import numbers_along
from meshdsl.proof.forms.sums import elementwise, inwards, is_zero, linear, total
from meshdsl.proof.labels import Part, Parts
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, made, opened, own_dims


def alone(terms: Terms, value: Value, axis: Part, device: int) -> Value:
    """What a device alone has, of all along an axis."""
    if is_zero(value):
        return value
    return made(terms, "alone", (device,), [value], value.dims, new=[(axis,)])


def put_together(terms: Terms, each: Sequence[Value], axis: Part, dims: Sequence[Parts]) -> Value:
    """What devices along an axis have, of which each has another value.

    Args:
      each: in the order of the devices, and the same along the axis; the same parts have the same
        labels.
    """
    found = (alone(terms, value, axis, device) for device, value in enumerate(each))
    return linear(terms, [(1, value) for value in found], dims)


def on_device(terms: Terms, value: Value, axis: Part, device: int) -> Value | None:
    """What a device along an axis has; None if it has no form without the axis."""
    if axis.label not in value.labels:
        return value
    op, params = value.term.op, value.term.params
    args, along = opened(value)
    if op == "alone" and own_dims(value, args) == [(axis,)]:
        zero = Value(terms.constant(0, ""), (), ()).at(value.dims)
        return args[0] if params[0] == device else zero
    if op == "select_n":
        known = numbers_along(args[0], axis)
        if known is None:
            return None
        case = args[1 + int(known[device])]
        return on_device(terms, case, axis, device)
    of_each_element = args and not any(along) and params[-1] == () and not own_dims(value, args)
    if not of_each_element or None in value.term.views:
        return None
    found = [on_device(terms, arg, axis, device) for arg in args]
    kept = [each for each in found if each is not None]
    if len(kept) < len(found):
        return None
    if op == "sum":
        return linear(terms, zip(params[0], kept, strict=True), value.dims)
    return elementwise(terms, op, params[:-2], kept, value.dims)


def chosen(terms: Terms, values: Sequence[Value], dims: Sequence[Parts]) -> Value | None:
    """A `select_n` that each device decides by its number, of what only some devices have."""
    which, *cases = values
    axes = [Part(size, label) for label, size in which.labels.items()]
    known = numbers_along(which, axes[0]) if len(axes) == 1 else None
    if known is None or not any(_is_alone(case) for case in cases):
        return None
    numbered = enumerate(known)
    each = [on_device(terms, cases[int(n)], axes[0], device) for device, n in numbered]
    kept = [value for value in each if value is not None]
    return put_together(terms, kept, axes[0], dims) if len(kept) == len(each) else None


def _is_alone(value: Value) -> bool:
    parts: Iterable = value.term.args if value.term.op == "sum" else [value.term]
    return any(term.op == "alone" for term in parts)


@inwards("alone")
def _of_alone(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """The sum over devices of which one alone has something is what it has."""
    (arg,), _ = opened(value)
    (axis,) = own_dims(value, [arg])
    gone: Parts = tuple(part for part in axis if part.label in labels)
    if gone and gone != axis:
        return None
    arg = total(terms, arg, set(labels) - {part.label for part in gone}, sizes, value.dims)
    if gone:
        return arg
    return made(terms, "alone", value.term.params[:-2], [arg], value.dims, new=[axis])
