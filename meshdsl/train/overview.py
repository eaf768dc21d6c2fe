"""The overview that a run prints before its first step: everything that the layout decided.

The mesh, how each parameter is split, which collectives one step runs, and how many bytes a device
has of parameters and optimizer state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from meshdsl.figures import byte_words
from meshdsl.layout import Layout
from meshdsl.program.collective import Collective, summary
from meshdsl.tensor import axes_of, notation
from meshdsl.train.checkpoints import named_leaves


def describe(
    layout: Layout,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    state: Any,
    collectives: Iterable[Collective],
    exchange: Iterable[str] = (),
) -> str:
    """The overview of a run, in lines.

    Args:
      state: of the run, with arrays or `ShapeDtypeStruct`s with shardings in `params` and
        `opt_state`.
      collectives: those of one step.
      exchange: lines on what workers exchange.
    """
    return "\n".join(
        [
            f"{layout.name}, mesh {mesh_words(mesh)}",
            "",
            "parameters",
            *parameter_lines(state.params),
            "",
            "collectives of one step",
            *collective_lines(collectives),
            *exchange,
            "",
            *memory_lines(state),
        ]
    )


def mesh_words(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> str:
    """The mesh in words: `data=4 model=2 on 8 cpu devices`.

    A mesh without devices has no kind: `data=4 model=2 on 8 devices`.
    """
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    kind = f"{mesh.devices.flat[0].device_kind} " if isinstance(mesh, jax.sharding.Mesh) else ""
    plural = "s" if mesh.size > 1 else ""
    return f"{axes or 'without axes'} on {mesh.size} {kind}device{plural}"


def parameter_lines(params: Any) -> Iterator[str]:
    """One line for each parameter: its name, dims and split, then its sizes and dtype.

    For example `blocks.mlp.up[layers, d_model_data, d_ff_model]  2 x 64 x 256  float32`.
    """
    shown = {
        name + notation(tensor.dims, axes_of(tensor)): tensor
        for name, tensor in named_leaves(params).items()
    }
    width = max(map(len, shown))
    for text, tensor in shown.items():
        sizes = " x ".join(str(dim.size) for dim in tensor.dims)
        yield f"  {text:{width}}  {sizes}  {tensor.dtype}"


def collective_lines(collectives: Iterable[Collective]) -> Iterator[str]:
    """One line for each kind of collective and its axes: how often it runs, and its bytes.

    The bytes are those that one device moves, all runs together.
    """
    totals = summary(collectives)
    if not totals:
        yield "  none"
    for (operation, axes), (count, size) in totals.items():
        yield f"  {operation:14}{', '.join(axes):16}{count:>6} times  {byte_words(size):>10}"


def memory_lines(state: Any) -> Iterator[str]:
    """The number of parameters, and the bytes of parameters and optimizer state."""
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    yield f"{count:,} parameters"
    kinds = [("parameters", state.params), ("optimizer state", state.opt_state)]
    if state.adapters:
        kinds.insert(1, ("adapters", state.adapters))
    if state.workers is not None:
        kinds.append(("of workers", state.workers))
    for what, tree in kinds:
        part, whole = byte_words(device_bytes(tree)), byte_words(whole_bytes(tree))
        yield f"  {what:16}{part:>10} per device, {whole} in all"


def whole_bytes(tree: Any) -> int:
    """Bytes of the arrays of `tree`, each counted once however many devices have copies of it."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def device_bytes(tree: Any) -> int:
    """Bytes that one device has of the arrays of `tree`."""
    leaves = jax.tree.leaves(tree)
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves
    )
