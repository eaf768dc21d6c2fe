"""`md.ledger`: measured time of a lowered function beside its estimate."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.lower import Lowered
from meshdsl.machine import Target
from meshdsl.machine.target import figures_at_hand, mesh_on
from meshdsl.predict.explain import explain
from meshdsl.predict.ledger.ledger import from_trace
from meshdsl.predict.ledger.report import LedgerReport
from meshdsl.predict.ledger.trace import check_profiler, tracing
from meshdsl.tools import ledger_text
from meshdsl.tools.function import chosen_target
from meshdsl.tools.page import ledger_html, ledger_page


class Ledger(LedgerReport):
    """Measured time of a program beside its estimate, which prints and draws itself.

    It has all of a `LedgerReport` as attributes: `entries`, `unforeseen`, `attributed`, `seconds`.
    """

    @classmethod
    def of(cls, report: LedgerReport) -> Ledger:
        """`report`, as one that prints itself."""
        return cls(**vars(report))

    @property
    def text(self) -> str:
        """The whole of it as text."""
        return ledger_text.describe(self)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def page(self) -> str:
        """The whole of it as one HTML file."""
        return ledger_page(self)

    def _repr_html_(self) -> str:
        return ledger_html(self)


def ledger(
    fn: Lowered,
    *args,
    steps: int = 5,
    target: Target | str | None = None,
    title: str = "",
) -> Ledger:
    """Run `fn(*args)` a few times under JAX's profiler, and put measured time beside the estimate.

    It says of each op, rule and line of the model how long it took, and first of all what the
    record did not foresee: collectives and copies that the compiler added, and what takes much
    longer than estimated.

        step = md.lower(loss_and_gradients, layout)
        print(md.ledger(step, params, batch))

    Args:
      fn: a function that is lowered for devices that are here, `md.lower(...)`. It is compiled, run
        once to warm up, and then `steps` times. Arguments that it donates are copied.
      args: of Tensors and arrays; they are split as the layout splits them.
      steps: how many calls are traced; each figure is the median over them.
      target: the machine whose figures the estimate is made of; by default the devices at hand.
        Where they have no figures, as CPUs, there are measured times only.
      title: what is measured, in words; by default the name of the function.

    Raises:
      MeshDSLError: `fn` is not lowered, or for no devices; an argument has no data; the target is
        unknown or the mesh does not fit it; a trace is being taken already, or it is empty.
    """
    if not isinstance(fn, Lowered):
        name = getattr(fn, "__name__", quote(fn))
        raise MeshDSLError(
            f"ledger: `{name}` is not lowered; what is measured is md.lower({name}, layout)"
        )
    if not isinstance(fn.mesh, Mesh):
        raise MeshDSLError(
            f"ledger: `{fn.name}` is lowered for a mesh without devices, so it cannot be run; "
            "lower it for `make_mesh(layout)`"
        )
    if not isinstance(steps, int) or steps < 1:
        raise MeshDSLError(f"ledger: `steps` is a whole number of at least 1, not {quote(steps)}")
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args)):
        raise MeshDSLError(
            f"ledger: an argument of `{fn.name}` is a shape without data; `ledger` runs the "
            "function, so it takes arrays"
        )
    check_profiler("ledger")
    chosen = chosen_target("ledger", target) or figures_at_hand(list(fn.mesh.devices.flat))
    if chosen is not None and target is not None:
        mesh_on(chosen, fn.layout.with_mesh(dict(fn.mesh.shape)))
    program = fn.program(*args)
    explanation = explain(program, title=title or fn.name, target=chosen)
    shapes = fn.shapes(*args)
    compiled = fn.lower(*shapes).compile()
    placed = jax.tree.map(lambda x, shape: jax.device_put(x, shape.sharding), args, shapes)
    with tempfile.TemporaryDirectory() as folder:
        _run(compiled, fn, placed, steps=1)
        with tracing("ledger", Path(folder)):
            _run(compiled, fn, placed, steps=steps)
        report = from_trace("ledger", Path(folder), compiled.as_text(), program, explanation)
    return Ledger.of(report)


def _run(compiled: Any, fn: Lowered, args: tuple, steps: int) -> None:
    """Call a compiled function `steps` times, one after the other."""
    for _ in range(steps):
        given = [
            jax.tree.map(jnp.copy, arg) if i in fn.donated else arg for i, arg in enumerate(args)
        ]
        jax.block_until_ready(given)
        jax.block_until_ready(compiled(*given))


def write_ledger(report: LedgerReport, folder: Path) -> str:
    """Write `ledger.txt`, `ledger.json` and `ledger.html` into a folder; returns the text."""
    found = Ledger.of(report)
    text = found.text
    (folder / "ledger.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "ledger.json").write_text(json.dumps(found.to_dict()) + "\n", encoding="utf-8")
    (folder / "ledger.html").write_text(found.page(), encoding="utf-8")
    return text
