"""What a run prints before its first step: everything that the layout decided.

The mesh, how each parameter is split, which collectives one step runs, and what a device holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from meshdsl.figures import byte_words
from meshdsl.layout import Layout
from meshdsl.record.collective import Collective, summary
from meshdsl.tensor import axes_of, notation
from meshdsl.train.checkpoints import named_leaves


def describe(
    layout: Layout,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    state: Any,
    collectives: Iterable[Collective],
) -> str:
    """The report on a run.

    Args:
      state: its `params` and `opt_state`, arrays or `ShapeDtypeStruct`s with shardings.
      collectives: those of one step.
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
            "",
            *memory_lines(state),
        ]
    )


def mesh_words(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> str:
    """`data=4 model=2 on 8 cpu devices`; without the kind for a mesh that has no devices."""
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    kind = f"{mesh.devices.flat[0].device_kind} " if isinstance(mesh, jax.sharding.Mesh) else ""
    plural = "s" if mesh.size > 1 else ""
    return f"{axes or 'without axes'} on {mesh.size} {kind}device{plural}"


def parameter_lines(params: Any) -> Iterator[str]:
    """`blocks.mlp.up[layers, d_model_data, d_ff_model]`, with its sizes and dtype."""
    shown = {
        name + notation(tensor.dims, axes_of(tensor)): tensor
        for name, tensor in named_leaves(params).items()
    }
    width = max(map(len, shown))
    for text, tensor in shown.items():
        sizes = " x ".join(str(dim.size) for dim in tensor.dims)
        yield f"  {text:{width}}  {sizes}  {tensor.dtype}"


def collective_lines(collectives: Iterable[Collective]) -> Iterator[str]:
    """One line for each operation and axes: how often it runs, and the bytes that a device moves in all of them."""
    totals = summary(collectives)
    if not totals:
        yield "  none"
    for (operation, axes), (count, size) in totals.items():
        yield f"  {operation:14}{', '.join(axes):16}{count:>6} times  {byte_words(size):>10}"


def memory_lines(state: Any) -> Iterator[str]:
    """Sizes of parameters and optimizer state, whole and on one device."""
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    yield f"{count:,} parameters"
    for what, tree in (("parameters", state.params), ("optimizer state", state.opt_state)):
        yield f"  {what:16}{byte_words(device_bytes(tree)):>10} per device, {byte_words(whole_bytes(tree))} in all"


def whole_bytes(tree: Any) -> int:
    """Bytes of the arrays of `tree`, each counted once."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def device_bytes(tree: Any) -> int:
    """Bytes of the arrays of `tree` that one device holds."""
    leaves = jax.tree.leaves(tree)
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves
    )
