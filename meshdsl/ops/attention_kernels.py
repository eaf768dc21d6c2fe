"""Attention by the kernels of a platform: JAX's splash attention on TPU, cuDNN's on GPU.

Arrays are in the order that `attention_blocks` describes. A kernel serves some calls only; what it
lacks for a call is said by `splash_lacks` and `cudnn_lacks`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ad_checkpoint

from meshdsl.later import imported
from meshdsl.lowering import kernels
from meshdsl.lowering.kernels import Product, Products
from meshdsl.ops.attention_blocks import SAVED, Options, Sides
from meshdsl.ops.attention_parts import Way
from meshdsl.ops.attention_parts import attend as attend_to_parts
from meshdsl.ops.attention_parts import whole as all_at_hand

LANES = 128  # splash works on blocks of a multiple of them
MASKS = 8  # each is a kernel of its own in the program


class Runs(NamedTuple):
    """The runs of consecutive elements that each part of a dim has.

    Attributes:
      starts: for each part the first index of each of its runs.
      size: of every run.
    """

    starts: tuple[tuple[int, ...], ...]
    size: int

    @property
    def count(self) -> int:
        """How many runs a part has."""
        return len(self.starts[0])


class Place(NamedTuple):
    """The part of the queries that a device has, and the parts of the keys that it sees.

    Attributes:
      part: gives its number; None where there is one part only.
      parts: how many there are, all of one size.
      padded: whether the last ones hold padding.
      counted: whether positions count from 0, as they do where the call gives none.
      platform: of the device.
      lowered: whether this is one device of a lowering.
      whole: whether all keys are at hand at once.
      rows, columns: the runs of the queries and of the keys.
      aligned: whether the keys go round a ring over the axes that split the queries, so that the
        part of the keys that is here on a turn is so many before that of the queries.
    """

    part: Callable | None
    parts: int
    padded: bool
    counted: bool
    platform: str
    lowered: bool
    whole: bool
    rows: Runs
    columns: Runs
    aligned: bool


def visible_share(options: Options, rows: int, columns: int, counted: bool) -> float:
    """The share of the scores that count, by the convention that causal attention has half of them.

    Args:
      rows, columns: over all devices.
      counted: whether positions count from 0. Of others nothing is known, and all scores count.
    """
    if not counted or rows != columns or not columns:
        return 1.0
    share = 0.5 if options.causal else 1.0
    if options.window is None:
        return share
    return min(share, options.window * 2 * share / columns)


def products_of(query, key, value, share: float) -> tuple[Products, Products]:
    """What a fused kernel multiplies: two products forward, and five in the backward pass."""
    *leading, rows, inner = query.shape
    columns, features = value.shape[-2:]
    batch, dtype = math.prod(leading), query.dtype.name

    def product(m, k, n) -> Product:
        return Product(batch, m, k, n, int(2 * batch * m * k * n * share), dtype)

    scores, output = product(rows, inner, columns), product(rows, columns, features)
    by_weights = product(rows, features, columns)
    by_value = product(columns, rows, features)
    by_query, by_key = product(rows, columns, inner), product(columns, rows, inner)
    return (scores, output), (scores, by_weights, by_value, by_query, by_key)


# -- splash ----------------------------------------------------------------------------------------


def splash_lacks(options: Options, place: Place, query, key, value, sides: Sides) -> str:
    """What splash attention cannot do of a call; empty if it can do all."""
    if sides.bias is not None:
        return "it has no `bias`"
    if sides.sinks is not None:
        return "it has no `sinks`"
    if not place.counted:
        return "its positions count from 0"
    rows, columns = query.shape[-2], key.shape[-2]
    if not place.whole:
        rows, columns = place.rows.size, place.columns.size
        if _kinds(options, place) > MASKS:
            return f"it takes up to {MASKS} masks for the parts of the keys"
    if place.padded or rows % LANES or columns % LANES or not query.size or not value.size:
        return (
            f"it takes multiples of {LANES} queries on a device and of {LANES} keys, "
            f"not {rows}{' with padding' if place.padded else ''} and {columns}"
        )
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"it takes float32 and bfloat16, not {query.dtype}"
    heads = query.ndim - 2 - max(options.shared - 1, 0)
    for segments in (sides.row_segments, sides.column_segments):
        if segments is not None and math.prod(segments.shape[-2 - heads : -2]) > 1:
            return "its segments are the same for all heads"
    return ""


def attend_by_splash(way: Way, place: Place, *arrays) -> jax.Array:
    """The output, by the kernel on TPU and by an interpreter of it elsewhere."""
    # Pallas takes as long to import as the rest of the language.
    kernel = imported("meshdsl.ops.attention_splash", "kernel")(way.options, place)
    return attend_to_parts(way._replace(kernel=kernel), *arrays)


def seen_of(options: Options, rows: int, columns: int, distance: int) -> tuple[float, int | None]:
    """What a run of rows sees of a run of columns, where it begins `distance` behind it.

    Returns:
      The share of the scores that count, and the distance where it matters: None where all of them
      count, or none.
    """
    furthest, nearest = distance + rows - 1, distance - columns + 1  # of a row from a column
    reach = math.inf if options.window is None else options.window
    after = 1 if options.causal else reach  # a column lies less than this many behind its row
    if furthest <= -after or nearest >= reach:
        return 0.0, None
    if nearest > -after and furthest < reach:
        return 1.0, None
    if options.window is None and not distance and rows == columns:
        return 0.5, 0  # by convention, see `visible_share`
    positions = distance + np.arange(rows)
    first = np.maximum(positions - reach + 1, 0)
    last = np.minimum(positions + after - 1, columns - 1)
    return float(np.maximum(last - first + 1, 0).mean()) / columns, distance


def distances(place: Place, turns: range, row: int, column: int) -> Counter[int]:
    """How far a run of rows may begin behind a run of columns, on any device, and how often.

    Args:
      turns: of the ring, if there is one.
      row, column: the numbers of the runs.
    """
    rows, columns = place.rows.starts, place.columns.starts
    found: Counter[int] = Counter()
    for i, own in enumerate(rows):
        others = columns
        if place.aligned:
            others = [columns[(i - turn) % len(columns)] for turn in turns]
        found.update(own[row] - other[column] for other in others)
    return found


def _kinds(options: Options, place: Place) -> int:
    """How many different masks, that are neither full nor empty, parts of the keys may have."""
    turns, far = range(len(place.columns.starts)), set()
    for row in range(place.rows.count):
        for column in range(place.columns.count):
            far.update(distances(place, turns, row, column))
    sizes = place.rows.size, place.columns.size
    return len({seen_of(options, *sizes, distance)[1] for distance in far} - {None})


# -- cuDNN -----------------------------------------------------------------------------------------


def cudnn_lacks(options: Options, place: Place, query, key, value, sides: Sides) -> str:
    """What cuDNN's attention cannot do of a call; empty if it can do all."""
    if not _has_cudnn(place):
        return "it runs on GPUs of NVIDIA only"
    for name, given in (("bias", sides.bias), ("sinks", sides.sinks)):
        if given is not None:
            return f"it has no `{name}` here"
    if not place.whole:
        return "its keys are whole on each device"
    if options.softcap is not None:
        return "it has no `softcap`"
    if sides.row_segments is not None:
        return "it has no `segments`"
    if options.window is not None and not options.causal:
        return "its `window` is causal"
    if options.causal and (place.parts > 1 or not place.counted or query.shape[-2] > key.shape[-2]):
        return "its positions count from 0 on each device, with no more queries than keys"
    inner, features = query.shape[-1], value.shape[-1]
    if inner != features or inner % 8 or not 0 < inner <= 256:
        return f"its heads are multiples of 8 up to 256, not {inner} and {features}"
    if query.dtype not in (jnp.bfloat16, jnp.float16) or not query.size or not key.size:
        return f"it takes bfloat16 and float16, not {query.dtype}"
    return ""


def _has_cudnn(place: Place) -> bool:
    """Whether cuDNN may run there: on a GPU that is none of AMD's."""
    if place.platform != "gpu":
        return False
    at_hand = jax.default_backend() == "gpu"
    return not (at_hand and "rocm" in jax.devices()[0].client.platform_version)


def attend_by_cudnn(way: Way, place: Place, query, key, value, sides: Sides) -> jax.Array:
    """The output, by cuDNN.

    Its log-sum-exp stays inside of JAX's derivative: a checkpoint cannot keep it, and runs the
    forward pass again.
    """
    options = way.options
    leading, shared = query.shape[:-2], query.shape[: options.shared]
    batch, heads = math.prod(shared[:-1]), math.prod(shared[-1:])
    group = math.prod(leading[options.shared :])

    def by_position(x, heads):
        return jnp.swapaxes(x.reshape(batch, heads, *x.shape[-2:]), 1, 2)

    def attend(q, k, v):
        try:
            return jax.nn.dot_product_attention(
                q,
                k,
                v,
                scale=options.scale,
                is_causal=options.causal,
                local_window_size=None if options.window is None else (options.window - 1, 0),
                implementation="cudnn",
            )
        except RuntimeError:
            if jax.default_backend() == "gpu":
                raise
        # Without CUDA's libraries JAX cannot trace the call. The program is to be estimated, and
        # never compiled, here: blocks stand in, which keep the same for the backward pass.
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
        q = q.reshape(batch, heads, group, *q.shape[-2:])
        rows, columns = jnp.arange(q.shape[-2])[:, None], jnp.arange(k.shape[-2])[None]
        sides = Sides(rows=rows[None, None, None], columns=columns[None, None, None])
        made = attend_to_parts(all_at_hand(options._replace(shared=2)), q, k, v, sides)
        return jnp.swapaxes(made.reshape(batch, heads * group, *made.shape[-2:]), 1, 2)

    arrays = by_position(query, heads * group), by_position(key, heads), by_position(value, heads)
    share = visible_share(options, query.shape[-2], key.shape[-2], place.counted)
    if place.lowered:
        products = products_of(query, key, value, share)
        output = kernels.called(attend, arrays, "attention", products)
    else:
        output = attend(*arrays)
    output = ad_checkpoint.checkpoint_name(output, SAVED)
    return jnp.swapaxes(output, 1, 2).reshape(*leading, *output.shape[1:2], *output.shape[3:])
