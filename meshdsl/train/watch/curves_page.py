"""Curves as one HTML file that needs nothing else.

It shows pictures and a table of what they show. The script only adds values that are read off.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

import numpy as np

from meshdsl.report.page.assets import asset
from meshdsl.report.page.markup import Markup, tag
from meshdsl.train.watch.curves import Panel
from meshdsl.train.watch.curves_svg import (
    Scales,
    colour_class,
    dash_array,
    dataset_mark,
    picture,
    short_number,
)


def page(panels: Sequence[Panel]) -> str:
    """The text of a page with the panels one below the other and a legend that hides runs."""
    runs = list(dict.fromkeys(curve.run for panel in panels for curve in panel.curves))
    title = _title(panels, runs)
    own_assets = files("meshdsl.train.watch")
    hide = "".join(
        f"body:has(#run-{i}:not(:checked)) .run-{i} {{ display: none; }}\n"
        for i in range(len(runs))
    )
    css = asset("base.css") + (own_assets / "page.css").read_text("utf-8") + hide
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(css)),
    ]
    main = [
        tag("h1", title[0].upper() + title[1:]),
        _legend(runs),
        [_section(panel, runs) for panel in panels],
    ]
    script = tag("script", Markup((own_assets / "page.js").read_text("utf-8")))
    body = tag("body", tag("main", main), script, class_="mdsl")
    return f"<!doctype html>\n{tag('html', tag('head', head), body, lang='en')}\n"


def _title(panels: Sequence[Panel], runs: list[str]) -> str:
    """For example `loss, seconds and tokens of 3 runs`."""
    *others, last = (panel.metric.replace("_", " ") for panel in panels)
    metrics = f"{', '.join(others)} and {last}" if others else last
    return f"{metrics} of {runs[0] if len(runs) == 1 else f'{len(runs)} runs'}"


def _legend(runs: list[str]) -> Markup:
    items = [
        tag(
            "label",
            tag("input", type="checkbox", id=f"run-{i}", checked=True),
            tag(
                "svg",
                tag("path", d="M0 8H34", class_="line", stroke_dasharray=dash_array(i)),
                class_=colour_class(i),
                width="34",
                height="16",
                aria_hidden="true",
            ),
            tag("b", str(i + 1)),
            " ",
            run,
        )
        for i, run in enumerate(runs)
    ]
    return tag("fieldset", tag("legend", "Runs"), items, class_="runs")


def _section(panel: Panel, runs: list[str]) -> Markup:
    """A panel: its title, the legend of marks, the picture, its values for the script, a table."""
    scales = Scales(panel)
    datasets = _datasets(panel)
    marks = [
        tag("span", dataset_mark(i), f"validation {name}".strip(), class_="mark-of")
        for i, name in enumerate(datasets)
    ]
    curves = [
        {
            "run": runs.index(curve.run),
            "x": _six_digits(curve.line.x),
            "y": _six_digits(curve.line.y),
        }
        for curve in panel.curves
    ]
    values = json.dumps({"box": scales.box, "x": panel.x_words, "curves": curves})
    return tag(
        "section",
        tag("h2", panel.y_words),
        tag("p", marks, class_="marks") if marks else None,
        tag("div", picture(panel, runs, datasets, scales), class_="scroll"),
        tag("output", class_="read", hidden=True),
        tag("script", Markup(values.replace("<", "\\u003c")), type="application/json"),
        _table(panel, runs),
    )


def _datasets(panel: Panel) -> list[str]:
    return list(dict.fromkeys(name for curve in panel.curves for name in curve.validation))


def _table(panel: Panel, runs: list[str]) -> Markup:
    """The last, least and greatest value of each run, and its last values on held-out text."""
    datasets = _datasets(panel)
    heads = [
        *("", "run", "last", "least", "greatest"),
        *(f"validation {name}".strip() + ", last" for name in datasets),
    ]
    rows = []
    for curve in panel.curves:
        run, y = runs.index(curve.run), curve.line.y
        cells = (
            [short_number(value) for value in (y[-1], y.min(), y.max())]
            if len(y)
            else ["not finite", "", ""]
        )
        cells += [
            short_number(points.y[-1])
            if (points := curve.validation.get(name)) and len(points.y)
            else ""
            for name in datasets
        ]
        row = [
            tag("td", tag("b", str(run + 1), class_="label")),
            tag("th", curve.run, scope="row"),
            [tag("td", cell) for cell in cells],
        ]
        rows.append(tag("tr", row, class_=f"{colour_class(run)} run-{run}"))
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", [tag("th", head, scope="col") for head in heads])),
            tag("tbody", rows),
        ),
        class_="scroll",
    )


def _six_digits(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
