"""What all rounds of a loop make, in one form: `all` says what variables are at the variables.

A term of a round depends on variables, and `all` of it says what they are; see `loops`. What a
round has made, and a later loop makes again of what was carried, are the same numbers:

    all(f(v))    is    f(all(v))

By default `all` is outside, where it costs nothing. But an order that data decide cancels only if
it is seen to be the same, whether it was kept or is found again. So for that, and for what it is
found by, `all` goes inwards.
"""

from __future__ import annotations

from collections.abc import Hashable

from meshdsl.proof.forms.assumed import again
from meshdsl.proof.terms import Term, Terms
from meshdsl.proof.values import Value, made, opened, own_dims, whole

# What is chosen by data, and what depends on that, contains one of these.
_CHOSEN = {"one_hot", "rank", "sorted", "top_k"}
_OF_SOME = {"reduce_sum", "reduce_max", "reduce_min"}


def _contains(terms: Terms, term: Term, name: str, ops: frozenset[str]) -> bool:
    key = name, term.number
    if key not in terms.memo:
        inside = any(_contains(terms, arg, name, ops) for arg in term.args)
        terms.memo[key] = term.op in ops or inside
    return terms.memo[key]


def is_chosen(terms: Terms, value: Value) -> bool:
    """Whether a value depends on what is chosen by data."""
    return _contains(terms, value.term, "is chosen", frozenset(_CHOSEN))


def at_variables(terms: Terms, value: Value) -> Value:
    """`value` with each `all` at the variables that it says something of."""
    if not _contains(terms, value.term, "has all", frozenset({"all"})):
        return value
    return _kept(terms, value, "at variables", ())


def _kept(terms: Terms, value: Value, name: str, beside: tuple[Term, ...]) -> Value:
    """What `_moved` finds, which is found once for each term."""
    key = name, value.term.number, tuple(term.number for term in beside)
    if key not in terms.memo:
        base = whole(value.term)
        terms.memo[key] = base, _moved(terms, Value(base.term, base.parts, ()), name, beside)
    base, found = terms.memo[key]
    runs = {a.label: b for (a,), b in zip(base.parts, value.parts, strict=True)}
    parts = tuple(tuple(p for part in dim for p in runs[part.label]) for dim in found.parts)
    return Value(found.term, parts, ()).at(value.dims)


def _moved(terms: Terms, value: Value, name: str, beside: tuple[Term, ...]) -> Value:
    """A value with `all` at its variables.

    Args:
      beside: the definitions of an `all` around it; none, if there is none.
    """
    term = value.term
    mine = term.free & _defined(beside).keys()
    if term.op == "all" and not mine:
        bound = frozenset[Hashable]().union(*(arg.free for arg in term.args)) - term.free
        if not bound <= _defined(term.args[1:]).keys():
            return value
        return _kept(terms, opened(value)[0][0], name, term.args[1:])
    if not mine and not _contains(terms, term, "has all", frozenset({"all"})):
        return value
    if term.op == "variable" or None in term.views or not term.args:
        return _closed(terms, value, beside) if mine else value
    args, along = opened(value)
    new = [_kept(terms, arg, name, beside) for arg in args]
    known = term.op in _OF_SOME or term.op == "sum" or not term.params[-1]
    if known and not any(map(any, along)) and not own_dims(value, args):
        return again(terms, value, args, new)
    inside = {p.label for each in along for dim in each for p in dim}
    over = {label for arg in args for label in arg.labels} - value.labels.keys() - inside
    how = {"over": over, "along": along, "new": own_dims(value, args)}
    return made(terms, term.op, term.params[:-2], new, (), **how)


def _defined(beside: tuple[Term, ...]) -> dict[Hashable, Term]:
    """The variables that terms say something of, each with its term."""
    return {of: each for each in beside if each.op == "carried" for of in each.args[0].free}


def _closed(terms: Terms, value: Value, beside: tuple[Term, ...]) -> Value:
    """`all` of a value, with the definitions of the variables that it depends on alone."""
    known = _defined(beside)
    found: set[Term] = set()
    left = [*value.term.free]
    while left:
        one = known.get(left.pop())
        if one is not None and one not in found:
            found.add(one)
            left.extend(one.free)
    needed = tuple(sorted(found, key=lambda term: term.number))
    return made(terms, "all", (), [value], (), beside=needed, binds=known.keys())
