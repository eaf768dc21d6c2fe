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
from meshdsl.proof.labels import Part, fresh
from meshdsl.proof.lemmas import Walk, integer_dtypes, lemma
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, aligned, joined
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
    """All rows in other places, if that is what it does; else a function of its arguments.

    Raises:
      NotProved: it applies a function to what is there.
    """
    numbers = eqn.params["dimension_numbers"]
    if eqn.params["update_jaxpr"] is not None:
        raise NotProved("there is no lemma for a scatter that applies a function")
    plain = numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
    if plain and len(x.shape) == 1 and x.shape == updates.shape == at.shape[:1]:
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
    contract, ranks = contract_of(eqn), [len(value.shape) for value in values]
    floats = all(jnp.issubdtype(atom.aval.dtype, jnp.floating) for atom in eqn.invars[:2])
    if not contract or ranks != [2, 2 if contract == "outer" else 3, 1] or not floats:
        raise NotProved("there is no lemma for `local_kernel`")
    x, other, starts = values
    if contract == "outer":
        found = _outer(walk, x, other, starts)
    else:
        found = _of_rows(walk, x, other, starts, 2 if contract == "transposed" else 1)
    if [found.shape] != [var.aval.shape for var in eqn.outvars]:
        raise NotProved("products of groups have another shape than their contract says")
    return [found]


def _outer(walk: Walk, a: Value, b: Value, starts: Value) -> Value:
    """For each group the sum over its rows of their products."""
    terms = walk.terms
    rows, order = _as_they_were(aligned([a, b], [[0, 0]]))
    mask, a, b = aligned([_one_hot(walk, order, starts), *rows], [[0, 0, 0]])
    a, b = (groups.of_group(terms, value, mask) for value in (a, b))
    run = joined(value.dims[0] for value in (mask, a, b))
    each = elementwise(terms, "mul", (), [elementwise(terms, "mul", (), [mask, a], ()), b], ())
    return summed_over(terms, each, run, [mask.dims[1], a.dims[1], b.dims[1]])


def _of_rows(walk: Walk, x: Value, weight: Value, starts: Value, inside: int) -> Value:
    """For each row the product with the matrix of its group.

    Args:
      inside: the dim of the matrices that is that of the rows.
    """
    terms, out = walk.terms, 3 - inside
    (x,), order = _as_they_were([x])
    links = [[0, 0, 0, None], [1, None, None, 0], [None, 1, None, inside]]
    given = [_one_hot(walk, order, starts), x, order.key, weight]
    mask, x, key, weight = aligned(given, links)
    x = groups.of_group(terms, x, mask)
    contracted = joined([x.dims[1], weight.dims[inside]])
    product = elementwise(terms, "mul", (), [x, weight], ())
    each = summed_over(terms, product, contracted, ())
    each = elementwise(terms, "mul", (), [mask, each], ())
    of = joined([mask.dims[1], weight.dims[0]])
    found = summed_over(terms, each, of, [mask.dims[0], weight.dims[out]])
    order = order._replace(key=key, rows=joined(value.dims[0] for value in (mask, x, key)))
    return sorted_rows.in_order(terms, found, order).at([order.new, weight.dims[out]])


def _one_hot(walk: Walk, order: sorted_rows.Order, starts: Value) -> Value:
    """For each row, as they were, and for each group 1 if it is that of the row and else 0.

    Raises:
      NotProved: groups do not begin where the rows do whose key is their number.
    """
    new = (Part(starts.shape[0], fresh()),)
    number = Value(walk.terms.iota(starts.shape[0]), (new,), ())
    below = sorted_rows.count_below(walk.terms, order.key, number, order.dtype).at([new])
    below, starts = aligned([below, starts], [[0, 0]])
    if not same(below, starts) or not sorted_rows.none_negative(order.key):
        raise NotProved("groups of rows do not begin where those with their key do")
    count = starts.shape[0] - 1
    of = (Part(count, fresh()),) if count > 1 else ()
    return groups.one_hot(walk.terms, order.key, of, order.dtype).at([*order.key.dims, of])


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
