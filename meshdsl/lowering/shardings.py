"""Where arrays lie outside of a lowering: the JAX shardings that the law gives."""

from __future__ import annotations

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from meshdsl.dims import Dims
from meshdsl.layout import Layout
from meshdsl.lowering.scope import Scope
from meshdsl.program.optimizer_state import in_optimizer_state
from meshdsl.rules import LEVELS, check_word
from meshdsl.splits.changes import Split
from meshdsl.tensor import Tensor, is_tensor


def partition_spec(split: Split) -> PartitionSpec:
    return PartitionSpec(*(axes if axes else None for axes in split))


def level_of(x: Tensor) -> str:
    return "rules" if x.role is None else "parameters"


def levels_of(tree, optimizer: bool = False) -> list[str]:
    """For each leaf of `tree` (a Tensor is one) the level of its rules; none for a plain array.

    Args:
      optimizer: whether all of it is the state of an optimizer; by default that is found out.
    """
    leaves = jax.tree.leaves(tree, is_leaf=is_tensor)
    states = [True] * len(leaves) if optimizer else in_optimizer_state(tree)
    return [
        "" if not is_tensor(x) else "optimizer" if is_state else level_of(x)
        for x, is_state in zip(leaves, states, strict=True)
    ]


def shapes_at(tree, places):
    """`tree` with a `ShapeDtypeStruct` for each array, which has its sharding in `places`."""
    shape = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return jax.tree.map(shape, tree, places)


def shardings(tree, layout: Layout, mesh: Mesh | AbstractMesh, level: str | None = None):
    """The sharding of every Tensor in `tree` by the law: the same tree with NamedShardings.

    Args:
      tree: Tensors (of arrays or `ShapeDtypeStruct`s) and other leaves, which are replicated.
      level: "rules", "parameters" or "optimizer"; by default what each Tensor is: a parameter, what
        an optimizer of optax keeps, or a value.
    """
    if level is not None:
        check_word("shardings", "level", level, LEVELS)
    scope = Scope(layout, mesh.shape, "shardings")

    def sharding(leaf, own_level):
        if not is_tensor(leaf):
            return NamedSharding(mesh, PartitionSpec())
        if not jax.tree.leaves(leaf):
            return leaf  # optax masked it out: nothing to place
        split = scope.at_rest(leaf.dims, level or own_level)
        split = _of_shape(leaf.dims, split, getattr(leaf.array, "shape", ()))
        return Tensor(NamedSharding(mesh, partition_spec(split)), leaf.dims, leaf.role)

    leaves, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    return jax.tree.unflatten(structure, map(sharding, leaves, levels_of(tree)))


def _of_shape(dims: Dims, split, shape):
    """The split of an array that optax derived from a parameter, by the dims that are left of it.

    adafactor keeps one number per row or per column of a matrix. Where the shape does not tell
    which dims are left, the array is replicated.
    """
    if len(shape) == len(dims) and all(n in (d.size, 1) for n, d in zip(shape, dims, strict=True)):
        return tuple(
            axes if n == d.size else () for n, d, axes in zip(shape, dims, split, strict=True)
        )
    kept = [
        i
        for i in range(len(dims))
        if tuple(d.size for d in dims[:i] + dims[i + 1 :]) == tuple(shape)
    ]
    return split[: kept[0]] + split[kept[0] + 1 :] if len(kept) == 1 else ((),) * len(shape)
