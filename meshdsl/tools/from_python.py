"""`md.explain`, `md.compile` and `md.compare`: the tools for any function of Tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote, whole_number
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered
from meshdsl.machine import Target, find_target
from meshdsl.predict.compiler.topology import target_devices
from meshdsl.predict.explanation import Explanation
from meshdsl.tools.analysis import Analysis, Compiled
from meshdsl.tools.compare import Row, table
from meshdsl.tools.function import HowToLower, MeshLike, analysis_of
from meshdsl.tools.side_by_side import Case, side_by_side


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
    how = HowToLower(dims, optimizer_argnums, donate_argnums)
    chosen = chosen_target("explain", target)
    return analysis_of(
        *("explain", fn, args, layout, chosen, mesh),
        title=title,
        tokens=tokens,
        flops=flops,
        how=how,
    ).explain()


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
    how = HowToLower(dims, optimizer_argnums, donate_argnums)
    chosen = chosen_target("compile", target)
    if chosen is not None:
        # First: the devices of a cpu target can be made only before JAX computes anything.
        target_devices(chosen)
    return analysis_of(
        *("compile", fn, args, layout, chosen, mesh),
        title=title,
        tokens=tokens,
        flops=flops,
        how=how,
    ).compile(options)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Layouts side by side, a row for each and the best first; it prints itself as a table.

    Attributes:
      rows: those that fit by their step time, then those that don't, then those that cannot be
        used, each of which says why.
    """

    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        return table(self.rows)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(table(self.rows))}</pre>"

    def to_dict(self) -> list[dict[str, Any]]:
        """The rows as dicts, as `meshdsl compare --json` prints them."""
        return [row.to_dict() for row in self.rows]


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
    chosen = chosen_target("compare", target)
    if isinstance(fn, Lowered):
        raise MeshDSLError(
            f"compare: `{fn.name}` is lowered already, by {fn.layout.name}; give the function "
            "itself, which is lowered by each layout"
        )
    how = HowToLower(dims, optimizer_argnums, donate_argnums)
    compiled = whole_number("compare: `compiled`", compiled, 0)
    if compiled and chosen is not None:
        target_devices(chosen)

    def case(name: str, layout: Layout, mesh: MeshLike | None) -> Case:
        def analyse() -> Analysis:
            return analysis_of(
                *("compare", fn, args, layout, chosen, mesh), tokens=tokens, flops=flops, how=how
            )

        return Case(name, _mesh_words(mesh), analyse)

    named = _named(layouts)
    rows = side_by_side(
        [case(name, layout, mesh) for name, layout in named for mesh in meshes or (None,)],
        compiled,
    )
    errors = {row.error for row in rows}
    if len(errors) == 1 and (error := errors.pop()):
        # What is wrong under every layout is one error, not a table of them.
        raise MeshDSLError(error)
    return Comparison(tuple(rows))


def chosen_target(what: str, given: Target | str | None) -> Target | None:
    """The machine that a caller names; `what` is the function, for errors."""
    if isinstance(given, str):
        return find_target(given)
    if given is None or isinstance(given, Target):
        return given
    raise MeshDSLError(f"{what}: `target` is a machine such as 'v5p:4x4x4', not {quote(given)}")


def _named(layouts: Sequence[Layout] | Mapping[str, Layout]) -> list[tuple[str, Layout]]:
    """The layouts with the names that they have in the table."""
    if isinstance(layouts, Mapping):
        found = [(str(name), layout) for name, layout in layouts.items()]
    else:
        names = [_short_name(layout) for layout in layouts]
        found = [
            (f"{name} {i}" if names.count(name) > 1 else name, layout)
            for i, (name, layout) in enumerate(zip(names, layouts, strict=True), 1)
        ]
    if not found:
        raise MeshDSLError("compare: `layouts` has no layout in it")
    for _, layout in found:
        if not isinstance(layout, Layout):
            raise MeshDSLError(
                f"compare: each of `layouts` is a Layout, not {quote(layout)}; read one with "
                "md.Layout.load(file)"
            )
    return found


def _short_name(layout: Layout) -> str:
    """`fsdp` for the layout in `fsdp.toml`."""
    return str(getattr(layout, "name", "")).removeprefix("layout ").removesuffix(".toml")


def _mesh_words(mesh: MeshLike | None) -> str:
    if mesh is None:
        return ""
    sizes = mesh.shape if isinstance(mesh, (Mesh, AbstractMesh)) else mesh
    if not isinstance(sizes, Mapping):
        return ""  # no mesh at all, as the row will say
    return " ".join(f"{axis}={size}" for axis, size in sizes.items())
