"""The leaves of a state by name: their arrays, and descriptions of them that JSON can hold.

A checkpoint is a flat dict from name to array, so it does not depend on how Python classes nest.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.dims import show
from meshdsl.tensor import is_tensor

Leaf = dict[str, Any]
"""The description of one leaf: `is`, and where the leaf has an array `dims`, `shape` and `dtype`.

    {"is": "[d_model=8, d_ff=16] float32", "dims": [["d_model", 8], ["d_ff", 16]],
     "shape": [8, 16], "dtype": "float32"}

`is` says it in words, for messages. `dims` is None for a plain array. In a manifest a leaf that has
an array also has its `digest`.
"""


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of `tree` by their path, such as `params.blocks.mlp.up`; a Tensor is one leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def named_arrays(tree: Any) -> dict[str, Any]:
    """The arrays of `tree` by name, with random keys as their bits.

    A Tensor whose array an optimizer has masked out is left out.
    """
    found = {name: jax.tree.leaves(leaf) for name, leaf in named_leaves(tree).items()}
    return {name: _key_bits(arrays[0]) for name, arrays in found.items() if arrays}


def with_arrays(tree: Any, arrays: dict[str, Any]) -> Any:
    """`tree` with other arrays, named as by `named_arrays`; a leaf without a new array stays."""

    def changed(name: str, leaf: Any) -> Any:
        inner, structure = jax.tree.flatten(leaf)
        if name not in arrays or not inner:
            return leaf
        array = jax.random.wrap_key_data(arrays[name]) if is_key(inner[0]) else arrays[name]
        return jax.tree.unflatten(structure, [array])

    leaves = [changed(name, leaf) for name, leaf in named_leaves(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_tensor), leaves)


def describe(tree: Any) -> dict[str, Leaf]:
    """The description of each leaf of `tree` by name."""
    arrays = named_arrays(tree)
    return {name: _describe(leaf, arrays.get(name)) for name, leaf in named_leaves(tree).items()}


def _describe(leaf: Any, array: Any) -> Leaf:
    if array is None:
        return {"is": "nothing"}
    # In words a random key is a key, though its bits are what is saved.
    shown_array = leaf.array if is_tensor(leaf) else leaf
    shown, dims = list(shown_array.shape), None
    if is_tensor(leaf):
        shown = show(leaf.dims)
        if tuple(shown_array.shape) == tuple(dim.size for dim in leaf.dims):
            dims = [[dim.name, dim.size] for dim in leaf.dims]
        else:  # an optimizer, such as adafactor, keeps a factor under the dims of the parameter
            shown = f"{shown} as {list(shown_array.shape)}"
    return {
        "is": f"{shown} {shown_array.dtype}",
        "dims": dims,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
    }


def first_difference(saved: dict[str, Leaf], wanted: dict[str, Leaf]) -> str:
    """One sentence on the first leaf that differs or is on one side only; empty if none does.

    For example "`params.up` is [d_model=8] float32 there and absent here": `there` is what was
    saved, `here` what is wanted.
    """
    for name in [*wanted, *saved]:
        there, here = (side.get(name, {"is": "absent"})["is"] for side in (saved, wanted))
        if there != here:
            return f"`{name}` is {there} there and {here} here"
    return ""


def is_key(array: Any) -> bool:
    """Whether an array, concrete or abstract, is one of random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _key_bits(array: Any) -> Any:
    """The bits of random keys; any other array as it is."""
    if not is_key(array):
        return array
    if isinstance(array, jax.ShapeDtypeStruct):
        bits = jax.eval_shape(jax.random.key_data, array)
        return jax.ShapeDtypeStruct(bits.shape, bits.dtype, sharding=array.sharding)
    return jax.random.key_data(array)
