"""How weights that are split over a whole TPU slice can be gathered, compiled without a TPU.

    python -m benchmarks.torus_gathers

Three layers of two bfloat16 products, [4096, 4096] x [4096, 11008] and back, on each of 64 chips:
forward, recomputed and backward. The weights, float32 at rest, are split over all chips in several
ways, gathered in each layer and pass, and their gradients scattered. Each way is compiled with the
options of meshdsl, or with some of them off, and the schedule replayed. A program without the
options for several dims of the torus gathers and scatters along one ring; it is replayed so.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshdsl as md
from meshdsl.machine import Network, find_target
from meshdsl.machine.overlap import FORMS, Overlap
from meshdsl.predict.compiler.options import default_options
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices

from .measure import show

LAYERS, D_MODEL, D_FF, TOKENS = 3, 4096, 11008, 4096
OF_SEVERAL_DIMS = re.compile(r"\dd_all_gather|nd_reduce_scatter|prefer_async_allgather")
PREFER = "xla_tpu_prefer_async_allgather_to_allreduce"


@dataclass(frozen=True)
class Way:
    """One way to split two weights, [d_model, d_ff] and [d_ff, d_model], and to gather them.

    Attributes:
      sizes: of the mesh axes.
      gathers: the axes of each gather, one after the other, over d_model.
      others: the same over d_ff, first.
      options: "all" that meshdsl uses, "offload" for those without several dims, or "prefer" for
        these and the one that keeps gathers.
    """

    sizes: dict[str, int]
    gathers: tuple[tuple[str, ...], ...]
    others: tuple[tuple[str, ...], ...] = ()
    options: str = "offload"


WAYS = {
    "one axis": Way({"a": 64}, (("a",),)),
    "one axis, gathers preferred": Way({"a": 64}, (("a",),), options="prefer"),
    "one axis, all options": Way({"a": 64}, (("a",),), options="all"),
    "16 x 4, at once": Way({"a": 16, "b": 4}, (("a", "b"),)),
    "16 x 4, one after the other": Way({"a": 16, "b": 4}, (("b",), ("a",))),
    "16 x 4, one after the other, all options": Way(
        {"a": 16, "b": 4}, (("b",), ("a",)), options="all"
    ),
    "16 x 4, a dim each": Way({"a": 16, "b": 4}, (("a",),), (("b",),)),
    "4 x 16, a dim each": Way({"a": 4, "b": 16}, (("a",),), (("b",),)),
    "4 x 4 x 4, one after the other": Way({"a": 4, "b": 4, "c": 4}, (("c",), ("b",), ("a",))),
    "32 of 64, in two replicas": Way({"r": 2, "a": 32}, (("a",),)),
}


def gathered(w, way: Way, d_model: int, sizes: dict[str, int]):
    """A weight in bfloat16, whole; `d_model` is the position of that dim."""
    used = {axis for axes in (*way.gathers, *way.others) for axis in axes}
    w = w.astype(jnp.bfloat16)
    if left := tuple(axis for axis in sizes if axis not in used):
        w = lax.pcast(w, left, to="varying")
    for position, gathers in ((1 - d_model, way.others), (d_model, way.gathers)):
        for axes in gathers:
            w = lax.all_gather(w, axes, axis=position, tiled=True)
    return w


def gradients(way: Way, mesh: jax.sharding.Mesh) -> tuple[Callable, tuple]:
    """The program, and its arguments in the abstract."""
    d_model = tuple(axis for axes in reversed(way.gathers) for axis in axes) or None
    d_ff = tuple(axis for axes in reversed(way.others) for axis in axes) or None
    specs = (P(None, d_model, d_ff), P(None, d_ff, d_model), P(tuple(mesh.shape)))

    @partial(jax.shard_map, mesh=mesh, in_specs=specs, out_specs=specs[:2])
    def program(up, down, x):
        @jax.checkpoint
        def layer(x, weights):
            up, down = weights
            hidden = jax.nn.silu(x @ gathered(up, way, 0, dict(mesh.shape)))
            return hidden @ gathered(down, way, 1, dict(mesh.shape)), None

        y, backward = jax.vjp(lambda *weights: lax.scan(layer, x, weights)[0], up, down)
        return backward(y)

    shapes = ((LAYERS, D_MODEL, D_FF), (LAYERS, D_FF, D_MODEL), (TOKENS * mesh.size, D_MODEL))
    dtypes = (jnp.float32, jnp.float32, jnp.bfloat16)
    arguments = tuple(
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for shape, dtype, spec in zip(shapes, dtypes, specs, strict=True)
    )
    return program, arguments


def row(name: str, way: Way, target) -> list[str]:
    mesh = md.make_mesh(way.sizes, target_devices(target))
    options = default_options(mesh)
    if way.options != "all":
        off = [key for key in options if OF_SEVERAL_DIMS.search(key)]
        options |= dict.fromkeys(off, "False")
        rings = dict.fromkeys(FORMS, Overlap(rings=("all_gather", "psum_scatter")))
        target = replace(target, chip=replace(target.chip, overlap=rings))
    if way.options == "prefer":
        options[PREFER] = "True"
    program, arguments = gradients(way, mesh)
    start = time.perf_counter()
    compiled = jax.jit(program).lower(*arguments).compile(compiler_options={**options})
    taken = time.perf_counter() - start
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None and memory is not None
    network = Network(target, way.sizes)
    found = replay(text, target.chip, network, way.sizes)
    counts: Counter[str] = Counter()
    for ran in found.collectives:
        waits = "" if ran.asynchronous else ", waits"
        axes = ", ".join(ran.collective.axes)
        counts[f"{ran.collective.operation}({axes}) {ran.collective.bytes / 2**20:.1f}{waits}"] += (
            ran.collective.count
        )
    moved = sum(ran.collective.total_bytes for ran in found.collectives) / 2**30
    return [
        name,
        *(f"{1e3 * t:.2f}" for t in (found.step, found.compute)),
        *(f"{1e3 * t:.2f}" for t in (sum(found.communication.values()), found.exposed)),
        f"{moved:.2f}",
        f"{memory.temp_size_in_bytes / 2**30:.2f}",
        "; ".join(f"{count} {what}" for what, count in counts.items()),
        f"{taken:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="v5p:4x4x4", help="one with 64 devices")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    compile_only()
    head = ["way", "step ms", "compute ms", "on links ms", "exposed ms", "moved GiB"]
    rows = [[*head, "temporaries GiB", "collectives: count, MiB", "compile s"]]
    for name in given.ways:
        rows.append(row(name, WAYS[name], find_target(given.target)))
        print("; ".join(rows[-1]), flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
