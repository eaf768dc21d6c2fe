"""Lemmas of rows that are sorted by integers, and of products of groups of them.

A product of groups is one operation, `local_kernel`, which says what it computes: a *contract*.
That the code in it, or a kernel in its place, keeps to it is taken for granted, and said so below
the result. A contract is about the rows of one device alone. How many rows each group has, and in
which order they are, is not taken for granted: it is found in the program.

    rows          for each row the product with the matrix of its group
    transposed    the same, of matrices [groups, result, row]
    outer         for each group the sum over its rows of their products with other rows

A row without a group, after those of all groups, counts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from meshdsl.proof.along import alike, anything
from meshdsl.proof.forms import groups, sorted_rows
from meshdsl.proof.forms.sums import elementwise, summed_over
from meshdsl.proof.lemmas import Walk, integer_dtypes, lemma
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Part, Value, aligned, fresh, joined
from meshdsl.proof.values import alike as same

# Each contract in words.
CONTRACTS = {
    "rows": "multiplies each row with the matrix of its group",
    "transposed": "multiplies each row with the transposed matrix of its group",
    "outer": "adds up the products of each group's rows with other rows",
}


@lemma("sort")
def _sort(walk: Walk, eqn, *values: Value) -> Sequence[Value]:
    p, shape, dtypes = eqn.params, values[0].shape, integer_dtypes(eqn)
    if len(shape) == p["num_keys"] == 1 and p["is_stable"] and dtypes[0]:
        found = sorted_rows.sorts(walk.terms, values, dtypes[0])
        if found is not None:
            return found
    params = p["is_stable"], p["num_keys"], *dtypes
    count = range(len(values))
    return [alike(walk, "sort", (*params, i), values, [p["dimension"]], shape) for i in count]


@lemma("scatter")
def _scatter(walk: Walk, eqn, x: Value, at: Value, updates: Value) -> Sequence[Value]:
    """All rows in other places, if that is what it does; else a function of its arguments."""
    if len(x.shape) == 1 and x.shape == updates.shape == at.shape[:1]:
        places, rows = aligned([at.at(at.dims[:1]), updates], [[0, 0]])
        found = sorted_rows.put_back(walk.terms, rows, places)
        if found is not None:
            return [found]
    return anything(walk, eqn, x, at, updates)


def contract_of(eqn) -> str:
    """What the products of an equation compute, one of `CONTRACTS`; empty if it says nothing."""
    if eqn.primitive.name != "local_kernel":
        return ""
    said = [getattr(product, "contract", "") for product in eqn.params["products"] or ()]
    return said[0] if len(said) == 1 and said[0] in CONTRACTS else ""


@lemma("local_kernel")
def _products_of_groups(walk: Walk, eqn, *values: Value) -> list[Value]:
    """A sum over groups of products, each times 1 for the rows of the group and 0 for others."""
    terms, contract = walk.terms, contract_of(eqn)
    floats = all(jnp.issubdtype(atom.aval.dtype, jnp.floating) for atom in eqn.invars[:2])
    if not contract or len(values) != 3 or not floats:
        raise NotProved("there is no lemma for `local_kernel`")
    x, other, starts = values
    x, other = aligned([x, other], [[0, 0]]) if contract == "outer" else (x, other)
    rows, order = _as_they_were([x, other] if contract == "outer" else [x])
    _check_starts(walk, order, starts)
    count = starts.shape[0] - 1
    of = (Part(count, fresh()),) if count > 1 else ()
    mask = groups.one_hot(terms, order.key, of, order.dtype).at([*order.key.dims, of])
    if contract == "outer":
        mask, a, b = aligned([mask, *rows], [[0, 0, 0]])
        a, b = (groups.of_group(terms, v, mask) for v in (a, b))
        run = joined(v.dims[0] for v in (mask, a, b))
        dims = [mask.dims[1], *a.dims[1:], *b.dims[1:]]
        each = elementwise(terms, "mul", (), [elementwise(terms, "mul", (), [mask, a], ()), b], ())
        return [summed_over(terms, each, run, dims)]
    inside, out = (2, 1) if contract == "transposed" else (1, 2)
    links = [[0, 0, 0, None], [1, None, None, 0], [None, 1, None, inside]]
    mask, a, key, w = aligned([mask, *rows, order.key, other], links)
    a = groups.of_group(terms, a, mask)
    product = elementwise(terms, "mul", (), [a, w], ())
    contracted = joined([a.dims[1], w.dims[inside]])
    of = joined([mask.dims[1], w.dims[0]])
    run = joined(v.dims[0] for v in (mask, a, key))
    each = summed_over(terms, product, contracted, ())
    each = elementwise(terms, "mul", (), [mask, each], ())
    found = summed_over(terms, each, of, [run, w.dims[out]])
    result = sorted_rows.in_order(terms, found, order._replace(key=key, rows=run))
    return [result.at([order.new, w.dims[out]])]


def _as_they_were(values: Sequence[Value]) -> tuple[list[Value], sorted_rows.Order]:
    """Rows along the first dim of values, without the order that they are in; and that order.

    Raises:
      NotProved: they are in no order that is known.
    """
    found = None
    if any(value.term.op == "sorted" for value in values):
        found = sorted_rows.as_they_were(values)
    if found is not None:
        inner, order = found
        free = lambda value: value.labels.keys().isdisjoint(p.label for p in value.dims[0])
        if all(value.dims[0] == order.new or free(value) for value in values):
            pairs = zip(inner, values, strict=True)
            return [one.at([one.dims[0], *old.dims[1:]]) for one, old in pairs], order
    raise NotProved("rows are multiplied in groups that are not known to be theirs")


def _check_starts(walk: Walk, order: sorted_rows.Order, starts: Value) -> None:
    """Raise NotProved unless groups begin where the rows with their number as a key do."""
    new = (Part(starts.shape[0], fresh()),)
    number = Value(walk.terms.iota(starts.shape[0]), (new,), ())
    below = sorted_rows.count_below(walk.terms, order.key, number, order.dtype).at([new])
    below, starts = aligned([below, starts], [[0, 0]])
    if not same(below, starts) or not sorted_rows.none_negative(order.key):
        raise NotProved("groups of rows do not begin where those with their key do")
