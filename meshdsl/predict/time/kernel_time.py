"""How long one kernel computes.

Element-wise code and reductions take their bytes over the bandwidth that copies reach. On a TPU
they also take a time for each element that passes the vector unit.

A product takes the longer of two times. One is its FLOPs, with dims padded to the matrix unit, over
the rate that large products reach. The other is the time of its operands and its result in memory
and in the vector unit; because of it a contraction of 128 takes as long as one of 512. What the
kernel reads and writes besides (for an activation before, a sum after) is added, because it holds
the matrix unit up.
"""

from __future__ import annotations

import math

from meshdsl.machine import FUSED_EFFICIENCY, Chip
from meshdsl.predict.kernels.kernels import Buffer, Dot, Kernel
from meshdsl.predict.kernels.reordered import REORDER
from meshdsl.predict.memory.tiles import round_up

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
}
# Operands of a product pass the vector unit so many times as fast as results do. Measured with the
# TPU compiler's cycles for v5p: a product of 8192 x 4096 x 128 takes 80,380 where its bytes take
# 50,000, one of 32 x (2048 x 2048 x 128) 364,143 where they take 200,000.
_OPERANDS = 5
_SCALARS = 4096  # bytes: a kernel that touches no more takes no time of its own
# How much longer a copy takes that puts dims into another order. Measured with the TPU compiler's
# cycles for v5p: 0.986 ms for bfloat16 [64, 1024, 2048], and 0.536 ms by this module without it.
_REORDERING = 1.84
# Over fewer than 8 rows a TPU's compiler makes a convolution one over 8 times as many, of an eighth
# of the width each. It copies the edges of the parts to their neighbours, and masks them after: so
# many passes over each operand and result. Measured with its cycles, by `benchmarks/conv_rows.py`:
# two convolutions with their gradients take 1,119 thousand for each of 4 images on v5e, and 280 for
# each of 16. A copy of one takes 29 thousand, so that is about 28 passes more, over 12 arrays.
_REARRANGING = 2


def kernel_seconds(kernel: Kernel, chip: Chip) -> float:
    """Seconds of one execution of a kernel that computes."""
    return max(_seconds(kernel, chip), chip.kernel_latency if kernel.traffic > _SCALARS else 0.0)


def is_fused(kernel: Kernel) -> bool:
    """Whether it is a fused kernel that states what it multiplies."""
    return kernel.primitive == "local_kernel" and bool(kernel.dots)


def _seconds(kernel: Kernel, chip: Chip) -> float:
    bandwidth = chip.hbm_bandwidth * chip.hbm_efficiency
    per_element = 1 / chip.vector_rate if chip.vector_rate else 0.0
    if not kernel.dots:
        plain = kernel.traffic / bandwidth + elements(kernel) * per_element
        return plain * (_REORDERING if kernel.primitive == REORDER else 1.0)
    slower = {"float32": chip.float32_slowdown}
    if is_fused(kernel):
        products = sum(
            dot.flops * slower.get(dot.dtype, 1.0) * (chip.imbalance if dot.uneven else 1.0)
            for dot in kernel.dots
        )
        return max(products / (chip.flops * FUSED_EFFICIENCY), kernel.traffic / bandwidth)
    products = sum(
        padded_flops(dot, chip.tile) * slower.get(dot.dtype, 1.0) for dot in kernel.dots
    ) / (chip.flops * chip.matmul_efficiency)
    operands = sum(dot.batch * dot.k * (dot.m + dot.n) for dot in kernel.dots)
    results = sum(dot.batch * dot.m * dot.n for dot in kernel.dots)
    width = max(_WIDTHS.get(dot.dtype, 2) for dot in kernel.dots)
    of_products = min(width * (operands + results), kernel.traffic)
    streamed = of_products / bandwidth + (operands / _OPERANDS + results) * per_element
    besides = kernel.traffic - of_products
    seconds = max(products, streamed) + besides / bandwidth + besides / width * per_element
    if chip.operand_bandwidth:
        seconds += of_products / chip.operand_bandwidth
    if chip.kind == "tpu":
        copied = _REARRANGING * sum(dot.rearranged for dot in kernel.dots)
        seconds += 2 * copied / bandwidth + copied / width * per_element  # read and written
    return seconds


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


def elements(kernel: Kernel) -> int:
    """How many elements of a kernel pass the vector unit.

    Those of the largest array that it reads or writes. Of an array that it only slices or gathers
    from, no more than what it reads can hold.
    """
    written = sum(buffer.bytes for buffer in kernel.writes)
    read = kernel.traffic - written if written < kernel.traffic else kernel.traffic
    counts = [_held(buffer, kernel.traffic) for buffer in kernel.writes]
    counts += [_held(buffer, read) for buffer in kernel.reads]
    return max(counts, default=0)


def _held(buffer: Buffer, traffic: int) -> int:
    """How many elements of a buffer so many bytes can hold."""
    return min(math.prod(buffer.shape), traffic // _WIDTHS.get(buffer.dtype, 4))
