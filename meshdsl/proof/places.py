"""Lemmas of primitives that say where elements are: shapes, moves between devices, and counting."""

from __future__ import annotations

import numpy as np

from meshdsl.proof.elements import converted
from meshdsl.proof.forms.largest import first_of_parts
from meshdsl.proof.forms.sums import extreme, linear, total
from meshdsl.proof.labels import Part, fresh
from meshdsl.proof.lemmas import Walk, integer_dtypes, lemma
from meshdsl.proof.moves import Axes, exchanged, gathered, given_out, of_all_devices
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, cut, unchanging


@lemma("transpose")
def _transpose(walk: Walk, eqn, x: Value) -> list[Value]:
    return [x.at(x.dims[d] for d in eqn.params["permutation"])]


@lemma("broadcast_in_dim")
def _broadcast(walk: Walk, eqn, x: Value, *_: Value) -> list[Value]:
    shape = eqn.outvars[0].aval.shape
    dims = list(unchanging(shape))
    for dim, place in enumerate(eqn.params["broadcast_dimensions"]):
        if x.shape[dim] == shape[place]:
            dims[place] = x.dims[dim]
    return [x.at(dims)]


@lemma("squeeze")
def _squeeze(walk: Walk, eqn, x: Value) -> list[Value]:
    gone = eqn.params["dimensions"]
    return [x.at(parts for d, parts in enumerate(x.dims) if d not in gone)]


@lemma("expand_dims")
def _expand(walk: Walk, eqn, x: Value) -> list[Value]:
    old = iter(x.dims)
    new = eqn.params["dimensions"]
    return [x.at(() if d in new else next(old) for d in range(eqn.outvars[0].aval.ndim))]


@lemma("reshape")
def _reshape(walk: Walk, eqn, x: Value) -> list[Value]:
    flat = Value(x.term, x.parts, (tuple(p for parts in x.dims for p in parts),))
    value, runs = cut(flat, 0, eqn.outvars[0].aval.shape)
    return [value.at(runs)]


@lemma("empty", "empty2")
def _empty(walk: Walk, eqn) -> list[Value]:
    """Memory before something is written to it: no result may depend on what is there."""
    term = walk.terms.term("empty", (str(eqn.outvars[0].aval.dtype),))
    return [Value(term, (), unchanging(eqn.outvars[0].aval.shape))]


@lemma("iota")
def _iota(walk: Walk, eqn) -> list[Value]:
    shape, dim = eqn.outvars[0].aval.shape, eqn.params["dimension"]
    part = Part(shape[dim], fresh())
    dims = [(part,) if d == dim else parts for d, parts in enumerate(unchanging(shape))]
    term = walk.terms.iota(shape[dim])
    value = Value(term, ((part,),) if term.shape else (), ()).at(dims)
    return [converted(walk, value, np.dtype("int32"), np.dtype(eqn.params["dtype"]))]


def axes_of(walk: Walk, eqn, param: str) -> Axes:
    """The axes of a collective, with their sizes."""
    axes = eqn.params[param]
    if eqn.params.get("axis_index_groups") is not None:
        raise NotProved("there is no lemma for groups of devices within an axis")
    return [(axis, walk.sizes[axis]) for axis in (axes if isinstance(axes, tuple) else (axes,))]


@lemma("axis_index")
def _axis_index(walk: Walk, eqn) -> list[Value]:
    pairs, after = [], 1
    for axis, size in reversed(axes_of(walk, eqn, "axis_name")):
        if size > 1:
            pairs.append((after, Value(walk.terms.iota(size), ((Part(size, axis),),), ())))
        after *= size
    return [linear(walk.terms, pairs, ())]


@lemma("psum", "psum_invariant")
def _psum(walk: Walk, eqn, *values: Value) -> list[Value]:
    axes = axes_of(walk, eqn, "axes")
    sizes = dict(axes)
    return [total(walk.terms, of_all_devices(x, axes), sizes, sizes) for x in values]


@lemma("pmax", "pmin")
def _pmax(walk: Walk, eqn, *values: Value) -> list[Value]:
    axes = axes_of(walk, eqn, "axes")
    op = eqn.primitive.name[1:]
    found = []
    for x, dtype in zip(values, integer_dtypes(eqn), strict=True):
        x = of_all_devices(x, axes)
        place = first_of_parts(walk.terms, x, dict(axes)) if op == "min" else None
        found.append(place or extreme(walk.terms, op, (dtype,), x, dict(axes), x.dims))
    return found


@lemma("all_gather", "all_gather_invariant")
def _all_gather(walk: Walk, eqn, *values: Value) -> list[Value]:
    axes, dim = axes_of(walk, eqn, "axis_name"), eqn.params["all_gather_dimension"]
    if not eqn.params["tiled"]:
        values = tuple(x.at([*x.dims[:dim], (), *x.dims[dim:]]) for x in values)
    return [gathered(x, dim, axes) for x in values]


@lemma("reduce_scatter")
def _reduce_scatter(walk: Walk, eqn, *values: Value) -> list[Value]:
    axes, dim = axes_of(walk, eqn, "axis_name"), eqn.params["scatter_dimension"]
    sizes = dict(axes)
    sums = [total(walk.terms, of_all_devices(x, axes), sizes, sizes) for x in values]
    found = [given_out(x, dim, axes) for x in sums]
    if eqn.params["tiled"]:
        return found
    return [x.at(parts for d, parts in enumerate(x.dims) if d != dim) for x in found]


@lemma("all_to_all")
def _all_to_all(walk: Walk, eqn, *values: Value) -> list[Value]:
    if not eqn.params["tiled"]:
        raise NotProved("there is no lemma for an all_to_all that is not tiled")
    axes = axes_of(walk, eqn, "axis_name")
    dims = eqn.params["split_axis"], eqn.params["concat_axis"]
    return [exchanged(x, *dims, axes) for x in values]
