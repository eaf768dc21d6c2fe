"""The leaves of a state by name: their arrays, and descriptions of them that JSON can hold.

A checkpoint is a flat dict from name to array, so it does not depend on how Python classes nest.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.dims import show
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import is_tensor

Leaf = dict[str, Any]
"""The description of one leaf: `is`, and where the leaf has an array `dims`, `shape` and `dtype`.

    {"is": "[d_model=8, d_ff=16] float32", "dims": [["d_model", 8], ["d_ff", 16]],
     "shape": [8, 16], "dtype": "float32"}

`is` says it in words, for messages. `dims` is None for a plain array. In a manifest a leaf that has
an array also has its `digest`. A number of Python's has no array, but its `value`.
"""


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of `tree` by their path, such as `params.blocks.mlp.up`; a Tensor is one leaf.

    A tree that is nothing but a leaf is called `state`.

    Raises:
      MeshDSLError: two leaves have one path, as `{"a.b": x, "a": {"b": y}}` has.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "state"
        if name in found:
            raise MeshDSLError(f"two leaves of the tree are called `{name}`")
        found[name] = leaf
    return found


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a number of Python's, which is saved exactly, beside the arrays."""
    return isinstance(leaf, (bool, int, float))


def named_arrays(tree: Any) -> dict[str, Any]:
    """The arrays of `tree` by name, with random keys as their bits.

    A Tensor whose array an optimizer has masked out is left out, and so are numbers of Python's.
    """
    leaves = {name: leaf for name, leaf in named_leaves(tree).items() if not is_number(leaf)}
    found = {name: jax.tree.leaves(leaf) for name, leaf in leaves.items()}
    return {name: _key_bits(arrays[0]) for name, arrays in found.items() if arrays}


def with_arrays(tree: Any, arrays: dict[str, Any]) -> Any:
    """`tree` with other arrays, named as by `named_arrays`; a leaf without a new array stays.

    A number may be given for a leaf that is one.
    """

    def changed(name: str, leaf: Any) -> Any:
        inner, structure = jax.tree.flatten(leaf)
        if name not in arrays or not inner:
            return leaf
        if is_number(leaf):
            return arrays[name]
        array = arrays[name]
        if is_key(inner[0]):
            array = jax.random.wrap_key_data(array, impl=_key_impl(inner[0]))
        return jax.tree.unflatten(structure, [array])

    leaves = [changed(name, leaf) for name, leaf in named_leaves(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_tensor), leaves)


def describe(tree: Any) -> dict[str, Leaf]:
    """The description of each leaf of `tree` by name."""
    arrays = named_arrays(tree)
    return {name: _describe(leaf, arrays.get(name)) for name, leaf in named_leaves(tree).items()}


def numbers_in(leaves: dict[str, Leaf]) -> dict[str, Any]:
    """The values of the leaves that are numbers, by name."""
    return {name: leaf["value"] for name, leaf in leaves.items() if "value" in leaf}


def _describe(leaf: Any, array: Any) -> Leaf:
    if is_number(leaf):
        return {"is": f"a number ({type(leaf).__name__})", "value": leaf}
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


def _key_impl(array: Any) -> Any:
    """The implementation of random keys, concrete or abstract."""
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), array)
    return found[0]


def _key_bits(array: Any) -> Any:
    """The bits of random keys; any other array as it is."""
    if not is_key(array):
        return array
    if isinstance(array, jax.ShapeDtypeStruct):
        bits = jax.eval_shape(jax.random.key_data, array)
        return jax.ShapeDtypeStruct(bits.shape, bits.dtype, sharding=array.sharding)
    return jax.random.key_data(array)
