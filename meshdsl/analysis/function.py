"""A function of Tensors with its arguments, under one layout on one mesh.

A `FunctionAnalysis` says what one call of it comes to: as estimated from its record, or as compiled
for a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from meshdsl.analysis.machine import mesh_on, target_at_hand
from meshdsl.compiled.compile import compile_for
from meshdsl.compiled.options import default_options
from meshdsl.compiled.report import CompiledReport
from meshdsl.compiled.topology import target_devices
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.estimate.explanation import Explanation
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered, lower
from meshdsl.machine import Target
from meshdsl.mesh import abstract_mesh, axis_sizes, make_mesh
from meshdsl.record.program import Program
from meshdsl.report import explain
from meshdsl.report.compiled_text import describe
from meshdsl.report.page.document import program_html
from meshdsl.tensor import is_tensor, is_value

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


@dataclass(frozen=True, repr=False)
class Compiled(CompiledReport):
    """What a compiler made of a function: a `CompiledReport` that prints and draws itself.

    Attributes:
      executable: JAX's compiled program; None where it does not fit. Where the devices are at hand
        it can be called, with arguments that are split by the layout. It takes no others.
      explanation: of the same call, as estimated.
    """

    executable: Any = field(default=None, compare=False)
    explanation: Explanation | None = field(default=None, compare=False)

    @property
    def report(self) -> CompiledReport:
        """The report alone, as plain data."""
        return CompiledReport(**{f.name: getattr(self, f.name) for f in fields(CompiledReport)})

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return self.report.to_dict()

    def __str__(self) -> str:
        return describe(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        assert self.explanation is not None
        return program_html(self.explained(self.explanation))


@dataclass(frozen=True)
class FunctionAnalysis:
    """A function with its arguments, under one layout on one mesh.

    Attributes:
      lowered: the function, lowered for a mesh with the axes of `sizes`, maybe without devices.
      args: of one call, as `ShapeDtypeStruct`s.
      sizes: of the mesh axes.
      target: the machine; None where nothing is known but the number of devices.
      title: what the explanation is headed with.
      tokens: of one call, on all devices together; 0 where that says nothing.
      flops: of the model in one call, on all devices together; None: they are counted.
    """

    lowered: Lowered
    args: tuple
    sizes: Mapping[str, int]
    target: Target | None
    title: str
    tokens: int = 0
    flops: float | None = None

    def explain(self) -> Explanation:
        """One call as estimated from its record, without a compiler."""
        return self._explain(self.lowered.program(*self.args))

    def _explain(self, program: Program) -> Explanation:
        each = None if self.flops is None else self.flops / math.prod(self.sizes.values())
        return explain(
            program,
            title=self.title,
            target=self.target,
            units=self.tokens,
            model_flops=None if each is None else (each, each),
            count_flops=True,
        )

    def compile(self, given: Mapping[str, str] = MappingProxyType({})) -> Compiled:
        """Compile the function for the target; without one, for the devices of the mesh.

        Args:
          given: options of the compiler, beside those that are used by default.

        Raises:
          MeshDSLError: the compiler is not installed, or refuses the function or an option; there
            are fewer devices than the mesh needs.
        """
        if self.target is not None:
            mesh = make_mesh(dict(self.sizes), target_devices(self.target))
        elif isinstance(self.lowered.mesh, Mesh):
            mesh = self.lowered.mesh
        else:
            mesh = make_mesh(dict(self.sizes))
        target = self.target or target_at_hand(list(mesh.devices.flat))
        lowered = self.lowered if self.lowered.mesh is mesh else self.lowered.on(mesh)
        program = lowered.program(*self.args)
        explanation = replace(self, target=target)._explain(program)
        time = explanation.time
        report, executable = compile_for(
            lowered.lower(*lowered.shapes(*self.args)),
            program,
            target,
            explanation,
            options=default_options(mesh, target.chip) | dict(given),
            given=tuple(given),
            model_flops=(time.model_flops, time.model_flops_full) if time else None,
        )
        known = {f.name: getattr(report, f.name) for f in fields(report)}
        return Compiled(**known, executable=executable, explanation=explanation)


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
) -> FunctionAnalysis:
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
    if not isinstance(fn, Lowered):
        lowered = lower(
            fn,
            layout,
            where,
            dims=how.dims,
            optimizer_argnums=how.optimizer_argnums,
            donate_argnums=how.donate_argnums,
        )
    else:
        lowered = fn if where is fn.mesh else fn.on(where)
    return FunctionAnalysis(lowered, shapes, sizes, target, title or name, tokens, flops)


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
