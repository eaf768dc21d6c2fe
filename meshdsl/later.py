"""Parts of the package that are imported when they are first used.

A program that trains draws no page and estimates no time, so it should start without the modules
that do. Where something below needs one of them after all, as `md.show` and a program in a notebook
do, it asks `imported` for it. Nowhere else in the package is anything imported while it runs, but
for optional packages such as matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jax.sharding import AbstractMesh, Mesh

from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.tensor import Tensor

if TYPE_CHECKING:
    from meshdsl.analysis.from_python import Comparison
    from meshdsl.analysis.function import Compiled
    from meshdsl.estimate.explanation import Explanation
    from meshdsl.machine import Target
    from meshdsl.report.show import Shown
else:
    # The annotations below are evaluated when public functions are held to theirs.
    Comparison = Compiled = Explanation = Target = Shown = Any

MeshLike = Mesh | AbstractMesh | Mapping[str, int | str]


def imported(module: str, name: str) -> Any:
    """What is called `name` in `module`, which is imported if it has not been yet.

    For example `imported("meshdsl.report.explain", "explain")`.
    """
    return getattr(import_module(module), name)


def show(tensor: Tensor, name: str = "Tensor") -> Shown:
    """How `tensor` is split: its dims with their axes and sizes, and which device holds which part.

    Args:
      tensor: outside of a lowering one with a sharded array, or with a `ShapeDtypeStruct` that has
        a `NamedSharding`; inside of a lowering it is shown as it is split there.
      name: what to call it.

    Raises:
      MeshDSLError: it is no Tensor, or it holds neither an array nor a shape.
    """
    return imported("meshdsl.report.show", "show")(tensor, name)


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
    explained = imported("meshdsl.analysis.from_python", "explain")
    return explained(
        fn,
        *args,
        layout=layout,
        target=target,
        mesh=mesh,
        title=title,
        tokens=tokens,
        flops=flops,
        dims=dims,
        optimizer_argnums=optimizer_argnums,
        donate_argnums=donate_argnums,
    )


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
    compiled = imported("meshdsl.analysis.from_python", "compile")
    return compiled(
        fn,
        *args,
        layout=layout,
        target=target,
        mesh=mesh,
        options=options,
        title=title,
        tokens=tokens,
        flops=flops,
        dims=dims,
        optimizer_argnums=optimizer_argnums,
        donate_argnums=donate_argnums,
    )


def compare(
    fn: Callable,
    *args,
    layouts: Sequence[Layout] | Mapping[str, Layout],
    target: Target | str,
    meshes: Sequence[MeshLike] = (),
    compiled: int = 0,
    tokens: int = 0,
    flops: float | None = None,
    dims: Iterable[Dim | str] = (),
    optimizer_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Comparison:
    """Layouts and meshes side by side for `fn(*args)` on one machine, the best first.

    It prints the table of `meshdsl compare`. A layout that cannot be used for the function, or on
    the machine, has a row that says why.

    Args:
      fn: as in `md.explain`, and so are all arguments that are not listed here; not lowered.
      layouts: a list of them, or a dict by the names that they have in the table.
      meshes: to try with each layout, instead of the layout's own.
      compiled: how many of the best to compile too.

    Raises:
      MeshDSLError: what is wrong under every layout, such as an unknown target.
    """
    compared = imported("meshdsl.analysis.from_python", "compare")
    return compared(
        fn,
        *args,
        layouts=layouts,
        target=target,
        meshes=meshes,
        compiled=compiled,
        tokens=tokens,
        flops=flops,
        dims=dims,
        optimizer_argnums=optimizer_argnums,
        donate_argnums=donate_argnums,
    )
