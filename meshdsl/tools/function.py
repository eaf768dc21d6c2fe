"""`md.explain` and `md.compile`: what a function of Tensors does on a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered, lower
from meshdsl.machine import Target, find_target
from meshdsl.machine.target import abstract_mesh_on, mesh_on
from meshdsl.mesh import axis_sizes
from meshdsl.predict.compiler.topology import target_devices
from meshdsl.predict.explanation import Explanation
from meshdsl.program.program import Program
from meshdsl.proof.verified import Verified
from meshdsl.tensor import is_tensor, is_value
from meshdsl.tools.analysis import Analysis, Compiled

MeshLike = Mesh | AbstractMesh | Mapping[str, int | str]


def explain(
    fn: Callable,
    *args,
    layout: Layout | None = None,
    target: Target | str | None = None,
    mesh: MeshLike | None = None,
    title: str = "",
    tokens: int = 0,
    flops: float | None = None,
    dims: Iterable[Dim | str] = (),
    optimizer_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Explanation:
    """What one call of `fn(*args)` does on one device, before anything runs.

    It prints as `meshdsl explain` does, and a notebook draws it: every op with its FLOPs, every
    collective with its bytes and the rule that caused it, the memory, and on a `target` the time.

        md.explain(step, params, opt_state, batch, layout=layout, target="v5p:4x4x4")

    Args:
      fn: takes and returns pytrees of Tensors and arrays: a loss, `md.value_and_grad(loss)`, or a
        whole step with its optimizer. Or a function that is lowered, `md.lower(...)`, which is
        explained as it runs; it has a layout and a mesh.
      args: pytrees of Tensors of arrays, or of `ShapeDtypeStruct`s: only shapes matter.
      target: the machine, such as `v5p:4x4x4`, `h100:8x4` or `cpu:8`; without one there are no
        times.
      mesh: instead of that of the layout: a mesh, or sizes such as `{"data": 4, "model": 2}`.
      title: what is explained, in words; by default the name of the function.
      tokens: of one call, on all devices together, for the rate.
      flops: FLOPs of the model in one call, on all devices together, for the MFU. By default those
        of its products are counted, each once, without what is recomputed.
      dims: as in `md.lower`, and so are `optimizer_argnums` and `donate_argnums`.

    Raises:
      MeshDSLError: no argument is a Tensor; the target is unknown, or the mesh does not fit it; and
        what `md.lower` raises. An error of `fn` stays as it is.
    """
    how = how_to_lower(dims, optimizer_argnums, donate_argnums)
    asked = ("explain", fn, args, layout, chosen_target("explain", target), mesh)
    return analysis_of(*asked, title=title, tokens=tokens, flops=flops, how=how).explain()


def compile(
    fn: Callable,
    *args,
    layout: Layout | None = None,
    target: Target | str | None = None,
    mesh: MeshLike | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    title: str = "",
    tokens: int = 0,
    flops: float | None = None,
    dims: Iterable[Dim | str] = (),
    optimizer_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Compiled:
    """What the compiler of a machine makes of `fn(*args)`, and the executable.

    It prints as `meshdsl compile` does: whether it fits, the compiler's memory, the time by its
    schedule, and its collectives, each led back to the op that asked for it. The machine need not
    be at hand: TPU programs are compiled by libtpu, which the extra `meshdsl[tpu]` brings.

    Args:
      fn: as in `md.explain`, and so are all arguments that are not listed here.
      target: the machine; by default the devices of this one, on which `.executable` runs.
      options: of the compiler, by name.

    Returns:
      The report. `.executable` is called with arguments that are split by the layout, as `md.init`
      and `jax.device_put(x, md.shardings(x, layout, mesh))` split them. It is None where the
      program does not fit.

    Raises:
      MeshDSLError: what `md.explain` raises; the compiler is not installed, or refuses the function
        or an option.
    """
    how = how_to_lower(dims, optimizer_argnums, donate_argnums)
    chosen = chosen_target("compile", target)
    if chosen is not None:
        # First: the devices of a cpu target can be made only before JAX computes anything.
        target_devices(chosen)
    asked = ("compile", fn, args, layout, chosen, mesh)
    return analysis_of(*asked, title=title, tokens=tokens, flops=flops, how=how).compile(options)


def verify(
    fn: Callable,
    *args,
    layout: Layout | None = None,
    mesh: MeshLike | None = None,
    dims: Iterable[Dim | str] = (),
) -> Verified:
    """Prove that `fn(*args)` computes under a layout what it computes on one device.

    No array is computed, and no device is needed: two programs are traced and compared term by
    term. `docs/verify.md` says what that proves, and what it takes for granted.

        md.verify(md.value_and_grad(loss), model, batch, layout=layout)

    Args:
      fn: as in `md.explain`, and so are all arguments that are not listed here.
      mesh: instead of that of the layout.

    Returns:
      What is proved. It prints itself; `.proved` says whether everything is.

    Raises:
      MeshDSLError: as `md.explain` does.
    """
    how = how_to_lower(dims, (), ())
    return analysis_of("verify", fn, args, layout, None, mesh, how=how).verify()


def chosen_target(what: str, given: Target | str | None) -> Target | None:
    """The machine that a caller names; `what` is the function, for errors."""
    if isinstance(given, str):
        return find_target(given)
    if given is None or isinstance(given, Target):
        return given
    raise MeshDSLError(f"{what}: `target` is a machine such as 'v5p:4x4x4', not {quote(given)}")


def how_to_lower(dims: Any, optimizer_argnums: Any, donate_argnums: Any) -> dict[str, Any]:
    """Those of the options of `md.lower` that are given, by name."""
    options = {
        "dims": dims,
        "optimizer_argnums": optimizer_argnums,
        "donate_argnums": donate_argnums,
    }
    return {name: value for name, value in options.items() if not isinstance(value, tuple) or value}


class Call:
    """A lowered function with the arguments of one call."""

    def __init__(self, function: Lowered, args: tuple):
        self.function, self.args = function, args

    def program(self) -> Program:
        """The record of the call."""
        return self.function.program(*self.args)

    def reference(self) -> Program:
        """The program of the same call on one device."""
        return self.function.reference(*self.args)

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
    how: Mapping[str, Any],
) -> Analysis:
    """The analysis of `fn(*args)`.

    Args:
      what: who asks, for errors: `explain`.
      fn: a function of Tensors, or one that is lowered, which has its layout and mesh.
      args: of Tensors of arrays or of `ShapeDtypeStruct`s. Their values do not matter.
      target: the machine; without one nothing is known but the number of devices.
      mesh: instead of the layout's, or of that for which `fn` is lowered.
      how: the options of `md.lower` that are given.

    Raises:
      MeshDSLError: no argument is a Tensor; there is no layout, or two; the mesh does not fit the
        target.
    """
    name = fn.name if isinstance(fn, Lowered) else getattr(fn, "__name__", "the function")
    shapes = _shapes(what, name, args)
    if isinstance(fn, Lowered):
        if layout is not None or how:
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
    where = mesh if isinstance(mesh, Mesh) else abstract_mesh_on(target, sizes)
    lowered = fn if isinstance(fn, Lowered) else lower(fn, layout, where, **how)
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
