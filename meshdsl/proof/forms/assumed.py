"""What a value is where something is known: terms are made again with parts of them replaced."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from meshdsl.proof.forms.orders import ordered
from meshdsl.proof.forms.sums import elementwise, extreme, linear, total
from meshdsl.proof.labels import Label, Minor, labelled
from meshdsl.proof.terms import Term, Terms
from meshdsl.proof.values import Value, alike, arguments_of, lacking, opened, own_dims, relabelled

# Operations through which it goes: of each element, and along which no order matters.
_EACH = {"and", "cast", "cond", "div", "exp", "gt", "log", "mul", "over", "select_n"}
THROUGH = {*_EACH, "ordered", "sum", "reduce_sum"}
_OF_SOME = {"reduce_sum", "reduce_max", "reduce_min"}


def given(terms: Terms, value: Value, which: Value, truth: bool) -> Value:
    """`value` where a condition is known to be true, or to be false."""
    known = Value(terms.constant(truth, bool), (), ())
    this = lambda v: known if alike(v, which) else None
    return replaced(terms, value, lambda term: term is which.term, this)


def replaced(
    terms: Terms,
    value: Value,
    wanted: Callable[[Term], bool],
    replace: Callable[[Value], Value | None],
) -> Value:
    """`value` with other values for some of those that it is made of.

    What lies behind any operation but those of `THROUGH` stays as it is. What several of them are
    made of is looked into once.

    Args:
      wanted: says of a term whether values of it may be replaced.
      replace: gets a value of such a term. None: it stays. What it says may not depend on which
        labels parts have that `value` does not have.
    """
    have: dict[Term, bool] = {}
    done: dict[Hashable, tuple[list[Label], Value | None]] = {}  # None: it stays
    outer = value.labels.keys()

    def has(term: Term) -> bool:
        if term not in have:
            have[term] = wanted(term) or (term.op in THROUGH and any(map(has, term.args)))
        return have[term]

    def of(value: Value) -> Value:
        if not has(value.term):
            return value
        inner = [label for label in value.labels if label not in outer]
        if not all(isinstance(label, int) for label in inner):  # rows in another order
            return looked_into(value)
        places: dict[Label | None, tuple[int]] = {label: (i,) for i, label in enumerate(inner)}
        name = lambda part: (part.size, places.get(part.label, part.label))
        key = value.term, tuple(tuple(map(name, dim)) for dim in value.parts)
        if key not in done:
            found = looked_into(value)
            done[key] = inner, None if found is value else found
            return found
        before, found = done[key]
        if found is None:
            return value
        return relabelled(found, dict(zip(before, inner, strict=True))).at(value.dims)

    def looked_into(value: Value) -> Value:
        found = replace(value) if wanted(value.term) else None
        if found is not None:
            return found.at(value.dims)
        if value.term.op not in THROUGH:
            return value
        args = arguments_of(value)
        new = [of(arg) for arg in args]
        changed = any(a is not b for a, b in zip(args, new, strict=True))
        return again(terms, value, args, new) if changed else value

    return of(value)


def rebuilt(terms: Terms, value: Value, base: Callable[[Value], Value | None]) -> Value | None:
    """`value` with other values for some of those that it is made of.

    None: one of these lies behind an operation that is not one of each element, a sum or a maximum.

    Args:
      base: gets a value, and gives the one in its place. None: it is looked into.
    """
    found = base(value)
    if found is not None:
        return found
    args, along = opened(value)
    known = value.term.op in _OF_SOME or (args and not value.term.params[-1])
    if not args or not known or any(map(any, along)) or None in value.term.views:
        return None
    if own_dims(value, args):
        return None
    new = [one for arg in args if (one := rebuilt(terms, arg, base)) is not None]
    return again(terms, value, args, new) if len(new) == len(args) else None


def again(terms: Terms, value: Value, old: list[Value], new: list[Value]) -> Value:
    """The operation of `value` on other arguments than those that it has."""
    op, params = value.term.op, value.term.params
    if op == "sum":
        return linear(terms, zip(params[0], new, strict=True), value.dims)
    if op == "ordered":
        minors = [label for label in old[0].labels if isinstance(label, Minor)]
        minor = next((m for m in minors if m.number in value.labels), None)
        return value if minor is None else ordered(terms, new[0], minor).at(value.dims)
    if op in _OF_SOME:
        lost = labelled(lacking(old[0], value))
        if op == "reduce_sum":
            return total(terms, new[0], lost, lost, value.dims)
        return extreme(terms, op.removeprefix("reduce_"), params[:-2], new[0], lost, value.dims)
    return elementwise(terms, op, params[:-2], new, value.dims)
