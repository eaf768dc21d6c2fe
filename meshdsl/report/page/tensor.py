"""One tensor for a notebook: its block, its sizes, and which device holds which part."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from meshdsl.estimate.explanation import TensorView
from meshdsl.report.page import page_figures
from meshdsl.report.page.assets import asset
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.block import block_picture
from meshdsl.report.page.markup import Markup, tag
from meshdsl.report.page.tensors import dims_table, size_words


def tensor_html(
    view: TensorView, mesh: Mapping[str, int], parts: Sequence[tuple[str, Sequence[str]]] = ()
) -> str:
    """A fragment that shows how one array is split.

    Args:
      view: the array, its bytes on one device.
      mesh: `{axis: size}`; empty where the array lies on one device.
      parts: each different part in words, with the names of the devices that hold it; without any
        they are not listed.
    """
    prefix = "t" + hashlib.sha256(repr((view, mesh, parts)).encode()).hexdigest()[:8]
    styles = AxisStyles(dict(mesh), prefix)
    rows = [
        tag("tr", tag("th", part, scope="row"), tag("td", ", ".join(devices)))
        for part, devices in parts
    ]
    head = tag("tr", tag("th", "part", scope="col"), tag("th", "on", scope="col"))
    table = tag(
        "details",
        tag("summary", "Which device holds what"),
        tag("table", tag("thead", head), tag("tbody", rows), class_="nest"),
        class_="more",
    )
    return tag(
        "div",
        tag("style", Markup(asset("base.css"))),
        styles.patterns(),
        tag(
            "p", styles.notation(view.name, view.dims), " ", tag("span", view.dtype, class_="quiet")
        ),
        tag(
            "div",
            block_picture(view.name, view.dims, styles),
            dims_table(view.dims, styles) if view.dims else None,
            class_="side-by-side",
        ),
        tag(
            "p",
            size_words(view)
            if mesh
            else [tag("b", page_figures.size(view.bytes)), " on one device"],
            class_="said",
        ),
        table if parts else None,
        class_="mdsl fragment",
    )
