"""Tensors as blocks, with their sizes whole and on one device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshdsl.estimate.explanation import DimView, TensorView
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.block import block_picture
from meshdsl.report.page.markup import Markup, tag

_SHOWN = 18  # cards before the rest is folded


def tensors(views: Sequence[TensorView], styles: AxisStyles) -> Markup:
    """A card for each, the largest first; many more than a screen shows are folded."""
    ordered = sorted(views, key=lambda view: -view.bytes)
    first, more = ordered[:_SHOWN], ordered[_SHOWN:]
    cards = tag("ul", [card(view, styles) for view in first], class_="blocks")
    if not more:
        return cards
    head = tag(
        "summary",
        f"{page_figures.plural(len(more), 'smaller parameter')}, {page_figures.size(sum(view.bytes for view in more))} on a device",
    )
    return tag(
        "div",
        cards,
        tag(
            "details",
            head,
            tag("ul", [card(view, styles) for view in more], class_="blocks"),
            class_="more",
        ),
    )


def card(view: TensorView, styles: AxisStyles) -> Markup:
    return tag(
        "li",
        tag("p", styles.notation(view.name, view.dims, bare=True), class_="of"),
        block_picture(view.name, view.dims, styles),
        tag("p", size_words(view), class_="said"),
        dims_table(view.dims, styles),
        class_="tensor",
        tabindex="0",
    )


def size_words(view: TensorView) -> list[Markup | str]:
    """`112.0 MiB of 7.00 GiB on a device`."""
    whole = (
        view.bytes
        * prod(dim.size for dim in view.dims)
        // max(prod(dim.local for dim in view.dims), 1)
    )
    return [
        tag("b", page_figures.size(view.bytes)),
        f" of {page_figures.size(whole)} on a device"
        if whole != view.bytes
        else " whole on every device",
    ]


def dims_table(dims: Sequence[DimView], styles: AxisStyles) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", dim.name, scope="row"),
            tag("td", f"{dim.size:,}"),
            tag("td", f"{dim.local:,}"),
            tag("td", styles.chips(dim.axes)),
        )
        for dim in dims
    ]
    head = tag(
        "tr",
        [tag("th", name, scope="col") for name in ("dim", "whole", "on a device", "split over")],
    )
    return tag("table", tag("thead", head), tag("tbody", rows), class_="nest")
