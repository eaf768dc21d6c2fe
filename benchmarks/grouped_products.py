"""Products of groups of rows, as experts need them, by the kernels for GPU in several tiles.

    python -m benchmarks.grouped_products --out grouped_products.json
    python -m benchmarks.grouped_products --platform cpu --tiny      # the command, without a GPU

For each shape (rows, inner features, features, groups) and each of the products, `dot`, its two
derivatives `transposed` and `outer`, it gives the TFLOP/s of the kernels in `TILES` (rows x columns
x depth, warps, stages), of `blocks`, and for `dot` of `jax.lax.ragged_dot`; and of one dense
product with as many FLOPs, the yardstick. A star is at the tile that meshdsl chooses on this GPU.
Groups are uneven: their sizes are drawn. The error is the largest difference from `blocks`, as a
share of the largest element.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl.ops import grouped_kernels as kernels
from meshdsl.ops.grouped_dot import KERNELS, Way, block_of, blocks_of
from meshdsl.ops.grouped_kernels import Tile

from .gpu import check_platform

# 16 experts of DeepSeek-V2-Lite up and down, and those of Mixtral 8x7B: (rows, k, n, groups).
SHAPES = ((65536, 2048, 1408, 16), (65536, 1408, 2048, 16), (16384, 4096, 14336, 8))
TILES = (
    Tile(128, 256, 64, warps=8, stages=4),
    Tile(128, 256, 64, warps=8, stages=3),
    Tile(256, 128, 64, warps=8, stages=4),
    Tile(128, 128, 64, warps=4, stages=3),
    Tile(128, 128, 64, warps=8, stages=3),
    Tile(128, 128, 32, warps=4, stages=4),
)
TINY = (((128, 64, 48, 4),), (Tile(32, 32, 16, warps=4, stages=3),))
DENSE: dict[str, Callable] = {
    "dot": lambda x, w, y, starts: x @ w[0],
    "transposed": lambda x, w, y, starts: y @ w[0].T,
    "outer": lambda x, w, y, starts: x.T @ y,
}


def _operands(shape):
    """Rows, matrices, rows of the other features and where groups start, in bfloat16."""
    rows, inner, features, groups = shape
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (rows, inner), (groups, inner, features), (rows, features)
    arrays = (
        jax.random.uniform(key, s, jnp.bfloat16, -1, 1) for key, s in zip(keys, shapes, strict=True)
    )
    shares = np.random.default_rng(1).dirichlet([20.0] * groups)
    starts = np.concatenate([[0], np.round(np.cumsum(shares) * rows)])
    return *arrays, jnp.asarray(starts, jnp.int32)


def _by_kernel(kind: str, tile: Tile, interpret: bool, x, w, y, starts):
    if kind == "outer":
        return kernels.outer(tile, interpret, x.dtype.name, x, y, starts)
    blocks = blocks_of(starts, tile.rows, len(x))
    back = kind == "transposed"
    return kernels.dot(tile, interpret, back, x.dtype.name, y if back else x, w, blocks)


def _by_way(kind: str, way: Way, x, w, y, starts):
    kernel = KERNELS[way.kernel]
    if kind == "outer":
        return kernel.outer(way, x.dtype.name, x, y, starts)
    back = kind == "transposed"
    return kernel.dot(way, back, x.dtype.name, y if back else x, w, starts)


def _cases(kind: str, shape, tiles, platform: str) -> dict[str, Callable]:
    """The functions to compare for one of the products; that of `blocks` comes first."""
    rows, _, _, groups = shape
    block = block_of(rows, groups, platform)
    found: dict[str, Callable] = {
        "blocks": partial(_by_way, kind, Way("blocks", platform, False, block, 1.0))
    }
    found["dense"] = DENSE[kind]
    chosen = kernels.tile_of(jnp.bfloat16, block)
    for tile in tiles:
        name = f"{tile.rows}x{tile.columns}x{tile.depth} {tile.warps} warps {tile.stages} stages"
        star = " *" if tile == chosen else ""
        found[name + star] = partial(_by_kernel, kind, tile, platform != "gpu")
    if kind == "dot":
        found["ragged_dot"] = lambda x, w, y, starts: lax.ragged_dot(x, w, jnp.diff(starts))
    return found


def _seconds(fn: Callable, args, calls: int) -> float:
    """The least mean time of several `calls` in a row."""
    jax.block_until_ready(fn(*args))
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready([fn(*args) for _ in range(calls)])
        best = min(best, (time.perf_counter() - start) / calls)
    return best


@jax.jit
def _error(found, expected):
    found, expected = (a.astype(jnp.float32) for a in (found, expected))
    return jnp.max(jnp.abs(found - expected)) / jnp.max(jnp.abs(expected))


def measured(kind: str, shape, tiles, platform: str) -> dict[str, dict[str, float]]:
    """TFLOP/s, milliseconds and error of each function for one of the products."""
    rows, inner, features, _ = shape
    args, cases = _operands(shape), _cases(kind, shape, tiles, platform)
    compiled = lambda fn: jax.jit(fn).lower(*args).compile()
    with ThreadPoolExecutor() as pool:
        functions = dict(zip(cases, pool.map(compiled, cases.values()), strict=True))
    expected, result = functions["blocks"](*args), {}
    for name, fn in functions.items():
        spent = _seconds(fn, args, calls=8 if platform == "gpu" else 1)
        speed = 2 * rows * inner * features / spent / 1e12
        result[name] = {"tflops": round(speed, 1), "ms": round(spent * 1e3, 3)}
        if name != "dense":
            result[name]["error"] = float(_error(fn(*args), expected))
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--tiny", action="store_true", help="one small shape and one small tile")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    given = parser.parse_args(arguments)
    check_platform(given.platform)
    found: dict[str, Any] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    shapes, tiles = TINY if given.tiny else (SHAPES, TILES)
    for shape in shapes:
        for kind in DENSE:
            label = f"{'x'.join(map(str, shape))} {kind}"
            found[label] = measured(kind, shape, tiles, given.platform)
            for name, one in found[label].items():
                error = f"  error {one['error']:.1e}" if "error" in one else ""
                print(f"{label:32} {name:32} {one['tflops']:7} TFLOP/s {one['ms']:9} ms{error}")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
