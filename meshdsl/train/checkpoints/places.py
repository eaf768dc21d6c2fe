"""Where the arrays of a tree lie, and where those that are read for it shall lie.

A checkpoint is of arrays that lie on the devices of one mesh. An array that has no place on it,
such as one of NumPy or a counter on the first device, is put whole on each device of the mesh, and
comes back as what it was.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import Layout
from meshdsl.lowering.shardings import shardings
from meshdsl.mesh import make_mesh
from meshdsl.tensor import is_value
from meshdsl.train.checkpoints.tree_leaves import is_number, named_leaves


def on_devices(tree: Any) -> Any:
    """`tree` with every array on the devices of one mesh; numbers stay as they are.

    Raises:
      MeshDSLError: a leaf is nothing that a checkpoint holds, or lies on the devices of another
        mesh.
    """
    _check_leaves(tree)
    everywhere = _everywhere(tree)
    devices = everywhere.device_set

    def placed(leaf: Any) -> Any:
        if is_number(leaf):
            return leaf
        if isinstance(leaf, jax.Array) and leaf.sharding.device_set == devices:
            return leaf
        return jax.device_put(leaf, everywhere)

    return jax.tree.map(placed, tree)


def as_wanted(like: Any, layout: Layout | None = None, mesh: Mesh | None = None) -> Any:
    """`like` with a `ShapeDtypeStruct` with a sharding for each array.

    Args:
      layout: how Tensors are split; by default as those of `like` are.
      mesh: of the layout; by default `make_mesh(layout)`.

    Raises:
      MeshDSLError: a leaf is nothing that a checkpoint holds, or a Tensor does not fit the layout.
    """
    _check_leaves(like)
    if layout is not None:
        mesh = make_mesh(layout) if mesh is None else mesh
        arrays = jax.tree.map(lambda x: 0 if is_number(x) else x, like)
        split = shardings(arrays, layout, mesh)
        return jax.tree.map(lambda x, at: x if is_number(x) else _shape(x, at), like, split)
    everywhere = _everywhere(like)

    def wanted(leaf: Any) -> Any:
        if is_number(leaf):
            return leaf
        sharding = getattr(leaf, "sharding", None)
        known = sharding is not None and sharding.device_set == everywhere.device_set
        return _shape(leaf, sharding if known else everywhere)

    return jax.tree.map(wanted, like)


def as_before(like: Any, tree: Any) -> Any:
    """`tree` with NumPy's arrays where `like` has them, and numbers of the classes that it has."""

    def before(x: Any, y: Any) -> Any:
        if is_number(x):
            return type(x)(y)  # a class of one's own, such as an IntEnum, is a number too
        return np.asarray(y) if isinstance(x, (np.ndarray, np.generic)) else y

    return jax.tree.map(before, like, tree)


def zeros_as(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros of the shape, dtype and sharding of `like`."""
    make = jax.jit(lambda: jnp.zeros(like.shape, like.dtype), out_shardings=like.sharding)
    return make()


def _shape(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _everywhere(tree: Any) -> NamedSharding | SingleDeviceSharding:
    """The sharding of what is whole on each device of the mesh that `tree` lies on.

    Where it lies on none it is that of the first device.
    """
    found: dict[str, Mesh] = {}
    for name, leaf in named_leaves(tree).items():
        for array in jax.tree.leaves(leaf):
            sharding = getattr(array, "sharding", None)
            if not isinstance(sharding, NamedSharding):
                continue
            if isinstance(sharding.mesh, AbstractMesh):
                raise MeshDSLError(
                    f"`{name}` lies on a mesh without devices; give it the shardings of a mesh "
                    "that has some, or a `layout` to restore under"
                )
            found[name] = sharding.mesh
    names = list(found)
    for name in names[1:]:
        if set(found[name].devices.flat) != set(found[names[0]].devices.flat):
            raise MeshDSLError(
                f"`{name}` and `{names[0]}` lie on different devices; a checkpoint is of arrays on "
                "one mesh"
            )
    if names:
        return NamedSharding(found[names[0]], PartitionSpec())
    if jax.process_count() > 1:
        raise MeshDSLError(
            "no array lies on a mesh; in a run of several processes each has a NamedSharding over "
            "the devices of all of them, as md.init gives"
        )
    return SingleDeviceSharding(jax.local_devices()[0])


def _check_leaves(tree: Any) -> None:
    """Raise a MeshDSLError for a leaf that is neither a number nor an array that can be saved."""
    for name, leaf in named_leaves(tree).items():
        for x in jax.tree.leaves(leaf):
            if is_number(x):
                continue
            if not (is_value(x) or isinstance(x, jax.ShapeDtypeStruct)):
                raise MeshDSLError(
                    f"`{name}` is {quote(x)}; a checkpoint holds Tensors, arrays and numbers, and "
                    "as its `data` anything that JSON can hold"
                )
            dtype = x.dtype
            if isinstance(x, (np.ndarray, np.generic)) and dtype != jnp.result_type(x):
                raise MeshDSLError(
                    f"`{name}` is {dtype}, which JAX makes {jnp.result_type(x)} of; cast it, or "
                    "turn jax_enable_x64 on"
                )
            if "int4" in str(dtype) or "int2" in str(dtype) or "float4" in str(dtype):
                raise MeshDSLError(
                    f"`{name}` is {dtype}; checkpoints hold no dtype of less than 8 bits"
                )
