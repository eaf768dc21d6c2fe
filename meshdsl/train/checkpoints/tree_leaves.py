"""What a state is, leaf by leaf: names by tree path, and in words.

A checkpoint is a flat dict from name to array, so it does not depend on how Python classes nest.
"""

from __future__ import annotations

from typing import Any

import jax

from meshdsl.dims import show
from meshdsl.tensor import is_tensor


def named(tree: Any) -> dict[str, Any]:
    """The leaves of `tree` by their path, Tensors whole: `params.blocks.mlp.up`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def arrays(tree: Any) -> dict[str, Any]:
    """The arrays of `tree` by name, random keys as their bits. A Tensor that an optimizer masked out has none."""
    found = {name: jax.tree.leaves(leaf) for name, leaf in named(tree).items()}
    return {name: _bits(leaf[0]) for name, leaf in found.items() if leaf}


def with_arrays(tree: Any, values: dict[str, Any]) -> Any:
    """`tree` with the arrays that `arrays` names so; those that `values` lacks stay."""

    def changed(name: str, leaf: Any) -> Any:
        inner, structure = jax.tree.flatten(leaf)
        if name not in values or not inner:
            return leaf
        value = jax.random.wrap_key_data(values[name]) if is_key(inner[0]) else values[name]
        return jax.tree.unflatten(structure, [value])

    leaves = [changed(name, leaf) for name, leaf in named(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_tensor), leaves)


def described(tree: Any) -> dict[str, dict[str, Any]]:
    """For each leaf of `tree`: what it `is` in words, and of those with an array its dims (of Tensors), shape and dtype."""
    plain = arrays(tree)
    return {name: _described(leaf, plain.get(name)) for name, leaf in named(tree).items()}


def _described(leaf: Any, array: Any) -> dict[str, Any]:
    if array is None:
        return {"is": "nothing"}
    said = (
        leaf.array if is_tensor(leaf) else leaf
    )  # a random key is called one, though its bits are stored
    dims = (
        tuple(leaf.dims)
        if is_tensor(leaf) and tuple(said.shape) == tuple(dim.size for dim in leaf.dims)
        else None
    )
    shown = show(leaf.dims) if is_tensor(leaf) else list(said.shape)
    stored = (
        f"as {list(said.shape)} " if is_tensor(leaf) and dims is None else ""
    )  # a factor in the place of a whole tensor
    return {
        "is": f"{shown} {stored}{said.dtype}",
        "dims": None if dims is None else [[dim.name, dim.size] for dim in dims],
        "shape": list(array.shape),
        "dtype": str(array.dtype),
    }


def first_difference(saved: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]]) -> str:
    """One sentence on the first leaf that is not in both or not equal, of what `described` gave; empty when there is none."""
    for name in [*wanted, *saved]:
        there, here = (side.get(name, {"is": "absent"})["is"] for side in (saved, wanted))
        if there != here:
            return f"`{name}` is {there} there and {here} here"
    return ""


def is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _bits(leaf: Any) -> Any:
    if not is_key(leaf):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        bits = jax.eval_shape(jax.random.key_data, leaf)
        return jax.ShapeDtypeStruct(bits.shape, bits.dtype, sharding=leaf.sharding)
    return jax.random.key_data(leaf)
