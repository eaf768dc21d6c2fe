"""The step as a flow: ops from top to bottom, and on the edges between them the collectives, as wide as their bytes.

One panel for each phase. The panels are switched by radio buttons, which need no script. An op opens to show its loop nest, the
rules that moved something, its FLOPs and the user's line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from meshdsl.estimate.explanation import PHASES, Explanation, MoveView, OpView
from meshdsl.figures import rule_words
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.edge import edge, legend, line
from meshdsl.report.page.markup import Markup, join, tag

_NAMES = {
    "forward": "forward",
    "recompute": "recompute",
    "backward": "backward",
    "gradient": "gradients",
    "optimizer": "optimizer",
}
_SMALL = 0.002  # an op without moves and with less than this share of the FLOPs of its phase is folded with its neighbours
REPEATED = 0.001  # repeated work below this share of all is not worth a word


@dataclass(frozen=True)
class Panel:
    """What the pictures of one phase share: its FLOPs, those of its largest op, and the bytes of the largest collective of all phases."""

    phase: str
    flops: float
    most: float
    widest: int
    layout: str
    styles: AxisStyles

    @property
    def turned(self) -> bool:
        return self.phase == "backward"


def flow(explanation: Explanation, styles: AxisStyles) -> Markup:
    """The panels with their switch."""
    moves = [move for op in explanation.ops for move in op.moves]
    widest = max((move.bytes for move in moves), default=1)
    panels = []
    for phase in PHASES:
        ops = [
            op
            for op in explanation.ops
            if op.flops.get(phase)
            or any(move.phase == phase for move in op.moves)
            or _touched(op, phase)
        ]
        work = [op.flops.get(phase, 0.0) for op in ops]
        if any(work) or any(move.phase == phase for op in ops for move in op.moves):
            panels.append(
                (Panel(phase, sum(work), max(work), widest, explanation.layout, styles), ops)
            )
    if not panels:
        return tag("p", "No op does any work.", class_="quiet")
    name = f"{styles.prefix}-phase"
    switch = [
        join(
            [
                tag(
                    "input",
                    type="radio",
                    name=name,
                    id=f"{name}-{panel.phase}",
                    class_=f"pick pick-{i}",
                    checked=i == 0,
                ),
                tag("label", _NAMES[panel.phase], for_=f"{name}-{panel.phase}"),
            ]
        )
        for i, (panel, _) in enumerate(panels)
    ]
    shown = [
        tag(
            "div",
            tag("h3", _NAMES[panel.phase]),
            _summary(panel, ops),
            tag("ol", _rows(panel, ops), class_="flow"),
            class_=f"panel panel-{i}",
            id=f"{name}-panel-{panel.phase}",
        )
        for i, (panel, ops) in enumerate(panels)
    ]
    return tag(
        "div",
        tag("fieldset", tag("legend", "pass"), switch, class_="phases"),
        legend({move.operation for move in moves}),
        shown,
        class_="flows",
    )


def _touched(op: OpView, phase: str) -> bool:
    """Whether an op without FLOPs stands in a phase: views and constants, which only the forward pass shows."""
    return phase == "forward" and not op.flops and not op.moves


def _summary(panel: Panel, ops: Sequence[OpView]) -> Markup:
    moves = [move for op in ops for move in op.moves if move.phase == panel.phase]
    total = sum(move.count * move.bytes for move in moves)
    said = [tag("b", page_figures.work(panel.flops))] if panel.flops else []
    if moves:
        said += [" and "] if said else []
        said += [
            tag("b", page_figures.plural(sum(move.count for move in moves), "collective")),
            " of ",
            tag("b", page_figures.size(total)),
            " in all",
        ]
    return tag(
        "p",
        said,
        " on each device, ",
        "from the loss back" if panel.turned else "in the order of the program",
        ".",
        class_="said",
    )


def _rows(panel: Panel, ops: Sequence[OpView], depth: int = 0) -> Iterator[Markup]:
    """Ops of the same loop stand in one frame."""
    ordered = list(reversed(ops)) if panel.turned and depth == 0 else list(ops)
    for loop, group in groupby(
        ordered, key=lambda op: op.loops[depth] if len(op.loops) > depth else None
    ):
        inside = list(group)
        if loop is None:
            yield from _chain(panel, inside)
            continue
        name, count = loop
        flops = sum(op.flops.get(panel.phase, 0.0) for op in inside)
        said = (
            f"{page_figures.share(flops, panel.flops)} of the FLOPs of this pass"
            if panel.flops
            else ""
        )
        head = tag(
            "p",
            tag("b", f"{count:,} \u00d7"),
            f" {name} ",
            tag("span", said, class_="quiet"),
            class_="times",
        )
        yield tag(
            "li", head, tag("ol", _rows(panel, inside, depth + 1), class_="flow"), class_="loop"
        )


def _chain(panel: Panel, ops: Sequence[OpView]) -> Iterator[Markup]:
    for folded, group in groupby(ops, key=lambda op: _small(op, panel)):
        group = list(group)
        if folded and len(group) > 1:
            yield _folded(panel, group)
        else:
            yield from (_op(panel, op) for op in group)


def _small(op: OpView, panel: Panel) -> bool:
    return (
        not _moves(op, panel)
        and not op.waste
        and op.flops.get(panel.phase, 0.0) <= _SMALL * panel.flops
    )


def _moves(op: OpView, panel: Panel) -> list[MoveView]:
    return [move for move in op.moves if move.phase == panel.phase]


def _folded(panel: Panel, ops: Sequence[OpView]) -> Markup:
    """Neighbours that move nothing and compute little."""
    names = list(dict.fromkeys(op.name for op in ops))
    flops = sum(op.flops.get(panel.phase, 0.0) for op in ops)
    head = tag(
        "summary",
        tag(
            "span",
            tag("span", tag("span", f"{len(ops)} small ops"), class_="node fold"),
            class_="spine",
        ),
        tag(
            "span",
            tag(
                "span",
                tag("span", ", ".join(names), class_="quiet small"),
                tag("span", page_figures.work(flops), class_="fact") if flops else None,
                class_="said-of",
            ),
            class_="what",
        ),
    )
    lines = [
        tag(
            "li",
            panel.styles.notation(op.name, op.dims),
            " ",
            tag("span", op.source, class_="source"),
            _idle(op, panel),
            id=anchor(op.tag, panel.phase, panel.styles),
            tabindex="-1",
        )
        for op in ops
    ]
    return tag(
        "li",
        line(),
        tag("details", head, tag("ul", lines, class_="inside small-ops"), class_="op"),
        class_="row",
    )


def _op(panel: Panel, op: OpView) -> Markup:
    flops = op.flops.get(panel.phase, 0.0)
    moves = _moves(op, panel)
    edges = [edge(move, panel.widest, panel.styles) for move in moves] or [line()]
    bar = (
        tag("span", class_="bar", style=f"width:{100 * flops / panel.most:.1f}%") if flops else None
    )
    facts = [
        tag(
            "span",
            f"{page_figures.work(flops)}, {page_figures.share(flops, panel.flops)}",
            class_="fact",
        )
        if flops
        else None,
        _idle(op, panel),
    ]
    if op.waste:
        facts.append(tag("span", f"+{op.waste:.0%} padding", class_="badge"))
    head = tag(
        "summary",
        tag(
            "span",
            tag(
                "span",
                bar,
                tag("span", op.name),
                class_="node fold" if _small(op, panel) else "node",
            ),
            class_="spine",
        ),
        tag(
            "span",
            tag("span", panel.styles.nest(op.dims), facts, class_="said-of"),
            tag("span", op.source, class_="source"),
            class_="what",
        ),
    )
    box = tag(
        "details",
        head,
        tag("div", _details(op, panel), class_="inside"),
        class_="op",
        id=anchor(op.tag, panel.phase, panel.styles),
    )
    return tag("li", [line(), box, edges] if panel.turned and moves else [edges, box], class_="row")


def anchor(op_tag: str, phase: str, styles: AxisStyles) -> str:
    return f"{styles.prefix}-{phase}-{op_tag}"


def _idle(op: OpView, panel: Panel) -> Markup | None:
    if not op.idle or op.flops.get(panel.phase, 0.0) <= REPEATED * panel.flops:
        return None
    return tag("span", f"repeated over {', '.join(op.idle)}", class_="badge")


def _details(op: OpView, panel: Panel) -> list[Markup | None]:
    styles = panel.styles
    nest = [
        tag(
            "tr",
            tag("th", styles.dim(dim), scope="row"),
            tag("td", f"{dim.size:,}"),
            tag("td", f"{dim.local:,}"),
            tag("td", styles.chips(dim.axes)),
        )
        for dim in op.dims
    ]
    head = tag(
        "tr",
        [tag("th", name, scope="col") for name in ("dim", "whole", "on a device", "split over")],
    )
    flops = ", ".join(
        f"{_NAMES.get(phase, phase)} {page_figures.work(n)}" for phase, n in op.flops.items() if n
    )
    rules = [
        tag(
            "li",
            styles.chips(move.axes),
            " ",
            tag("code", move.operation),
            f": {rule_words(move.why, panel.layout)}" if move.why else "",
        )
        for move in _moves(op, panel)
    ]
    facts = [
        ("source", tag("code", op.source)),
        ("runs", f"{op.count:,} times a step" if op.count != 1 else "once a step"),
    ]
    facts += [("FLOPs", flops)] if flops else []
    facts += (
        [("could use", f"{', '.join(op.idle)} with the rule {op.advice}")]
        if op.idle and op.advice
        else []
    )
    facts.append(("tag", tag("code", op.tag)))
    return [
        tag(
            "div",
            tag("table", tag("thead", head), tag("tbody", nest), class_="nest"),
            class_="scroll",
        )
        if nest
        else None,
        tag("ul", rules, class_="rules") if rules else None,
        tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in facts], class_="facts"),
    ]
