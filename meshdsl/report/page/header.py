"""The head of the page: does it fit, how long is a step, how much of the machine is used."""

from __future__ import annotations

from meshdsl.estimate.explanation import Explanation, MemoryView, TimeView
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.markup import Markup, tag


def header(explanation: Explanation, styles: AxisStyles) -> Markup:
    """What is explained, the verdict with remedies, the figures, and memory and time as bars."""
    said = [explanation.layout, f"on {explanation.target}" if explanation.target else None]
    return tag(
        "header",
        tag("h1", explanation.title),
        tag(
            "p",
            " ".join(part for part in said if part),
            tag(
                "span",
                " ",
                [
                    tag("span", styles.chip(v.name), f" {v.size:,} ", class_="nowrap")
                    for v in explanation.axes
                ],
                class_="axes-line",
            ),
            class_="subject",
        ),
        verdict(explanation),
        remedies(explanation),
        tag("p", explanation.choice) if explanation.choice else None,
        figures(explanation),
        tag(
            "div",
            memory_bar(explanation.memory),
            time_bar(explanation.time) if explanation.time else None,
            class_="gauges",
        ),
        class_="top",
        id="top",
    )


def verdict(explanation: Explanation) -> Markup:
    """Whether it fits, in a sentence."""
    memory, devices = explanation.memory, page_figures.plural(explanation.devices, "device")
    word, css, rest = _fits(memory)
    mark = tag("span", word, class_=f"word {css}") if word else None
    return tag(
        "p",
        mark,
        " ",
        tag("span", rest),
        tag("span", f" on each of {devices}", class_="quiet") if explanation.devices > 1 else None,
        class_="verdict",
    )


def remedies(explanation: Explanation) -> Markup | None:
    """What would make it fit; None where nothing is needed."""
    return (
        tag("ul", [tag("li", text) for text in explanation.remedies], class_="remedies")
        if explanation.remedies
        else None
    )


def _fits(memory: MemoryView) -> tuple[str, str, str]:
    """The verdict in a word or two, its CSS class, and the figures behind it."""
    if memory.capacity is None:
        return "", "", f"{page_figures.size(memory.peak)} at the peak"
    used = f"{page_figures.size(memory.peak)} of {page_figures.size(memory.capacity)}"
    if memory.fits:
        return "Fits.", "good", used
    return (
        "Does not fit.",
        "bad",
        f"{used}, {page_figures.size(memory.peak - memory.capacity)} too much,",
    )


def figures(explanation: Explanation) -> Markup:
    """The figures that people compare.

    Without a target there are no times, and one of the figures says how to get them.
    """
    memory, time = explanation.memory, explanation.time
    if time is None:
        shown = [
            ("at the peak", page_figures.size(memory.peak), "estimated, on one device"),
            (
                "arguments",
                page_figures.size(memory.arguments),
                "parameters, optimizer state and batch",
            ),
            ("step time", "unknown", "name a target to learn it"),
        ]
    else:
        shown = [
            (
                "step",
                page_figures.time(time.step),
                f"{page_figures.time(time.serial)} without overlap",
            ),
            *(
                [
                    (
                        "MFU",
                        f"{time.mfu:.1%}",
                        f"{time.mfu_full:.1%} with causal attention counted in full"
                        if time.halved
                        else "of the products that the program computes",
                    )
                ]
                if time.model_flops
                else []
            ),
            (
                "exposed",
                page_figures.share(time.exposed, time.step),
                "of the step waits for collectives",
            ),
        ]
    units, unit = explanation.units, explanation.unit
    if units and time is None:
        shown.append((f"{unit}s", page_figures.many(units), "in one step"))
    elif units and time is not None:
        rate = units / (time.step or 1.0)
        shown.append(
            (
                f"{unit}s a second",
                page_figures.many(rate),
                f"{page_figures.many(rate / explanation.devices)} on each device",
            )
        )
    return tag(
        "dl",
        [
            tag("div", tag("dt", name), tag("dd", tag("b", value), tag("span", note)))
            for name, value, note in shown
        ],
        class_="figures",
    )


def memory_bar(memory: MemoryView) -> Markup:
    """The peak against the capacity: the arguments of the step, and what it needs beside them."""
    scale = max(memory.peak, memory.capacity or 0, 1)
    parts = [
        ("parameter", "arguments", memory.arguments),
        ("activation", "gradients and activations", max(memory.peak - memory.arguments, 0)),
    ]
    bar = [
        tag("span", class_=f"part {css}", style=f"width:{100 * n / scale:.3f}%")
        for css, _, n in parts
    ]
    items = [
        tag("li", tag("span", class_=f"part {css}"), f"{name} ", tag("b", page_figures.size(n)))
        for css, name, n in parts
    ]
    if memory.capacity:
        bar.append(
            tag("span", class_="capacity", style=f"left:{100 * memory.capacity / scale:.3f}%")
        )
        items.append(
            tag(
                "li",
                f"{'free' if memory.fits else 'too much'} ",
                tag("b", page_figures.size(abs(memory.capacity - memory.peak))),
            )
        )
    label = f"memory: {page_figures.size(memory.peak)}" + (
        f" of {page_figures.size(memory.capacity)}" if memory.capacity else ""
    )
    over = " over" if memory.fits is False else ""
    return tag(
        "div",
        tag("p", "memory", class_="quiet"),
        tag("div", bar, class_=f"stack{over}", role="img", aria_label=label),
        tag("ul", items, class_="legend"),
        class_="gauge",
    )


def time_bar(time: TimeView) -> Markup:
    """The step as the time that it computes and the time that it waits for collectives."""
    busy = max(time.step - time.exposed, 0.0)
    hidden = max(time.communication - time.exposed, 0.0)
    parts = [("compute", busy), ("exposed", time.exposed)]
    bar = [
        tag("span", class_=f"part {name}", style=f"width:{100 * n / max(time.step, 1e-12):.3f}%")
        for name, n in parts
        if n
    ]
    items = [
        tag(
            "li", tag("span", class_="part compute"), "compute ", tag("b", page_figures.time(busy))
        ),
        tag(
            "li",
            tag("span", class_="part exposed"),
            "waiting for collectives ",
            tag("b", page_figures.time(time.exposed)),
        ),
        tag(
            "li",
            tag("span", class_="part hidden-key"),
            "collectives behind compute ",
            tag("b", page_figures.time(hidden)),
        ),
    ]
    label = (
        f"of {page_figures.time(time.step)}, {page_figures.time(time.exposed)} wait for collectives"
    )
    return tag(
        "div",
        tag("p", "step", class_="quiet"),
        tag("div", bar, class_="stack", role="img", aria_label=label),
        tag("ul", items, class_="legend"),
        class_="gauge",
    )
