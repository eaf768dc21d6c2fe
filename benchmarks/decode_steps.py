"""How long a token of a published model takes on a TPU, beside what reading its memory takes.

    python -m benchmarks.decode_steps --targets v5e:2x4 v5p:2x2x1 --weights compute int8

Compiled for TPUs that need not be there, and replayed: one step of decoding, of some texts with
full caches, all in bfloat16 but for weights that lie in 8 bits. The least time is what a device
needs to read its weights, but for the table of the embedding, and its cache once, at the full
bandwidth of its memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.commands.settings import model_values
from meshdsl.machine import Network, find_target
from meshdsl.mesh import axis_sizes
from meshdsl.models import generate
from meshdsl.models.generate import Progress, Sampling
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.train.config import Config
from meshdsl.train.memory_order import compiled_for_best_order
from meshdsl.train.precision_settings import Precision
from meshdsl.train.sample import in_few_bits
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from .measure import show

GREEDY = Sampling(temperature=0.0)
HEAD = ["target", "weights", "weights and cache, GiB", "least ms", "ms a token", "waits", "ratio"]


def row(target: str, weights: str, given: argparse.Namespace) -> list[str]:
    """The cells of one machine and one way to keep weights."""
    machine = find_target(target)
    devices = target_devices(machine)
    values = model_values(given.model) | {"model.length": given.length}
    family: Any = override(Config(), **values).model
    layout = find_layout(given.layout)
    layout = dataclasses.replace(layout, mesh=axis_sizes(layout.mesh, len(devices)))
    mesh = md.make_mesh(layout, devices=devices)
    batch = md.Dim("batch", given.batch)

    def split(tree: Any) -> Any:
        of = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
        return jax.tree.map(of, tree, md.shardings(tree, layout, mesh))

    def start(model: Any, prompts: md.Tensor, sizes: md.Tensor) -> Progress:
        memory = family.dims["memory"]
        return generate.start(model, prompts, sizes, memory, jax.random.key(0), GREEDY)

    def advance(model: Any, cache: Any, rest: Progress) -> tuple:
        progress = rest.replace(cache=cache)
        after = generate.advance(model, progress, jax.random.key(0), GREEDY)
        return after.cache, after.replace(cache=None)

    def built(key):
        model = jax.tree.map(lambda x: x.astype(jnp.bfloat16), family.init(key))
        return model if weights == "compute" else in_few_bits(model, Precision(), weights)

    dims = [*family.dims.values(), batch]
    model = split(jax.eval_shape(built, jax.random.key(0)))
    prompt = batch, md.Dim("length", 16)
    prompts = md.tensor(jax.ShapeDtypeStruct((batch.size, 16), jnp.int32), prompt)
    sizes = md.tensor(jax.ShapeDtypeStruct((batch.size,), jnp.int32), (batch,))
    first = jax.jit(md.lower(start, layout, mesh, dims=dims))
    progress = jax.eval_shape(first, model, prompts, sizes)
    cache, rest = split(progress.cache), split(progress.replace(cache=None))
    step = compiled_for_best_order(
        md.lower(advance, layout, mesh, dims=dims), mesh, model, cache, rest
    )
    module = Module(step.as_text() or "")
    axes = {name: int(size) for name, size in layout.mesh.items()}
    time = replay(module, machine.chip, Network(machine, axes), axes)
    read = _local_bytes(model) - _local_bytes(model.embedding) + _local_bytes(cache)
    least = read / machine.chip.hbm_bandwidth
    cells = [f"{read / 2**30:.2f}", f"{1e3 * least:.2f}", f"{1e3 * time.step:.2f}"]
    return [target, weights, *cells, f"{time.exposed / time.step:.0%}", f"{time.step / least:.2f}"]


def _local_bytes(tree: Any) -> int:
    """The bytes of the arrays of a tree on one device."""
    local = lambda x: math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return sum(map(local, jax.tree.leaves(tree)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--layout", default="tensor")
    parser.add_argument("--targets", nargs="+", default=["v5e:2x4", "v5p:2x2x1"])
    parser.add_argument("--weights", nargs="+", default=["compute", "int8"])
    parser.add_argument("--batch", type=int, default=8, help="how many texts (%(default)s)")
    parser.add_argument("--length", type=int, default=8192, help="of each (%(default)s)")
    given = parser.parse_args()
    compile_only()
    rows = [HEAD]
    for target in given.targets:
        for weights in given.weights:
            rows.append(row(target, weights, given))
            print("; ".join(rows[-1]), flush=True)
    show(rows)


if __name__ == "__main__":
    main()
