"""Collective matmul under sequence parallelism, compiled for a TPU without having one.

    python -m benchmarks.collective_matmul --target v5p:4x4x4 --mesh data=16,model=4

The products of two transformer layers, and nothing else: the projections of attention (whose place
is taken by a product of queries, keys and values, element by element) and a gated MLP, bfloat16, of
the widths of llama3-70b by default: forward, recomputed and backward. Between them activations are
split over `model` by their length, so products take all_gather and psum_scatter over `model`:

- plain: before and after the products, with the compiler options of meshdsl;
- ring: in pieces, by `move = "ring"`;
- compiler: in pieces, by the compiler's own options for it.

Where `data` has more than one device, weights are gathered over it (FSDP). The schedule is
replayed.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.machine import Network, find_target
from meshdsl.predict.compiler.options import default_options
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.tensor import Parameter

from .measure import show

LAYERS = md.Dim("layers", 2)
OWN = {
    f"xla_tpu_{name}_collective_matmul_mode": "post_spmd"
    for name in ("all_gather", "reduce_scatter")
}
RING = {"rule": "length -> model", "move": "ring"}
WAYS = {"plain": ("length -> model", {}), "ring": (RING, {}), "compiler": ("length -> model", OWN)}


def layout(rule, sizes: dict[str, int]) -> md.Layout:
    return md.Layout(
        rules=["batch -> data", "kv_heads, d_ff -> model", rule],
        parameters=["d_model -> data"],
        mesh=sizes,
    )


def gradients(given: argparse.Namespace, batch: int):
    """The program, and its arguments in the abstract."""
    rows, length = md.Dim("batch", batch), md.Dim("length", given.length)
    d_model, d_ff = md.Dim("d_model", given.d_model), md.Dim("d_ff", given.d_ff)
    kv_heads, head_dim = md.Dim("kv_heads", given.kv_heads), md.Dim("head_dim", 128)
    group = md.Dim("group", given.d_model // 128 // given.kv_heads)
    queries, keys = (kv_heads, group, head_dim), (kv_heads, head_dim)
    weights = {"q": (d_model, *queries), "k": (d_model, *keys), "v": (d_model, *keys)}
    weights |= {"gate": (d_model, d_ff), "up": (d_model, d_ff)}
    back = {"o": (*queries, d_model), "down": (d_ff, d_model)}

    def parameter(name: str, dims) -> md.Tensor:
        array = jax.ShapeDtypeStruct([LAYERS.size, *[d.size for d in dims]], jnp.float32)
        ins = queries if name == "o" else dims[:1]
        return md.Tensor(array, (LAYERS, *dims), Parameter(tuple(d.name for d in ins)))

    def layer(x, w):
        w = {name: md.cast(t, jnp.bfloat16) for name, t in w.items()}
        q, k, v = (md.dot(x, w[name]) for name in "qkv")
        x = x + md.dot(q * k * v, w["o"])
        x = x * md.rsqrt(md.mean(md.square(x), d_model) + 1.0)
        x = x + md.dot(md.silu(md.dot(x, w["gate"])) * md.dot(x, w["up"]), w["down"])
        return x * md.rsqrt(md.mean(md.square(x), d_model) + 1.0), ()

    def loss(w, x):
        x, _ = md.scan(md.checkpoint(layer), x, w, dim=LAYERS)
        return md.sum(md.cast(x, jnp.float32))

    x = md.Tensor(
        jax.ShapeDtypeStruct((batch, given.length, given.d_model), jnp.bfloat16),
        (rows, length, d_model),
    )
    parameters = {name: parameter(name, dims) for name, dims in (weights | back).items()}
    return lambda w, x: md.value_and_grad(loss)(w, x), (parameters, x)


def row(name: str, given: argparse.Namespace) -> list[str]:
    target = find_target(given.target)
    sizes = {axis: int(size) for axis, size in (part.split("=") for part in given.mesh.split(","))}
    rule, options = WAYS[name]
    mesh = md.make_mesh(sizes, target_devices(target))
    fn, arguments = gradients(given, sizes["data"] * given.rows)
    lowered = md.lower(fn, layout(rule, sizes), mesh)
    start = time.perf_counter()
    traced, _ = lowered.trace_program(*arguments)
    options = default_options(mesh) | options
    compiled = traced.lower().compile(compiler_options={**options})
    taken = time.perf_counter() - start
    text, memory = compiled.as_text(), compiled.memory_analysis()
    if given.save:
        with open(f"{given.save}.{name}.txt", "w", encoding="utf-8") as file:
            file.write(text)
    found = replay(text, target.chip, Network(target, sizes), sizes)
    of = lambda axis: 1e3 * sum(s for axes, s in found.communication.items() if axis in axes)
    exposed = lambda axis: (
        1e3 * sum(ran.exposed for ran in found.collectives if axis in ran.collective.axes)
    )
    return [
        name,
        *(f"{1e3 * t:.2f}" for t in (found.step, found.compute)),
        *(f"{f(axis):.2f}" for axis in ("model", "data") for f in (of, exposed)),
        f"{memory.temp_size_in_bytes / 2**30:.2f}",
        f"{taken:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="v5p:4x4x4")
    parser.add_argument("--mesh", default="data=16,model=4")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rows", type=int, default=1, help="sequences for each device of `data`")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--d_model", type=int, default=8192)
    parser.add_argument("--d_ff", type=int, default=28672)
    parser.add_argument("--kv_heads", type=int, default=8)
    parser.add_argument("--save", help="write compiled programs to files that begin so")
    given = parser.parse_args()
    compile_only()
    head = ["way", "step ms", "compute ms", "`model` on links ms", "exposed ms"]
    rows = [[*head, "`data` on links ms", "exposed ms", "temporaries GiB", "compile s"]]
    for name in given.ways:
        rows.append(row(name, given))
        print("; ".join(rows[-1]), flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
