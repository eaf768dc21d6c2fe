"""The analysis of a function of Tensors with its arguments, under one layout on one mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered, lower
from meshdsl.machine import Target
from meshdsl.machine.at_hand import mesh_on
from meshdsl.mesh import abstract_mesh, axis_sizes
from meshdsl.program.program import Program
from meshdsl.tensor import is_tensor, is_value
from meshdsl.tools.analysis import Analysis

MeshLike = Mesh | AbstractMesh | Mapping[str, int | str]


@dataclass(frozen=True)
class HowToLower:
    """The options of `md.lower`, see there."""

    dims: Iterable[Dim | str] = ()
    optimizer_argnums: int | Iterable[int] = ()
    donate_argnums: int | Iterable[int] = ()

    @property
    def given(self) -> bool:
        """Whether there is any."""
        options = (self.dims, self.optimizer_argnums, self.donate_argnums)
        return any(not isinstance(option, tuple) or option for option in options)


class Call:
    """A lowered function with the arguments of one call."""

    def __init__(self, function: Lowered, args: tuple):
        self.function, self.args = function, args

    def program(self) -> Program:
        """The record of the call."""
        return self.function.program(*self.args)

    @property
    def lowered(self) -> jax.stages.Lowered:
        """The call, ready to be compiled."""
        return self.function.lower(*self.function.shapes(*self.args))


def analysis_of(
    what: str,
    fn: Callable,
    args: tuple,
    layout: Layout | None,
    target: Target | None,
    mesh: MeshLike | None,
    *,
    title: str = "",
    tokens: int = 0,
    flops: float | None = None,
    how: HowToLower,
) -> Analysis:
    """The analysis of `fn(*args)`.

    Args:
      what: who asks, for errors: `explain`.
      fn: a function of Tensors, or one that is lowered, which has its layout and mesh.
      args: of Tensors of arrays or of `ShapeDtypeStruct`s. Their values do not matter.
      target: the machine; without one nothing is known but the number of devices.
      mesh: instead of the layout's, or of that for which `fn` is lowered.

    Raises:
      MeshDSLError: no argument is a Tensor; there is no layout, or two; the mesh does not fit the
        target.
    """
    name = fn.name if isinstance(fn, Lowered) else getattr(fn, "__name__", "the function")
    shapes = _shapes(what, name, args)
    if isinstance(fn, Lowered):
        if layout is not None or how.given:
            raise MeshDSLError(
                f"{what}: `{name}` is lowered already, by {fn.layout.name}; its layout and how it "
                "is lowered are given to md.lower"
            )
        layout, mesh = fn.layout, fn.mesh if mesh is None else mesh
    if layout is None:
        raise MeshDSLError(
            f"{what}: `layout` says how `{name}` is split; make one with "
            "md.Layout(rules, mesh={...}), or read one with md.Layout.load(file)"
        )
    layout, sizes = _mesh(layout, mesh, target)
    platform = target.chip.kind if target else None
    where = mesh if isinstance(mesh, Mesh) else abstract_mesh(sizes, platform)
    if isinstance(fn, Lowered):
        lowered = fn
    else:
        lowered = lower(
            fn,
            layout,
            where,
            dims=how.dims,
            optimizer_argnums=how.optimizer_argnums,
            donate_argnums=how.donate_argnums,
        )
    each = None if flops is None else flops / math.prod(sizes.values())
    return Analysis(
        lambda on: Call(lowered if on is lowered.mesh else lowered.on(on), shapes),
        where,
        sizes,
        target,
        title or name,
        tokens,
        model_flops=None if each is None else (each, each),
    )


def _mesh(
    layout: Layout, mesh: MeshLike | None, target: Target | None
) -> tuple[Layout, dict[str, int]]:
    """The layout with the mesh that is asked for, and the sizes of its axes."""
    if isinstance(mesh, (Mesh, AbstractMesh)):
        # An abstract mesh has at least one axis, though the layout may have none.
        asked: Mapping[str, int | str] | None = {
            axis: size for axis, size in mesh.shape.items() if size > 1 or axis in layout.mesh
        }
    elif mesh is None or isinstance(mesh, Mapping):
        asked = mesh
    else:
        raise MeshDSLError(
            "`mesh` is a mesh, or the sizes of its axes such as {'data': 4, 'model': 2}, not "
            f"{quote(mesh)}"
        )
    if asked is not None:
        layout = layout.with_mesh(asked)
    layout.check_axes(layout.mesh)
    if target is not None:
        return layout, mesh_on(target, layout)
    rest = "rest" in layout.mesh.values()
    count = math.prod(n for n in layout.mesh.values() if isinstance(n, int))
    return layout, axis_sizes(layout.mesh, len(jax.devices()) if rest else count, layout.name)


def _shapes(what: str, name: str, args: tuple) -> tuple:
    """The arguments without their data, wherever it lies.

    Raises:
      MeshDSLError: none of them is a Tensor.
    """
    tensors = [x for x in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(x)]
    if any(x.placement is not None for x in tensors):
        raise MeshDSLError(f"{what}: is called inside of a lowering; call it from outside")
    if not tensors:
        given = "no arguments are given" if not args else "no argument is a Tensor"
        raise MeshDSLError(
            f"{what}: {given}, so nothing of `{name}` can be split; give arrays dims with "
            "md.tensor(array, dims), where a jax.ShapeDtypeStruct will do for an array"
        )

    def shape(x: Any) -> Any:
        if isinstance(x, (bool, int, float, complex)) or not (
            is_value(x) or isinstance(x, jax.ShapeDtypeStruct)
        ):
            return x  # a number, or what the lowering refuses
        return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))

    return jax.tree.map(shape, args)
