"""The rate of the TPU kernels for products of groups of rows, by the schedules that libtpu makes.

    python -m benchmarks.grouped_schedules v5p v6e --tiles 512x1024x1024 128x1024x1024

The compiler gives no cycles for a Pallas kernel. But it writes the kernel's bundles of instructions
to a folder, if it is asked to when it is loaded, and a kernel is a loop over tiles. So a tile (rows
x inner features x features) takes the bundles with products, or the cycles of the matrix units at
the chip's peak if these are more; then all other bundles of a turn, although some of them, such as
what stores a finished tile, do not run in every turn. And it takes no less than its bytes need.

`dot`, `transposed` and `outer` are the product and its two derivatives, of Mixtral's experts, in
bfloat16; the last has a result of float32. The mean of their shares of the peak, in the tiles that
meshdsl gives them, is `grouped_efficiency` of a chip in `meshdsl/machine/hardware.toml`. `int8` and
`fp8` are `dot` in numbers of 8 bits, with a result of int32 or float32; their shares are of the
peak of bfloat16 too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import SingleDeviceSharding

from meshdsl.machine import find_target
from meshdsl.ops.grouped_dot import Tiles, Way, tpu_tile
from meshdsl.predict.compiler.topology import compile_only, target_devices

from .measure import show

# A target with the chip, and how many cores of a device share its FLOP/s.
TARGETS = {
    "v4": ("v4:2x2x1", 2),
    "v5e": ("v5e:2x2", 1),
    "v5p": ("v5p:2x2x1", 2),
    "v6e": ("v6e:2x2", 1),
    "tpu7x": ("tpu7x:2x2x1", 1),
}
ROWS, INNER, FEATURES, GROUPS = 32768, 4096, 14336, 8
KINDS = ("dot", "transposed", "outer", "int8", "fp8")
FORMATS = {"dot": jnp.bfloat16, "int8": jnp.int8, "fp8": jnp.float8_e4m3fn}
SUMS = {"dot": jnp.bfloat16, "int8": jnp.int32, "fp8": jnp.float32}
_DUMP = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true"
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(LB|LH|LE|PB|PF|CT)?\s*:")
_ALONE = 8  # regions with no more products on a unit than that only begin or end something


def compile_one(kind: str, target: str, tile: tuple[int, int, int]) -> None:
    """Compile a kernel, for the bundles that libtpu writes meanwhile."""
    compile_only()
    on = SingleDeviceSharding(target_devices(find_target(target))[0])
    dtype = FORMATS.get(kind, jnp.bfloat16)
    array = lambda *shape, dtype=dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=on)
    counts, weight = array(GROUPS, dtype=jnp.int32), array(GROUPS, INNER, FEATURES)
    rows, others = array(ROWS, INNER), array(ROWS, FEATURES)
    how: dict[str, Any] = {
        "preferred_element_type": jnp.float32 if kind == "outer" else jnp.bfloat16,
        "tiling": tile,
    }

    def ragged(n, x, w):
        with set_xla_metadata(ragged_dot_tiling=",".join(map(str, tile))):
            return jax.lax.ragged_dot(x, w, n, preferred_element_type=SUMS[kind])

    calls = {
        "transposed": (lambda n, x, w: gmm(x, w, n, transpose_rhs=True, **how), others, weight),
        "outer": (lambda n, x, y: tgmm(x.T, y, n, **how), rows, others),
    }
    call, *operands = calls.get(kind, (ragged, rows, weight))
    jax.jit(call).lower(counts, *operands).compile()


def own_tile(kind: str, chip: str) -> tuple[int, int, int]:
    """The tile that meshdsl gives a product."""
    device_kind = find_target(TARGETS[chip][0]).chip.device_kind
    way = Way("megablox", "tpu", False, 0, 1.0, device_kind=device_kind)
    rows = jax.ShapeDtypeStruct((ROWS, 0), FORMATS.get(kind, jnp.bfloat16))
    sizes = (FEATURES, INNER) if kind == "transposed" else (INNER, FEATURES)
    return tpu_tile(way, kind if kind in Tiles._fields else "dot", rows, GROUPS, sizes)


def regions(text: str) -> list[tuple[int, int]]:
    """Of each region of the loop: how many bundles, and how many products on one matrix unit."""
    found, bundles, products, inside = [], 0, 0, False
    for line in text.splitlines():
        bundle = _BUNDLE.match(line)
        if bundle and bundle[1] == "LB":
            inside, bundles, products = True, 0, 0
        if bundle and inside and bundle[1] in ("PB", "PF"):
            found.append((bundles, products))
            bundles = products = 0
        bundles += bundle is not None
        products += len(re.findall(r"vmatmul\S*mxu0", line))
        if "sbr.rel" in line:
            found.append((bundles, products))
            bundles = products = 0
    return found


def row(chip: str, kind: str, tile: tuple[int, int, int]) -> list[str]:
    """The cells of a kernel."""
    target, cores = TARGETS[chip]
    figures = find_target(target).chip
    name = "x".join(map(str, tile))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LIBTPU_INIT_ARGS": _DUMP.format(folder)}
        command = [
            sys.executable,
            "-m",
            "benchmarks.grouped_schedules",
            chip,
            "--only",
            kind,
            "--tiles",
            name,
        ]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        texts = [
            path
            for path in Path(folder).glob("*final_bundles.txt")
            if re.search("gmm|ragged-dot-none", path.name) and "schedule" not in path.name
        ]
        if run.returncode or not texts:
            return [chip, kind, name, (run.stderr.strip().splitlines() or ["-"])[-1][:60], *"----"]
        found = regions(texts[0].read_text())
    with_products = max(bundles for bundles, products in found if products > _ALONE)
    rest = sum(bundles for bundles, products in found if products <= _ALONE)
    rows, inner, features = tile
    flops = 2 * rows * inner * features
    at_peak = flops * cores * figures.clock / figures.flops
    whole = ROWS if kind == "outer" else FEATURES if kind == "transposed" else INNER
    summed = rows if kind == "outer" else inner  # of `whole`, in a turn
    operands, result = (
        (rows * (inner + features), inner * features)
        if kind == "outer"
        else (inner * (rows + features), rows * features)
    )
    few_bits = kind in ("int8", "fp8")
    moved = (1 if few_bits else 2) * operands + (4 if few_bits else 2) * result * summed / whole
    in_memory = moved * cores / figures.hbm_bandwidth * figures.clock
    least = at_peak / 2 if few_bits else at_peak  # matrix units have twice the peak in 8 bits
    cycles = max(with_products, least) + rest
    bound = "memory" if in_memory > cycles else "products"
    cells = [f"{n:,.0f}" for n in (with_products, rest, at_peak, in_memory)]
    return [chip, kind, name, *cells, f"{at_peak / max(cycles, in_memory):.1%}, {bound}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chips", nargs="+", choices=TARGETS, metavar="CHIP")
    parser.add_argument(
        "--tiles", nargs="+", default=[], metavar="MxKxN", help="by default those of meshdsl"
    )
    parser.add_argument("--only", choices=KINDS, help="compile this one, and print nothing")
    given = parser.parse_args()
    given_tiles = [
        (int(m), int(k), int(n)) for m, k, n in (tile.split("x") for tile in given.tiles)
    ]
    if given.only:
        compile_one(given.only, TARGETS[given.chips[0]][0], given_tiles[0])
        return
    head = ["chip", "product", "tile", "bundles with products", "others", "cycles at the peak"]
    rows = [[*head, "cycles of its bytes", "share of the peak"]]
    for chip in given.chips:
        for kind in KINDS:
            for tile in given_tiles or [own_tile(kind, chip)]:
                rows.append(row(chip, kind, tile))
                print("; ".join(rows[-1]), flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
