"""The page: one HTML file that shows an Explanation and needs neither network nor script."""

from __future__ import annotations

import hashlib

from meshdsl.estimate.explanation import Explanation
from meshdsl.report.page import header as top
from meshdsl.report.page import tables
from meshdsl.report.page.assets import asset
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.flow import flow
from meshdsl.report.page.markup import Markup, tag
from meshdsl.report.page.memory import arrays, gauge
from meshdsl.report.page.mesh import mesh_picture
from meshdsl.report.page.pipeline import pipeline
from meshdsl.report.page.tensors import tensors
from meshdsl.report.page.timeline import timeline

_FOOTER = (
    "Figures are per device and for one step. Sizes are in powers of 1024 (1 GiB is 1.074 GB), "
    "rates of links (GB/s) in powers of 1000."
)
# For each section its heading, and the words in the margin that say what it shows.
_SECTIONS = {
    "mesh": (
        "Mesh",
        "The axes of the machine. One device is marked; those it exchanges data with over an axis "
        "wear its colour, here and everywhere below.",
    ),
    "flow": (
        "Step",
        "Ops from top to bottom, filled by their FLOPs. Collectives on the edges: width is the "
        "square root of the bytes, a band opens where data is gathered and closes where it is "
        "scattered. Open an op for its loop nest, the rules and its line.",
    ),
    "pipeline": (
        "Pipeline",
        "Which microbatch each stage works on, tick by tick. Every stage takes the same time for a "
        "tick; at its end it hands its result to the next stage.",
    ),
    "timeline": (
        "Timeline",
        "What runs when, with collectives overlapping what does not need them. Estimated.",
    ),
    "memory": (
        "Memory",
        "Of one device: what stays there from step to step, and the most that lives at once.",
    ),
    "tensors": (
        "Parameters",
        "Each parameter as a block, cut by the axes that split it. The filled piece is what one "
        "device holds at rest. Lengths are not to scale.",
    ),
    "collectives": (
        "Collectives",
        "All of them, in one step, on one device. Choose a heading to sort.",
    ),
    "notes": ("Notes", "What the layout says and the program has no use for."),
}


def page(explanation: Explanation) -> str:
    """One HTML file that needs nothing else, as text.

    It shows mesh, flow, timeline, memory, parameters and collectives of `explanation`.
    """
    styles = AxisStyles.of(explanation.axes)
    parts = _parts(explanation, styles)
    links = [tag("li", tag("a", _SECTIONS[name][0], href=f"#{name}")) for name in parts]
    nav = tag(
        "nav",
        tag("ul", links),
        tag("button", "Dark", type="button", class_="theme", hidden=True),
        aria_label="sections",
    )
    body = [
        tag("a", "Skip to the figures", href="#main", class_="skip"),
        styles.patterns(),
        tag("div", top.header(explanation, styles), class_="hold"),
        nav,
        tag(
            "main",
            [_section(name, content) for name, content in parts.items()],
            id="main",
            tabindex="-1",
        ),
        tag("footer", _FOOTER),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", ": ".join(filter(None, (explanation.title, explanation.layout)))),
        tag("style", Markup(asset("base.css") + asset("page.css"))),
    ]
    script = tag("script", Markup(asset("page.js")))
    document = tag("html", tag("head", head), tag("body", body, script, class_="mdsl"), lang="en")
    return f"<!doctype html>\n{document}\n"


def _parts(explanation: Explanation, styles: AxisStyles) -> dict[str, Markup | list]:
    """The contents of the sections that have any, by the names in `_SECTIONS`."""
    parameters = [view for view in explanation.memory.at_rest if view.kind == "parameter"]
    parts: dict[str, Markup | list] = {
        "mesh": [
            tag(
                "div",
                mesh_picture(styles),
                class_="scroll mesh-picture",
                tabindex="0",
                role="region",
                aria_label="the mesh",
            ),
            tables.axis_cards(explanation, styles),
        ],
        "flow": [tables.redundant(explanation), flow(explanation, styles)],
    }
    if explanation.pipelines:
        parts["pipeline"] = _pipelines(explanation, styles)
    if explanation.time is not None and explanation.time.spans:
        parts["timeline"] = timeline(explanation, styles)
    parts["memory"] = [gauge(explanation.memory), arrays(explanation, styles)]
    if parameters:
        parts["tensors"] = tensors(parameters, styles)
    parts["collectives"] = tables.collectives(explanation, styles)
    if explanation.notes:
        parts["notes"] = tag("ul", [tag("li", note) for note in explanation.notes], class_="notes")
    return parts


def _pipelines(explanation: Explanation, styles: AxisStyles) -> list[Markup]:
    step = explanation.time.step if explanation.time else None
    return [pipeline(one, step, styles) for one in explanation.pipelines]


def _section(name: str, content: Markup | list) -> Markup:
    heading, said = _SECTIONS[name]
    margin = tag("div", tag("h2", heading, id=f"{name}-title"), tag("p", said), class_="margin")
    return tag(
        "section",
        margin,
        tag("div", content, class_="figure-area"),
        id=name,
        aria_labelledby=f"{name}-title",
    )


def program_html(explanation: Explanation) -> str:
    """A fragment for a notebook: the verdict, the mesh, the flow and the memory.

    Its style touches nothing outside of it.
    """
    prefix = "f" + hashlib.sha256(repr(explanation).encode()).hexdigest()[:8]
    styles = AxisStyles.of(explanation.axes, prefix)
    return tag(
        "div",
        tag("style", Markup(asset("base.css"))),
        styles.patterns(),
        tag(
            "p",
            tag("b", explanation.title),
            " " if explanation.title else "",
            explanation.layout,
            class_="subject",
        ),
        top.verdict(explanation),
        top.remedies(explanation),
        gauge(explanation.memory),
        tag("div", mesh_picture(styles), class_="scroll mesh-picture"),
        tables.axis_cards(explanation, styles),
        tables.redundant(explanation),
        tag("details", tag("summary", "Op by op"), flow(explanation, styles), class_="more"),
        tag(
            "details",
            tag("summary", "Pipeline"),
            _pipelines(explanation, styles),
            class_="more",
        )
        if explanation.pipelines
        else None,
        tag(
            "details",
            tag("summary", "Memory, array by array"),
            arrays(explanation, styles),
            class_="more",
        ),
        tag(
            "details",
            tag("summary", "Collectives"),
            tables.collectives(explanation, styles),
            class_="more",
        ),
        class_="mdsl fragment",
    )
