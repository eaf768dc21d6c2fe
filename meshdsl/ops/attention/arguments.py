"""The arguments of a call of attention, checked: dims and what each is for, options, Tensors."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims, show
from meshdsl.errors import MeshDSLError, whole_number
from meshdsl.ops.attention.operands import Options
from meshdsl.ops.checks import checked_softcap
from meshdsl.tensor import Tensor, is_tensor

ONE = Dim("_one_query", 1)  # stands for the dim of the queries in a call with one query


class Call(NamedTuple):
    """The dims of one call, by what they are for.

    Attributes:
      queries, memory, head_dim: the dims that the call names; `queries` is ONE if it names none.
      features: the features of the values.
      shared: the other dims of key and value. Along one that the query lacks it is repeated.
      own: the dims that only the query has.
      out: the dims of the result.
    """

    queries: Dim
    memory: Dim
    head_dim: Dim
    features: Dim
    shared: Dims
    own: Dims
    out: Dims

    @property
    def scores(self) -> Dims:
        """The dims of the scores."""
        return (*self.shared, *self.own, self.queries, self.memory)


def call_of(query: Tensor, key: Tensor, value: Tensor, queries, memory, head_dim) -> Call:
    dim_algebra.union("attention", [query.dims, key.dims, value.dims])
    of_query, of_key, of_value = (
        f"attention, {name}" for name in ("the query", "the key", "the value")
    )
    queries = ONE if queries is None else dim_algebra.find(of_query, query.dims, queries)
    memory = dim_algebra.find(of_key, key.dims, memory)
    head_dim = dim_algebra.find(of_query, query.dims, head_dim)
    dim_algebra.find(of_key, key.dims, head_dim)
    dim_algebra.find(of_value, value.dims, memory)
    for name, t in (("key", key), ("value", value)):
        if queries in t.dims:
            raise MeshDSLError(
                f"attention: the {name} {show(t.dims)} has {queries}, the dim of the queries; "
                f'rename it there: md.rename({name}, "{queries.name}", "memory")'
            )
    if memory in query.dims:
        raise MeshDSLError(
            f"attention: the query {show(query.dims)} has {memory}, the dim of the keys; rename it "
            f'there: md.rename(query, "{memory.name}", "queries")'
        )
    features = head_dim
    if head_dim not in value.dims:
        candidates = dim_algebra.without(value.dims, (*query.dims, *key.dims))
        if len(candidates) != 1:
            raise MeshDSLError(
                f"attention: the value {show(value.dims)} has {len(candidates)} dims that could be "
                f"its features: it has {head_dim}, or one dim that the query {show(query.dims)} "
                f"and the key {show(key.dims)} lack"
            )
        features = candidates[0]
    special = (queries, memory, head_dim, features)
    shared = tuple(dict.fromkeys(d for d in (*key.dims, *value.dims) if d not in special))
    own = dim_algebra.without(query.dims, (*shared, *special))
    lacking = dim_algebra.without(shared, query.dims)
    out = (*lacking, *dim_algebra.replace(query.dims, head_dim, (features,)))
    return Call(queries, memory, head_dim, features, shared, own, out)


def check_dtypes(query: Tensor, key: Tensor, value: Tensor) -> None:
    dtypes = [t.dtype for t in (query, key, value)]
    if len(set(dtypes)) > 1 or not jnp.issubdtype(dtypes[0], jnp.floating):
        raise MeshDSLError(
            "attention: query, key and value are real floating-point numbers of one dtype, not "
            f"{', '.join(map(str, dtypes))}; md.cast them"
        )


def options_of(call: Call, causal, window, softcap, scale) -> Options:
    if window is not None:
        whole_number("attention: `window`", window, 1)
    return Options(
        shared=len(call.shared),
        causal=bool(causal),
        window=window,
        softcap=checked_softcap("attention", softcap),
        scale=float(scale) if scale is not None else max(call.head_dim.size, 1) ** -0.5,
        # A single row of scores is small, and cutting the keys into blocks would copy them.
        **({"block": max(call.memory.size, 1)} if call.queries is ONE else {}),
    )


def beside_of(call: Call, options: Options, segments, positions, bias, sinks) -> dict[str, Tensor]:
    """The Tensors beside query, key and value that the call needs, by their names in `Sides`."""
    of_segments = _pair("segments", segments, call)
    of_positions = _pair("positions", positions, call, optional=True)
    if bias is not None and call.memory not in bias.dims:
        raise MeshDSLError(
            f"attention: `bias` {show(bias.dims)} has no {call.memory}; a softmax over it would "
            "cancel what is the same for every key"
        )
    if not options.causal and options.window is None:
        of_positions = None, None
    found = []
    for argument, names, tensors in (
        ("positions", ("rows", "columns"), of_positions),
        ("segments", ("row_segments", "column_segments"), of_segments),
        ("bias", ("bias",), (bias,)),
        ("sinks", ("sinks",), (sinks,)),
    ):
        legal = call.scores[:-1] if argument == "sinks" else call.scores
        for name, t in zip(names, tensors, strict=True):
            if t is not None and (unknown := dim_algebra.without(t.dims, legal)):
                raise MeshDSLError(
                    f"attention: `{argument}` {show(t.dims)} has {unknown[0]}; it has dims of "
                    f"{show(legal)}"
                )
            found.append((name, t))
    return {name: t for name, t in found if t is not None}


def _pair(name: str, given, call: Call, optional: bool = False):
    """The two Tensors of the argument `name`: that of the queries and that of the memory."""
    if given is None:
        return None, None
    pair = given if isinstance(given, (tuple, list)) else (given,)
    allowed = [is_tensor(t) or (optional and t is None) for t in pair]
    if len(pair) != 2 or not all(allowed):
        raise MeshDSLError(
            f"attention: `{name}` is a pair of Tensors, of the queries and of the memory"
        )
    dims = (call.queries, call.memory)
    for t, own, other in zip(pair, dims, dims[::-1], strict=True):
        if t is None:
            continue
        if not jnp.issubdtype(t.dtype, jnp.integer):
            raise MeshDSLError(
                f"attention: `{name}` {show(t.dims)} is {t.dtype}; it has whole numbers"
            )
        lacks = name == "segments" and own is not ONE and own not in t.dims
        if lacks or other in t.dims:
            raise MeshDSLError(
                f"attention: `{name}` are a pair, of the queries with {call.queries} and of the "
                f"memory with {call.memory}, not "
                + " and ".join("None" if t is None else show(t.dims) for t in pair)
            )
    return pair
