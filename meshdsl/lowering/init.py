"""`init`: parameters born split, each device making its part of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import Layout
from meshdsl.lowering.shardings import shapes_at, shardings
from meshdsl.mesh import make_mesh
from meshdsl.tensor import is_tensor, is_value


def init(init: Callable, key: Any, layout: Layout, mesh: Mesh | AbstractMesh | None = None) -> Any:
    """What `init(key)` makes, split by `layout`: each device makes its own part of each Tensor.

    No device ever has the whole of what is split, and the values are those of every other layout.

        params = md.init(lambda key: Model.init(key, config), jax.random.key(0), layout)

    Args:
      init: takes the key, and returns a pytree of Tensors and arrays: parameters, a state of
        parameters and what `optimizer.init(params)` gives, or anything else. An array without
        dims is whole on every device.
      key: given to `init`.
      mesh: by default `make_mesh(layout)`. For a mesh without devices the result is one of
        `ShapeDtypeStruct`s with shardings.

    Raises:
      MeshDSLError: the key is no array; `init` makes no Tensors; the layout names an axis that the
        mesh lacks, or splits a dim that does not divide.
    """
    mesh = make_mesh(layout) if mesh is None else mesh
    layout.check_axes(mesh.shape)
    for x in jax.tree.leaves(key, is_leaf=is_tensor):
        if not is_value(x):
            raise MeshDSLError(f"init: the key is one of jax.random.key(seed), not {quote(x)}")
    shapes = jax.eval_shape(init, key)
    if not any(map(is_tensor, jax.tree.leaves(shapes, is_leaf=is_tensor))):
        raise MeshDSLError(
            f"init: `{getattr(init, '__name__', 'init')}` makes no Tensors, but a value "
            f"{quote(shapes)}; give arrays dims with md.parameter(array, dims)"
        )
    split = shardings(shapes, layout, mesh)
    if isinstance(mesh, AbstractMesh):
        return shapes_at(shapes, split)
    return jax.jit(init, out_shardings=split)(key)
