"""What convolutions cost over few rows, by the TPU compiler's own cycles.

    python -m benchmarks.conv_rows

Two convolutions of 3 x 3, 128 to 128 features, with ReLU and the gradients of all, for images of
128 x 128 in bfloat16 on one v5e. It needs meshdsl[tpu] and no TPU.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshdsl.machine import find_target
from meshdsl.predict.compiler.topology import compile_only, target_devices

from .measure import show

SIZE, FEATURES, IMAGES = 128, 128, (1, 4, 5, 7, 8, 16)
DIMS = ("NHWC", "HWIO", "NHWC")


def loss(x, first, second):
    for kernel in (first, second):
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=DIMS)
        )
    return jnp.sum(jnp.square(x.astype(jnp.float32)))


def cycles(images: int, whole: NamedSharding) -> int:
    """The cycles that the compiler estimates for all kernels of the gradients."""
    kernel = (3, 3, FEATURES, FEATURES)
    shapes = [(images, SIZE, SIZE, FEATURES), kernel, kernel]
    given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=whole) for shape in shapes]
    compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*given).compile().as_text()
    assert compiled is not None
    program = compiled[compiled.index("ENTRY") :]
    return sum(map(int, re.findall(r'"estimated_cycles":"?(\d+)', program)))


def main() -> None:
    compile_only()
    device = np.array(list(target_devices(find_target("v5e:1x1")))).reshape(-1)[:1]
    whole = NamedSharding(Mesh(device, ("x",)), PartitionSpec())
    rows = [(f"{n}", f"{cycles(n, whole) / n / 1000:,.0f}") for n in IMAGES]
    show([("images", "thousand cycles for each"), *rows])


if __name__ == "__main__":
    main()
