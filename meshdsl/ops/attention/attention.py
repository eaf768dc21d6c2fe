"""attention: softmax(query . key) . value as one op, whose local function is a fused kernel.

The scores are never in memory as a whole, in neither pass. `IMPLEMENTATIONS` lists the kernels of
each platform. A call is served by the first of them that can serve it, and if none can, by blocks
of plain JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.lowering.moves.move import ByParts, Move
from meshdsl.ops.arrays import fitted, in_order
from meshdsl.ops.attention import cudnn, parts, splash
from meshdsl.ops.attention.arguments import (
    ONE,
    Call,
    beside_of,
    call_of,
    check_dtypes,
    options_of,
)
from meshdsl.ops.attention.kernels import (
    Place,
    Runs,
    cudnn_lacks,
    kernel_of,
    pallas_lacks,
    splash_lacks,
    visible_share,
)
from meshdsl.ops.attention.operands import SAVED, Options, Sides
from meshdsl.ops.attention.parts import Static, by_blocks
from meshdsl.ops.checkpoint import mark
from meshdsl.ops.checks import one_of
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.kernel_choice import chosen_kernel
from meshdsl.tensor import Tensor


def _attention_example(attention: Callable, draw: Draw) -> Case:
    a, b, c, d = draw.dims("a", "b", "c", "d")
    e, f = Dim("e", 4), Dim("f", draw.integer(1, 9))
    names = {"queries": a, "memory": f, "head_dim": e}
    query, key, value = draw.tensor(a, b, c, e), draw.tensor(b, f, e), draw.tensor(b, f, d)
    of_rows, of_columns = draw.integers(a, b, below=2), draw.integers(f, below=2)
    attend = partial(
        attention,
        **names,
        causal=draw.pick(False, True),
        window=draw.pick(None, 3),
        softcap=draw.pick(None, 2.0),
    )
    return draw.pick(
        Case(attend, (query, key, value), (f,)),
        Case(
            lambda q, k, v, s, t: attend(q, k, v, segments=(s, t)),
            (query, key, value, of_rows, of_columns),
            (f,),
        ),
        Case(
            lambda q, k, v, s, t: attend(q, k, v, bias=s, sinks=t),
            (query, key, value, draw.tensor(a, f), draw.tensor(c)),
            (f,),
        ),
    )


@op(
    computes="its own queries and heads with its own keys; the log-sum-exp of all merges them",
    moves=("all_gather",),
    example=_attention_example,
    floats=True,
)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    queries: Dim | str | None = "queries",
    memory: Dim | str = "memory",
    head_dim: Dim | str = "head_dim",
    causal: bool = False,
    segments: tuple[Tensor, Tensor] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    positions: tuple[Tensor | None, Tensor | None] | None = None,
    implementation: str | None = None,
) -> Tensor:
    """What each of the `queries` finds in `memory`: `softmax(query . key) . value`.

        query = md.rename(query, "length", "queries")   # [batch, heads, group, queries, head_dim]
        key = md.rename(key, "length", "memory")        # [batch, heads, memory, head_dim]
        value = md.rename(value, "length", "memory")
        md.attention(query, key, value, causal=True)    # [batch, heads, group, queries, head_dim]

    Dims are matched by name. Those that query and key share, such as the batch and the heads, are
    gone through together; what only the query has, such as the `group` of heads that share one of
    the keys, is attended for separately. Layouts may split all dims but `head_dim` and the features
    of the values. Where `memory` is split each device attends to its own keys and the results are
    merged; with `move = "ring"` the keys go round. Scores and sums are in float32.

    A query that sees no key finds 0. The output and its log-sum-exp are the save point "attention"
    of `md.checkpoint`; with both kept, the backward pass does not compute the output again.

    Args:
      query: has `queries`, `head_dim` and any others. With `queries=None` there is one query for
        each of the others, as in decoding.
      key: has `memory`, `head_dim` and any others.
      value: has `memory`, its features and any others. The features are `head_dim`, or else the one
        dim that neither query nor key has.
      causal: a query sees keys up to its own position.
      segments: two Tensors of whole numbers, of the queries and of the memory: a query sees keys
        with its own number. The first has no `memory` and the second no `queries`.
      window: a query sees keys that are less than this many positions away.
      softcap: scores are bounded to it: `softcap * tanh(scores / softcap)`.
      sinks: one more score for each query, without a value (Xiao et al., 2023). Has dims that query
        or key have, such as the heads.
      bias: added to the scores, after the soft cap. Has `memory`, and others of the dims at will.
      scale: of the products; by default one over the square root of the size of `head_dim`.
      positions: of the queries and of the memory, as `segments`, for `causal` and `window`. By
        default, and where one of the two is None, elements count from 0.
      implementation: "blocks", which serves every call on every platform, "splash" for TPU, or
        "cudnn" or "pallas" for GPU. By default the first kernel of the platform that can serve the
        call, and blocks where none can. Elsewhere than on their platforms splash and pallas are
        interpreted, for tests.

    Returns:
      The dims of the query, with the features of the values in the place of `head_dim`. Dims that
      only key or value have come first.

    Raises:
      MeshDSLError: a tensor lacks a dim or has one that it must not have, dtypes differ, or an
        implementation is asked for that cannot serve the call.
    """
    call = call_of(query, key, value, queries, memory, head_dim)
    check_dtypes(query, key, value)
    options = options_of(call, causal, window, softcap, scale)
    beside = beside_of(call, options, segments, positions, bias, sinks)
    if implementation is not None:
        one_of("attention: `implementation`", implementation, IMPLEMENTATIONS)
    counted = not any(t is not None for t in positions or ())
    share = visible_share(options, call.queries.size, call.memory.size, counted)
    mark(SAVED)

    def local(at: DeviceLoop, *arrays):
        arrays = dict(zip(("query", "key", "value", *beside), arrays, strict=True))
        operands = _operands(at, call, (query, key, value), arrays)
        sides = _sides(at, call, options, beside, arrays)
        place = _place(at, call, counted)
        asked = implementation, at.platform, options, place, *operands, sides
        name, lacks = chosen_kernel("attention", IMPLEMENTATIONS, *asked)
        at.note(name, 1.0 if IMPLEMENTATIONS[name].skips else share, lacks)
        static = _static(at, call, options, beside)
        result = IMPLEMENTATIONS[name].attend(static, place, *operands, sides)
        order = (*call.shared, *call.own, call.queries, call.features)
        if call.queries is ONE:
            order = dim_algebra.without(order, (ONE,))
            result = jnp.squeeze(result, -2)
        return at.fitting(in_order(result, order, call.out), call.out, "attention")

    return apply_op(
        "attention",
        local,
        (query, key, value, *beside.values()),
        loop=dim_algebra.union("attention", [query.dims, key.dims, value.dims]),
        out=call.out,
        unsplit=tuple(dict.fromkeys((call.head_dim, call.features))),
        in_order=(),
        by_parts=(ByParts(call.memory, (key.dims, value.dims)),),
    )


def _operands(at: DeviceLoop, call: Call, tensors, arrays) -> tuple[jax.Array, ...]:
    """Query, key and value in the order that `operands.py` describes."""
    leading = (*call.shared, *call.own)
    orders = (
        (*leading, call.queries, call.head_dim),
        (*call.shared, call.memory, call.head_dim),
        (*call.shared, call.memory, call.features),
    )
    ring = at.in_parts(call.memory)
    sizes = {d: at.size(d) for order in orders for d in order}
    if ring is not None:
        sizes[call.memory] = ring.size
    return tuple(
        jnp.broadcast_to(fitted(arrays[name], t.dims, order), [sizes[d] for d in order])
        for name, t, order in zip(("query", "key", "value"), tensors, orders, strict=True)
    )


def _sides(at: DeviceLoop, call: Call, options: Options, beside, arrays) -> Sides:
    """The arrays beside query, key and value, with the dims of the scores.

    Positions that a mask needs and that are not given are counted.
    """
    scores = call.scores
    arrays_beside = {name: fitted(arrays[name], t.dims, scores) for name, t in beside.items()}
    in_parts = at.in_parts(call.memory) is not None  # then columns are counted part by part
    if options.causal or options.window is not None:
        for name, dim in (("rows", call.queries), ("columns", call.memory)):
            if name not in arrays_beside and not (in_parts and name == "columns"):
                arrays_beside[name] = fitted(at.indices(dim), (dim,), scores)
    if at.padding(call.memory) and not in_parts:
        arrays_beside["inside"] = fitted(at.inside((call.memory,)), (call.memory,), scores)
    return Sides(**arrays_beside)


def _static(at: DeviceLoop, call: Call, options: Options, beside) -> Static:
    """What is known of the call while tracing, for the kernel of plain JAX."""
    ring = at.in_parts(call.memory)
    counted = (options.causal or options.window is not None) and "columns" not in beside
    travels = () if ring is None else tuple(n for n, t in beside.items() if ring.has(t.dims))
    return Static(options, by_blocks(options), at, call.memory, counted, ring, travels)


# -- which kernel ----------------------------------------------------------------------------------


class Implementation(NamedTuple):
    """A kernel for attention on local arrays.

    Attributes:
      attend: called with `Static`, `Place`, query, key, value and `Sides`.
      lacks: called with `Options` and the other arguments of `attend`; returns what the kernel
        cannot do for this call, or an empty text.
      platform: the platform that the kernel is for; empty for a kernel that runs on all.
      skips: whether the kernel skips scores that do not count.
    """

    attend: Callable
    lacks: Callable
    platform: str = ""
    skips: bool = False


def _attend_by_blocks(static: Static, _, *arrays) -> jax.Array:
    if static.ring is None and not static.at.axes(static.memory):
        return parts.attend_whole(static.options, *arrays)
    return parts.attend(static, *arrays)


def _attend_by(kernels: ModuleType, static: Static, place: Place, *arrays) -> jax.Array:
    kernel = kernel_of(kernels, static.options, place)
    return parts.attend(static._replace(kernel=kernel), *arrays)


def _attend_by_pallas(*call) -> jax.Array:
    from meshdsl.ops.attention import pallas  # Pallas takes as long to import as the language

    return _attend_by(pallas, *call)


IMPLEMENTATIONS = {
    "blocks": Implementation(_attend_by_blocks, lambda *_: ""),
    "splash": Implementation(partial(_attend_by, splash), splash_lacks, "tpu", skips=True),
    "cudnn": Implementation(cudnn.attend, cudnn_lacks, "gpu", skips=True),
    "pallas": Implementation(_attend_by_pallas, pallas_lacks, "gpu", skips=True),
}


def _place(at: DeviceLoop, call: Call, counted: bool) -> Place:
    count, ring = at.parts(call.queries), at.in_parts(call.memory)
    # A function, because the forward pass and the backward pass each trace the numbers themselves.
    numbers = lambda: [start // size for start, size in at.runs(call.queries)]
    part = numbers if count > 1 else None
    rows = _runs(count, at.size(call.queries), at.order(call.queries))
    if ring is None:
        columns = _runs(at.parts(call.memory), at.size(call.memory), at.order(call.memory))
        padded = bool(at.padding(call.queries) or at.padding(call.memory))
        aligned = False
    else:
        columns = _runs(ring.all_parts, ring.size, ring.order)
        padded = bool(at.padding(call.queries) or ring.padded)
        aligned = ring.axes == at.axes(call.queries) and ring.all_parts == ring.count
    whole = ring is None and at.parts(call.memory) == 1
    platform = at.platform, at.lowered
    return Place(
        part, count * rows.count, padded, counted, *platform, whole, rows, columns, aligned
    )


def _runs(parts: int, size: int, order: Move) -> Runs:
    """The runs of all parts of a dim.

    Args:
      size: the size of each part.
    """
    starts = [tuple(start for start, _ in order.runs(i, parts, size)) for i in range(parts)]
    return Runs(tuple(starts), size // order.blocks)
