"""Parts of the package that are imported when they are first used.

A program that trains draws no page and estimates no time, so it should start without the modules
that do. Where something below needs one of them after all, as `md.show` and a program in a notebook
do, it asks `imported` for it. Nowhere else in the package is anything imported while it runs, but
for optional packages such as matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshdsl.tensor import Tensor

if TYPE_CHECKING:
    from meshdsl.report.show import Shown
else:
    Shown = Any  # the annotation below is evaluated when public functions are held to theirs


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
