"""Which calls the kernels of a platform can serve: splash on TPU, cuDNN and a Pallas kernel on GPU.

`splash_lacks`, `cudnn_lacks` and `pallas_lacks` say what each kernel lacks for a call, as the end
of a message. Arrays are in the order that `operands.py` describes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.lowering.kernels import Product, Products
from meshdsl.ops.attention.operands import Options, Sides
from meshdsl.ops.attention.parts import Kernel
from meshdsl.ops.kernel_choice import of_amd

LANES = 128  # splash works on blocks of a multiple of 128 positions; lengths are padded to one
_FEWEST_ROWS = 16  # the fewest rows of a product on tensor cores
_MOST_PROGRAMS = 65_535  # CUDA's limit along the second dim of a grid
MASKS = 8  # the most masks of splash in a call: each is a kernel of its own in the program


class Runs(NamedTuple):
    """The runs of consecutive elements that each part of a dim has.

    Attributes:
      starts: for each part the first index of each of its runs.
      size: the size of every run.
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
      part: a function that gives the numbers of the device's runs of queries, in units of the size
        of a run; None if the queries are not split.
      parts: how many runs of queries all devices have together.
      padded: whether the last runs, of queries or of keys, hold padding.
      counted: whether positions count from 0, as they do unless the call gives them.
      platform: the platform of the device.
      lowered: whether this is one device of a lowering.
      whole: whether the device sees all keys at once.
      rows, columns: the runs of the queries and of the keys.
      aligned: whether the keys go round a ring over the axes that split the queries. Then, if a
        device has part i of the queries, part i - t of the keys is there on turn t.
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


def kernel_of(kernels: ModuleType, options: Options, place: Place) -> Kernel:
    """The kernel of a module of this folder, for one call.

    On other platforms than its own the kernel is interpreted.
    """
    passes = (partial(run, options, place) for run in (kernels.forward, kernels.backward))
    return Kernel(*passes)


def visible_share(options: Options, rows: int, columns: int, counted: bool) -> float:
    """The share of the scores that count. By convention causal attention has half of the scores.

    Args:
      rows, columns: their numbers over all devices.
      counted: whether positions count from 0. Otherwise they are not known, and all scores count.
    """
    if not counted or rows != columns or not columns:
        return 1.0
    share = 0.5 if options.causal else 1.0
    if options.window is None:
        return share
    # The mean of how many keys a query sees; at the ends of a sequence there are fewer.
    before = options.window - options.window * (options.window - 1) / (2 * columns)
    return min(share, (before if options.causal else 2 * before - 1) / columns)


def products_of(query, key, value, share: float) -> tuple[Products, Products]:
    """The products of a fused kernel: two in the forward pass, and five in the backward pass."""
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
    """What splash attention lacks for a call; empty if it can serve the call."""
    for name, given in (("bias", sides.bias), ("sinks", sides.sinks)):
        if given is not None:
            return f"it has no `{name}`"
    if not place.counted:
        return "its positions count from 0"
    rows, columns = query.shape[-2], key.shape[-2]
    if not place.whole:
        rows, columns = place.rows.size, place.columns.size
        if _kinds(options, place) > MASKS:
            return f"it takes up to {MASKS} masks for the parts of the keys"
    if min(rows, columns) < LANES or not query.size or not value.size:
        return (
            f"it takes {LANES} queries and {LANES} keys or more on a device, "
            f"not {rows} and {columns}"
        )
    masked = options.causal or options.window is not None
    if place.whole and place.part is not None and masked and place.rows.size % LANES:
        return (
            f"where queries are split and keys are not its mask takes multiples of {LANES} "
            f"queries, not {place.rows.size}"
        )
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"it takes float32 and bfloat16, not {query.dtype}"
    heads = query.ndim - 2 - max(options.shared - 1, 0)
    for segments in (sides.row_segments, sides.column_segments):
        if segments is not None and math.prod(segments.shape[-2 - heads : -2]) > 1:
            return "its segments are the same for all heads"
    return ""


def seen_of(options: Options, rows: int, columns: int, distance: int) -> tuple[float, int | None]:
    """How much a run of rows sees of a run of columns, which begins `distance` before it.

    Returns:
      The share of the scores that count, and a key of the mask: the distance. The key is None if
      all scores count, or none, so that no mask is needed.
    """
    # How far a row may lie behind a column, at most and at least.
    furthest, nearest = distance + rows - 1, distance - columns + 1
    reach = math.inf if options.window is None else options.window
    after = 1 if options.causal else reach  # a row sees columns less than this many after it
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
    """How far behind a run of columns a run of rows may begin, and on how many devices it does.

    Args:
      turns: the turns of the ring, if there is one.
      row, column: the numbers of the runs within a part of the queries and of the keys.
    """
    rows, columns = place.rows.starts, place.columns.starts
    found: Counter[int] = Counter()
    for i, own in enumerate(rows):
        others = columns
        if place.aligned:
            others = [columns[(i - turn) % len(columns)] for turn in turns]
        found.update(own[row] - other[column] for other in others)
    return found


def share_of_parts(options: Options, place: Place, turns: range, rows: int, columns: int) -> float:
    """The share of a device's scores that count, on average over the devices and the turns.

    Args:
      turns: the turns of the ring. On turns after the first one, parts of the keys that a device
        does not see are left out of the average, because it skips them.
      rows, columns: their numbers on one device.
    """
    if place.whole:
        return visible_share(
            options, rows * place.parts // place.rows.count, columns, place.counted
        )
    if not place.counted:
        return 1.0
    found: list[tuple[float, int]] = []
    for row in range(place.rows.count):
        for column in range(place.columns.count):
            sizes = place.rows.size, place.columns.size
            far = distances(place, turns, row, column)
            found += [(seen_of(options, *sizes, at)[0], times) for at, times in far.items()]
    if 0 not in turns and place.rows.count == place.columns.count == 1:
        found = [(share, times) for share, times in found if share]
    return sum(share * times for share, times in found) / max(sum(n for _, n in found), 1)


def _kinds(options: Options, place: Place) -> int:
    """How many different masks a call may need, not counting masks that are full or empty."""
    turns, far = range(len(place.columns.starts)), set()
    for row in range(place.rows.count):
        for column in range(place.columns.count):
            far.update(distances(place, turns, row, column))
    sizes = place.rows.size, place.columns.size
    return len({seen_of(options, *sizes, distance)[1] for distance in far} - {None})


# -- cuDNN -----------------------------------------------------------------------------------------


def cudnn_lacks(options: Options, place: Place, query, key, value, sides: Sides) -> str:
    """What cuDNN's attention lacks for a call; empty if it can serve the call."""
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
    if options.causal:
        if not place.counted or query.shape[-2] * place.parts > key.shape[-2]:
            return "its positions count from 0, with no more queries than keys"
        if place.parts > 1 and (place.padded or place.rows.count > 1 or options.window is not None):
            return "where queries are split it has no `window`, and parts are one run of one size"
    inner, features = query.shape[-1], value.shape[-1]
    widest = _widest_heads()
    if inner != features or inner % 8 or not 0 < inner <= widest:
        return f"its heads are multiples of 8 up to {widest}, not {inner} and {features}"
    if query.dtype not in (jnp.bfloat16, jnp.float16) or not query.size or not key.size:
        return f"it takes bfloat16 and float16, not {query.dtype}"
    rows, columns = query.shape[-2], key.shape[-2]
    if rows % 2 or columns % 2:
        return f"it takes even numbers of queries and keys, not {rows} and {columns}"
    return ""


def _has_cudnn(place: Place) -> bool:
    """Whether the device may have cuDNN: it is a GPU, and not AMD's."""
    return place.platform == "gpu" and not of_amd()


def _widest_heads() -> int:
    """How wide heads may be: 256, but 128 on GPUs before Hopper.

    JAX decides this by the GPU of this machine, whatever GPU it compiles for. Without a GPU it
    assumes an old one. Without CUDA's libraries JAX is not asked, and a new GPU is assumed.
    """
    if jax.default_backend() == "gpu":
        hopper = float(jax.devices()[0].compute_capability) >= 9
    else:
        hopper = not any(find_spec(f"jax_cuda{n}_plugin") for n in (12, 13))
    return 256 if hopper else 128


# -- Pallas on GPU ---------------------------------------------------------------------------------


def pallas_lacks(options: Options, place: Place, query, key, value, sides: Sides) -> str:
    """What the Pallas kernel for GPUs lacks for a call; empty if it can serve the call."""
    if place.platform == "gpu" and of_amd():
        return "it runs on GPUs of NVIDIA only"
    if sides.bias is not None:
        return "it has no `bias`"
    if query.shape[-2] < _FEWEST_ROWS:
        return f"it takes {_FEWEST_ROWS} queries or more on a device, not {query.shape[-2]}"
    if not query.size or not key.size or not value.size:
        return "its operands are not empty"
    widest = max(query.shape[-1], value.shape[-1])
    if widest > 256:
        return f"its heads have up to 256 features, not {widest}"
    if query.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return f"it takes float32, bfloat16 and float16, not {query.dtype}"
    if math.prod(query.shape[:-2]) > _MOST_PROGRAMS:
        return f"it takes up to {_MOST_PROGRAMS:,} heads of all sequences on a device"
    for name in ("rows", "columns", "row_segments", "column_segments"):
        given = getattr(sides, name)
        if given is not None and math.prod(given.shape[options.shared : -2]) > 1:
            return "its positions and segments are the same for all queries that share a key"
    return ""
