"""Tables and cards: what each axis carries, every collective, and work that devices repeat."""

from __future__ import annotations

from meshdsl.estimate.explanation import Explanation, MoveView, OpView
from meshdsl.figures import rule_words
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.flow import REPEATED, anchor
from meshdsl.report.page.links import link_picture
from meshdsl.report.page.markup import Markup, tag


def axis_cards(explanation: Explanation, styles: AxisStyles) -> Markup:
    """Each axis: its size, how it lies on the machine, and what it carries in one step."""
    cards = []
    for view in explanation.axes:
        carries = (
            [
                page_figures.plural(view.count, "collective"),
                " of ",
                tag("b", page_figures.size(view.bytes)),
                " in all",
            ]
            if view.count
            else ["carries nothing"]
        )
        seconds = (
            [", ", tag("b", page_figures.time(view.seconds)), " alone on its links"]
            if view.seconds
            else []
        )
        cards.append(
            tag(
                "li",
                tag(
                    "div",
                    tag("h3", styles.chip(view.name), tag("span", f"{view.size:,}", class_="size")),
                    class_="head",
                ),
                link_picture(view.lies, view.size),
                tag("p", view.lies, class_="lies") if view.lies else None,
                tag("p", carries, seconds, class_="said"),
                tag(
                    "p",
                    tag(
                        "span", "no op uses it: every device along it does the same", class_="badge"
                    ),
                )
                if view.idle and view.size > 1
                else None,
                class_=f"card {styles.css((view.name,))}",
            )
        )
    return tag("ul", cards, class_="cards")


def redundant(explanation: Explanation) -> Markup | None:
    """Work that every device along an axis repeats, with the rule that would share it.

    None where there is none that matters.
    """
    groups: dict[tuple[tuple[str, ...], str], list[OpView]] = {}
    for op in explanation.ops:
        if op.idle and sum(op.flops.values()):
            groups.setdefault((op.idle, op.advice), []).append(op)
    total = sum(sum(op.flops.values()) for op in explanation.ops)
    rows = []
    for (idle, advice), ops in sorted(
        groups.items(), key=lambda item: -sum(sum(op.flops.values()) for op in item[1])
    ):
        flops = sum(sum(op.flops.values()) for op in ops)
        if flops < REPEATED * total:
            continue
        names = list(
            dict.fromkeys(
                f"{op.name} ({op.source})"
                for op in sorted(ops, key=lambda op: -sum(op.flops.values()))
            )
        )
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        rule = [" The rule ", tag("code", advice), " would share it."] if advice else []
        rows.append(
            tag(
                "li",
                tag("b", page_figures.share(flops, total)),
                f" of the FLOPs are repeated by every device along {' and '.join(idle)}: {shown}.",
                rule,
            )
        )
    return (
        tag(
            "div",
            tag("h3", "Work done more than once"),
            tag("ul", rows),
            class_="callout",
            role="note",
        )
        if rows
        else None
    )


_COLUMNS = (
    ("collective", "text"),
    ("over", "text"),
    ("pass", "text"),
    ("times", "figure"),
    ("each", "figure"),
    ("in all", "figure"),
    ("time", "figure"),
    ("op and rule", "text"),
)


def collectives(explanation: Explanation, styles: AxisStyles) -> Markup:
    """Every collective of the step, the most bytes first; a script makes the headings sort."""
    found = sorted(
        ((move, op) for op in explanation.ops for move in op.moves),
        key=lambda pair: -pair[0].count * pair[0].bytes,
    )
    if not found:
        return tag(
            "p", "This step has no collectives: nothing travels between devices.", class_="said"
        )
    timed = any(move.seconds is not None for move, _ in found)
    columns = [column for column in _COLUMNS if timed or column[0] != "time"]
    head = [
        tag(
            "th",
            tag("span", name, class_="sort"),
            scope="col",
            class_=kind,
            aria_sort="descending" if name == "in all" else None,
        )
        for name, kind in columns
    ]
    rows = [
        _row(move, op, timed, rule_words(move.why, explanation.layout), styles)
        for move, op in found
    ]
    total = sum(move.count * move.bytes for move, _ in found)
    count = sum(move.count for move, _ in found)
    said = tag(
        "p",
        tag("b", page_figures.plural(count, "collective")),
        " a step, ",
        tag("b", page_figures.size(total)),
        " on each device: the larger of what goes in and what comes out.",
        class_="said",
    )
    table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), class_="data sortable")
    return tag(
        "div",
        said,
        tag(
            "div", table, class_="scroll", tabindex="0", role="region", aria_label="all collectives"
        ),
    )


def _row(move: MoveView, op: OpView, timed: bool, rule: str, styles: AxisStyles) -> Markup:
    seconds = move.count * (move.seconds or 0.0)
    link = tag(
        "a", tag("code", op.name), href=f"#{anchor(op.tag, move.phase, styles)}", title=op.notation
    )
    return tag(
        "tr",
        tag("td", tag("code", move.operation)),
        tag("td", styles.chips(move.axes)),
        tag("td", move.phase),
        _figure(f"{move.count:,}", move.count),
        _figure(page_figures.size(move.bytes), move.bytes),
        _figure(page_figures.size(move.count * move.bytes), move.count * move.bytes),
        _figure(page_figures.time(seconds) if move.seconds is not None else "", f"{seconds:.9f}")
        if timed
        else None,
        tag(
            "td",
            link,
            " ",
            tag("span", op.source, class_="source"),
            tag("span", rule, class_="rule"),
            class_="wide",
        ),
    )


def _figure(text: str, value) -> Markup:
    return tag("td", text, class_="figure", data_value=value)
