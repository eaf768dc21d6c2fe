"""`md.search`: the layout under which any function of Tensors is fastest on a machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote, whole_number
from meshdsl.layout import Layout, check_mesh
from meshdsl.layout_search.confirm import confirmed
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.found import Found, as_dict
from meshdsl.layout_search.layout_file import layout_file
from meshdsl.layout_search.outcome import find
from meshdsl.layout_search.text import describe
from meshdsl.layout_search.workload import Workload, sizes_of
from meshdsl.lowering.lower import Lowered
from meshdsl.machine import Target
from meshdsl.machine.target import abstract_mesh_on
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.predict.compiler.topology import target_devices
from meshdsl.tools.function import analysis_of, chosen_target, how_to_lower


@dataclass(frozen=True, repr=False)
class Search(Found):
    """What a search found; it prints itself as `meshdsl search` does.

    Attributes:
      best: the fastest layout that fits; `layout` is short for its layout.
    """

    @property
    def layout(self) -> Layout:
        """The best layout, on a mesh with a number for each axis."""
        return self.best.candidate.layout

    def save(self, path: str | Path) -> None:
        """Write the best layout to a file that `md.Layout.load` reads."""
        heading = f"{self.title}, on {self.target}\n\nFound by md.search."
        Path(path).write_text(layout_file(self.layout, heading), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers."""
        return as_dict(self)

    def __repr__(self) -> str:
        return describe(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(describe(self))}</pre>"


def search(
    fn: Callable,
    *args,
    target: Target | str,
    keep: Layout | None = None,
    never: Sequence[str] = (),
    axes: int = 3,
    within_host: Sequence[str] = (),
    dcn: Mapping[str, int] | None = None,
    memory: int | None = None,
    seconds: float | None = 10.0,
    evaluations: int | None = None,
    compiled: int = 0,
    title: str = "",
    dims: Iterable[Dim | str] = (),
    optimizer_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Search:
    """The layout under which one call of `fn(*args)` is fastest on a machine.

    Nothing runs. Layouts are estimated as `md.explain` does it, beginning with those that come with
    meshdsl, and going on from the best ones by one change at a time.

        found = md.search(step, params, opt_state, batch, target="v5p:4x4x4")
        step = md.lower(step, found.layout)

    Args:
      fn: as in `md.explain`, and so are all arguments that are not listed here; not lowered.
      keep: what the layout must have: rules, and sizes of axes.
      never: rules that it must not have, such as `"vocab -> *"`.
      axes: at most how many axes larger than 1.
      within_host: axes that must lie within one host.
      dcn: sizes of axes that go across slices or nodes.
      memory: bytes of a device that may be used; by default all that it has.
      seconds: that the search may take; None for no limit.
      evaluations: how many layouts may be estimated before the search ends. With it, and without
        `seconds`, a search finds the same each time.
      compiled: how many that fit the compiler may judge: the best, and then those that may well be
        faster by the estimate, the likeliest first.

    Raises:
      MeshDSLError: no argument is a Tensor; the target is unknown; constraints contradict each
        other, of which the error names the first that fails; or nothing fits.
    """
    began = time.monotonic()
    if seconds is not None and not seconds > 0:
        raise MeshDSLError(f"search: `seconds` is a time of more than 0, not {quote(seconds)}")
    if evaluations is not None:
        evaluations = whole_number("search: `evaluations`", evaluations, 1)
    dcn = {} if dcn is None else dcn
    check_mesh(dcn, "search: `dcn`")
    constraints = Constraints(
        keep=keep,
        never=tuple(never),
        axes=whole_number("search: `axes`", axes, 1),
        within_host=tuple(within_host),
        dcn={axis: whole_number(f"search: `dcn`, axis `{axis}`", n, 1) for axis, n in dcn.items()},
        memory=None if memory is None else whole_number("search: `memory`", memory, 1),
    )
    chosen = chosen_target("search", target)
    if chosen is None or not chosen.timed:
        raise MeshDSLError(
            f"search: `target` is a machine whose speed is known, such as 'v5p:4x4x4', not "
            f"{quote(target)}"
        )
    if isinstance(fn, Lowered):
        raise MeshDSLError(
            f"search: `{fn.name}` is lowered already, by {fn.layout.name}; give the function itself"
        )
    compiled = whole_number("search: `compiled`", compiled, 0)
    if compiled:
        target_devices(chosen)
    how = how_to_lower(dims, optimizer_argnums, donate_argnums)

    def analysis(layout: Layout):
        return analysis_of("search", fn, args, layout, chosen, None, title=title, how=how)

    first = analysis(Layout(mesh={"data": chosen.devices}))
    call = first.on(first.mesh)
    workload = function_workload(
        *(call.function, call.args, chosen, first.title),
        lambda layout: analysis(layout).compile().report,
    )
    found = find(workload, constraints, seconds=seconds, evaluations=evaluations, began=began)
    return Search(**vars(confirmed(found, workload, compiled) if compiled else found))


def function_workload(
    lowered: Lowered,
    args: tuple,
    target: Target,
    title: str,
    compile: Callable[[Layout], CompiledReport],
) -> Workload:
    """A function of Tensors with its arguments, for a search to lay out.

    Args:
      lowered: the function, under any layout on any mesh.
      args: of one call; `ShapeDtypeStruct`s will do.
      compile: called with a layout, compiles the function for the target.
    """

    def program(layout: Layout, settings: Mapping[str, str]):
        return lowered.on(abstract_mesh_on(target, sizes_of(layout)), layout).program(*args)

    return Workload(title, target, program, lambda layout, settings: compile(layout))
