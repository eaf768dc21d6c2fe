"""Parts that go round the devices along an axis, of which each has every part once.

What a device sent on is the same term as before, with another index (`labels.Sent`). Where the
devices add up what they make of each part, in whatever order, that is the sum over all parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshdsl.proof.forms.assumed import THROUGH, again, rebuilt
from meshdsl.proof.forms.known import computed, numbers_along, numbers_of
from meshdsl.proof.forms.products import name_of
from meshdsl.proof.forms.sums import TOGETHER, Pairs, form, linear, total
from meshdsl.proof.labels import Label, Minor, Part, Sent, axis_of, fresh
from meshdsl.proof.moves import moved_label
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, alike, arguments_of, relabelled


def _all_parts(terms: Terms, pairs: Pairs) -> Value | None:
    """The sum over all parts, if each of some terms is of one part, each in its turn.

    Not inside of a branch, which may be that of a part which is seen on a condition.
    """
    for _, value in [] if terms.branches else pairs:
        for label in _sent(value):
            found = _turns(terms, pairs, value, label)
            if found is not None:
                return found
    return None


def _turns(terms: Terms, pairs: Pairs, value: Value, label: Sent) -> Value | None:
    """As `_all_parts`, where one of the terms is `value`, with the part that `label` says."""
    here, size = fresh(), len(label.table)
    whole = relabelled(value, {label: here})
    if value.labels[label] != size:
        return None
    names = {}
    for number, other in pairs:
        for its in other.labels:
            sent = isinstance(its, (str, Sent)) and axis_of(its) == label.axis
            if sent and alike(relabelled(other, {its: here}), whole):
                names[its] = number, other
    own = _merged(terms, whole, {here: label.axis}) if label.axis in whole.labels else None
    for number, other in pairs:
        if own is not None and alike(own, other):
            names[label.axis] = number, other
    if len(names) != size or len({number for number, _ in names.values()}) > 1:
        return None
    tables = [its.table if isinstance(its, Sent) else range(size) for its in names]
    if any(len(set(indices)) != size for indices in zip(*tables, strict=True)):
        return None
    used = [name_of(other) for _, other in names.values()]
    rest = [pair for pair in pairs if name_of(pair[1]) not in used]
    found = total(terms, whole, {here}, {here: size})
    return linear(terms, [*rest, (next(iter(names.values()))[0], found)], ())


def _merged(terms: Terms, value: Value, names: dict[Label, Label]) -> Value | None:
    """`value` with the same index along two parts, which have one label from now on.

    None: it is not known how its operations are done with that.
    """
    both = {*names, *names.values()}
    apart = lambda v: None if both <= v.labels.keys() else relabelled(v, names)
    return rebuilt(terms, value, apart)


def settled(terms: Terms, value: Value) -> Value:
    """`value` with the sums over all parts in it, which were not taken inside of a branch."""
    if terms.branches or value.term.op not in THROUGH or not _sent(value):
        return value
    args = arguments_of(value)
    return again(terms, value, args, [settled(terms, arg) for arg in args])


def _sent(value: Value) -> list[Sent]:
    return [label for label in value.labels if isinstance(label, Sent)]


# -- numbers of places -----------------------------------------------------------------------------


@form("and", "eq", "ge", "gt", "le", "lt", "ne", "or", "rem", "select_n")
def _on_places(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """What is computed of whole numbers that depend on the place along one axis, or on nothing.

    It is computed for each place. If each place has another number, it is that of a part that was
    sent along the axis, or that times a number.
    """
    axes = {axis_of(label): size for value in values for label, size in value.labels.items()}
    if len(axes) > 1 or "" in axes or params not in ((), ("int32",)):
        return None
    tables = [numbers_of(value, dict.fromkeys(axes, 0), 1) for value in values]
    known = [table for table in tables if table is not None]
    result = computed(op, known) if len(known) == len(tables) else None
    if result is None:
        return None
    ((axis, size),) = axes.items() or [("", 1)]
    result = np.broadcast_to(result, (size,))
    result = result if result.dtype == bool else result.astype(np.int32)
    if op == "select_n" and result.min() < 0:  # of unsigned numbers it would be another one
        return None
    if (result == result[0]).all():
        return Value(terms.constant(result[0], bool if result.dtype == bool else "int32"), (), ())
    step = 0 if result.dtype == bool else int(np.gcd.reduce(result))
    if step and sorted(result // step) == list(range(size)):
        part = Part(size, moved_label(axis, (result // step).tolist(), size))
        return linear(terms, [(step, Value(terms.iota(size), ((part,),), ()))], ())
    key = str(result.dtype), result.shape, result.tobytes()
    return Value(terms.term("array", key, shape=(size,)), ((Part(size, axis),),), ())


TOGETHER.append(_all_parts)


def at_index(terms: Terms, value: Value, label: Label, index: int) -> Value | None:
    """`value` at an index of a part; None if it is not known how its operations are done there."""

    if isinstance(label, Minor):
        return None

    def base(v: Value) -> Value | None:
        if label not in v.labels:
            return v
        if v.term.op == "iota":
            return _counted(terms, v, label, index)
        numbers = numbers_along(v, Part(v.labels[label], label)) if v.term.op == "array" else None
        if numbers is None:
            return None
        return Value(terms.constant(numbers[index], v.term.params[0]), (), ())

    return rebuilt(terms, value, base)


def _counted(terms: Terms, count: Value, label: Label, index: int) -> Value:
    """What is counted along several parts, at an index of one of them."""
    pairs, after = [], 1
    for part in reversed(count.parts[0]):
        size, its = part
        if its == label:
            pairs.append((after * index, Value(terms.constant(1, "int32"), (), ())))
        else:
            pairs.append((after, Value(terms.iota(size), ((part,),), ())))
        after *= size
    return linear(terms, pairs, ())
