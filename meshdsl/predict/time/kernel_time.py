"""How long one kernel computes.

Element-wise code and reductions take their bytes in memory over the bandwidth that copies reach. On
a TPU they also take a time for each element of their largest array, which passes the vector unit,
and one for each element of every array. An operation that the compiler does not fuse with any other
takes a time for each element alone, and so does a copy into another order of dims.

A product of a TPU takes a latency, and the longer of two times. One is its FLOPs, with dims padded
to the matrix unit, over the rate that large products reach; the unit also waits for the arrays that
the kernel computes operands from, and for those that it reads and writes beside the result. The
other is that of the bytes in memory and of the operands and results that pass the vector unit;
because of it a contraction of 128 takes as long as one of 512. Elsewhere a product is a kernel by
itself, and what its kernel reads and writes besides is added.

The bytes of an array on a TPU are those of its tiles. Of the smaller ones, a share is in the fast
memory of the chip: it was left there by the kernel before, or was fetched while another one ran.

The figures of a TPU are fitted to what its compiler says of the kernels of small programs, by
`benchmarks/kernel_figures.py`.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from meshdsl.machine import FUSED_EFFICIENCY, Chip
from meshdsl.predict.kernels.kernels import Dot, Kernel, Move
from meshdsl.predict.kernels.primitives import TAKE
from meshdsl.predict.kernels.reordered import REORDER, REORDER_ROWS
from meshdsl.predict.memory.tiles import buffer_bytes, round_up

_SUBLANES = 8  # rows of a vector register: dims are padded to it if not to the matrix unit
_WIDTHS = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "bfloat16": 2,
    "float16": 2,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
# Operands of a product pass so many times as fast as results do, where that is not a TPU's.
_OPERANDS = 5
_ALIKE = 0.03  # arrays whose numbers of elements differ by less are taken to be of one kind
_SCALARS = 4096  # bytes: a kernel that touches no more takes no time of its own
# An array with only two rows in a tile takes so many times longer to be put into another order: an
# element 31 ps on v6e for [28, 2048, 8, 2, 128], and 11.3 for arrays with eight rows; on v5e 41 for
# [5504, 42, 2, 64] and [18944, 1, 5504], and 19.
_FEW_ROWS = 2.5
# Over fewer than 8 rows a TPU's compiler makes a convolution one over 8 times as many, of an eighth
# of the width each. It copies the edges of the parts to their neighbours, and masks them after: so
# many passes over each operand and result. Measured with its cycles, by `benchmarks/conv_rows.py`:
# two convolutions with their gradients take 1,119 thousand for each of 4 images on v5e, and 280 for
# each of 16. A copy of one takes 29 thousand, so that is about 28 passes more, over 12 arrays.
_REARRANGING = 2


def kernel_seconds(kernel: Kernel, chip: Chip) -> float:
    """Seconds of one execution of a kernel that computes."""
    least = chip.kernel_latency if kernel.traffic > _SCALARS and kernel.primitive != TAKE else 0.0
    return max(_seconds(kernel, chip), least)


def is_fused(kernel: Kernel) -> bool:
    """Whether it is a fused kernel that states what it multiplies."""
    return kernel.primitive == "local_kernel" and bool(kernel.dots)


def is_grouped(kernel: Kernel) -> bool:
    """Whether it is a fused kernel of products of groups of rows."""
    return is_fused(kernel) and all(dot.grouped for dot in kernel.dots)


def _seconds(kernel: Kernel, chip: Chip) -> float:
    in_memory = _bytes_in_memory(kernel, chip) / (chip.hbm_bandwidth * chip.hbm_efficiency)
    if not kernel.dots:
        sizes = [_elements(move, chip) for move in kernel.moves]
        passing = _over(max(sizes, default=0.0), chip.vector_rate)
        passing += _over(sum(sizes), chip.array_rate)
        if kernel.bare and chip.bare_rate:
            return max(sizes) / chip.bare_rate
        if kernel.primitive not in (REORDER, REORDER_ROWS, TAKE):
            return in_memory + passing
        taken = in_memory + passing if kernel.primitive == TAKE else 0.0
        return taken + _reordering(kernel, chip, max(sizes))
    if is_fused(kernel):
        products = sum(
            (dot.grouped or dot.flops)
            * chip.slowdown(dot.dtype)
            * (chip.imbalance if dot.uneven else 1.0)
            for dot in kernel.dots
        )
        reached = chip.grouped_efficiency if is_grouped(kernel) else FUSED_EFFICIENCY
        if all(dot.dtype.startswith("float") and dot.dtype[5] in "48" for dot in kernel.dots):
            reached = chip.matmul_efficiency  # a product of a library, of numbers with scales
        return max(products / (chip.flops * reached), in_memory)
    on_tpu = chip.kind == "tpu"
    flops = sum(
        padded_flops(dot, chip.tile) * chip.slowdown(dot.dtype) * (dot.lanes if on_tpu else 1.0)
        for dot in kernel.dots
    )
    products = flops / (chip.flops * chip.matmul_efficiency)
    if on_tpu:
        return _on_matrix_unit(kernel, chip, products, in_memory)
    operands, results = sum(map(_operands, kernel.dots)), sum(map(_results, kernel.dots))
    width = max(_WIDTHS.get(dot.dtype, 2) for dot in kernel.dots)
    of_products = min(width * (operands + results), kernel.traffic)
    share = of_products / kernel.traffic if kernel.traffic else 0.0
    streamed = in_memory * share + _over(operands / _OPERANDS + results, chip.vector_rate)
    besides = in_memory * (1 - share) + _over(
        (kernel.traffic - of_products) / width, chip.vector_rate
    )
    seconds = max(products, streamed) + besides
    if chip.operand_bandwidth:
        seconds += of_products / chip.operand_bandwidth
    return seconds


def _reordering(kernel: Kernel, chip: Chip, elements: float) -> float:
    """Seconds in which an array is copied with its dims in another order.

    It takes half the time if the array is read from fast memory, or written to it, as a slice is
    that was taken of a stack.
    """
    moved = sum(map(_tiled, kernel.moves))
    share = max(_bytes_in_memory(kernel, chip) / moved, 0.5) if moved else 1.0
    share = 0.5 if kernel.primitive == TAKE else share
    times = _FEW_ROWS if kernel.primitive == REORDER_ROWS else 1.0
    return _over(elements * share * times, chip.reorder_rate)


def _on_matrix_unit(kernel: Kernel, chip: Chip, products: float, in_memory: float) -> float:
    """Of products on a TPU.

    Args:
      products: seconds of their FLOPs.
      in_memory: of all that the kernel moves.
    """
    results = sum(_results(dot) * dot.lanes for dot in kernel.dots)
    operands = sum(map(_operands, kernel.dots))
    before, beside = _besides(kernel, chip)
    computing = products + _over(before, chip.prologue_rate) + _over(beside, chip.epilogue_rate)
    passing = _over(results, chip.result_rate) + _over(operands, chip.operand_rate)
    copied = _REARRANGING * sum(dot.rearranged for dot in kernel.dots)
    again = 2 * copied / (chip.hbm_bandwidth * chip.hbm_efficiency)  # read and written
    again += _over(copied / max(_WIDTHS.get(d.dtype, 2) for d in kernel.dots), chip.vector_rate)
    return chip.product_latency + max(computing, in_memory + passing) + again


def _besides(kernel: Kernel, chip: Chip) -> tuple[float, float]:
    """Elements of arrays from which a product's kernel computes operands, and of those beside.

    An array is of the one kind or the other by its number of elements.
    """
    dot = kernel.dots[0]
    result = dot.batch * dot.m * dot.n
    own = Counter([dot.batch * dot.m * dot.k, dot.batch * dot.k * dot.n, result])
    more = {elements: -float(elements * count) for elements, count in own.items()}
    for move in kernel.moves:
        size = _elements(move, chip)
        for elements in more:
            if abs(size - elements) < _ALIKE * elements:
                more[elements] += size
                break
    beside = max(more.pop(result), 0.0)
    return sum(max(elements, 0.0) for elements in more.values()) + kernel.costly, beside


def _over(elements: float, rate: float) -> float:
    """Seconds of so many elements; 0 where the rate is no limit."""
    return elements / rate if rate else 0.0


def _operands(dot: Dot) -> int:
    return dot.batch * dot.k * (dot.m + dot.n)


def _results(dot: Dot) -> int:
    return dot.batch * dot.m * dot.n


def padded_flops(dot: Dot, tile: int) -> float:
    """The FLOPs of a product whose dims are rounded up to those of the matrix unit.

    The unit holds `tile` x `tile` elements of one operand, whichever suits better, and takes 8 rows
    of the other at a time.
    """
    m, n = (
        dot.batch * round_up(dot.k, tile) * round_up(a, _SUBLANES) * round_up(b, tile)
        for a, b in ((dot.m, dot.n), (dot.n, dot.m))
    )
    return dot.flops * min(m, n) / max(dot.batch * dot.m * dot.k * dot.n, 1)


def _bytes_in_memory(kernel: Kernel, chip: Chip) -> float:
    """The bytes that a kernel moves from and to the memory of the device, on average.

    Half of the arrays of the size `Chip.fetched` are read from fast memory, and half of those of
    the size `Chip.kept` are written to it; nearly all of much smaller ones are, and nearly none of
    much larger ones. A slice of a stack is always in memory.
    """
    total = 0.0
    for move in kernel.moves:
        size = _tiled(move) if chip.kind == "tpu" else move.bytes
        half = chip.kept if move.write else chip.fetched
        if half and move.buffer.within is None:
            size *= 1 - 1 / (1 + (size / half) ** 2)
        total += size
    return total


def _elements(move: Move, chip: Chip) -> float:
    size = _tiled(move) if chip.kind == "tpu" else move.bytes
    return size / _WIDTHS.get(move.buffer.dtype, 4)


@lru_cache(maxsize=2**14)
def _tiled(move: Move) -> float:
    """The bytes that a kernel of a TPU moves, in tiles."""
    buffer = move.buffer
    return move.bytes * buffer_bytes(buffer, "tpu") / buffer.bytes if buffer.bytes else 0.0
