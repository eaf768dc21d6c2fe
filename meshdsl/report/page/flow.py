"""The step as a flow: ops from top to bottom, and the collectives on the edges between them.

There is one panel for each phase. The panels are switched by radio buttons, which need no script.
An op opens to show its loop nest, the rules that moved something, its FLOPs and the user's line.
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
from meshdsl.report.page.tensors import dims_table

_NAMES = {
    "forward": "forward",
    "recompute": "recompute",
    "backward": "backward",
    "gradient": "gradients",
    "optimizer": "optimizer",
}
# An op without moves and with less than this share of the FLOPs of its phase is folded with its
# neighbours.
_SMALL = 0.002
REPEATED = 0.001  # repeated work below this share of all is not worth a word


@dataclass(frozen=True)
class Panel:
    """What the pictures of one phase share.

    Attributes:
      flops: of the phase.
      most: those of its largest op.
      widest: the bytes of the largest collective of all phases.
    """

    phase: str
    flops: float
    most: float
    widest: int
    layout: str
    styles: AxisStyles

    @property
    def from_the_loss(self) -> bool:
        """Whether it runs against the order of the program."""
        return self.phase == "backward"


def flow(explanation: Explanation, styles: AxisStyles) -> Markup:
    """The panels of all phases that have any work, with their switch."""
    moves = [move for op in explanation.ops for move in op.moves]
    panels = list(_panels(explanation, styles))
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


def _panels(
    explanation: Explanation, styles: AxisStyles
) -> Iterator[tuple[Panel, Sequence[OpView]]]:
    """Each phase that has any work, with its ops."""
    moves = [move for op in explanation.ops for move in op.moves]
    widest = max((move.bytes for move in moves), default=1)
    for phase in PHASES:
        ops = [op for op in explanation.ops if _stands_in(op, phase)]
        work = [op.flops.get(phase, 0.0) for op in ops]
        if any(work) or any(move.phase == phase for op in ops for move in op.moves):
            yield Panel(phase, sum(work), max(work), widest, explanation.layout, styles), ops


def _stands_in(op: OpView, phase: str) -> bool:
    """Whether an op is shown in a phase: it computes or moves something there.

    Views and constants do neither in any; they are shown in the forward pass only.
    """
    if op.flops.get(phase) or any(move.phase == phase for move in op.moves):
        return True
    return phase == "forward" and not op.flops and not op.moves


def _summary(panel: Panel, ops: Sequence[OpView]) -> Markup:
    """What a phase computes and moves in all, in a sentence."""
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
        "from the loss back" if panel.from_the_loss else "in the order of the program",
        ".",
        class_="said",
    )


def _rows(panel: Panel, ops: Sequence[OpView], depth: int = 0) -> Iterator[Markup]:
    """The ops of a panel; those of the same loop stand in one frame.

    Args:
      depth: how many loops are around all `ops`, and are framed already.
    """
    ordered = list(reversed(ops)) if panel.from_the_loss and depth == 0 else list(ops)
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
    """Ops in a row, neighbours that are small folded into one."""
    for folded, group in groupby(ops, key=lambda op: _small(op, panel)):
        group = list(group)
        if folded and len(group) > 1:
            yield _folded(panel, group)
        else:
            yield from (_op(panel, op) for op in group)


def _small(op: OpView, panel: Panel) -> bool:
    """Whether an op moves nothing and computes little."""
    return (
        not _moves(op, panel)
        and not op.waste
        and op.flops.get(panel.phase, 0.0) <= _SMALL * panel.flops
    )


def _moves(op: OpView, panel: Panel) -> list[MoveView]:
    return [move for move in op.moves if move.phase == panel.phase]


def _folded(panel: Panel, ops: Sequence[OpView]) -> Markup:
    """Small neighbours as one node, which opens to list them."""
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
    """An op with the edges of its collectives, before it or, from the loss back, after it."""
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
    if op.kernel:
        why = "; ".join(f"not by {name}: {lacks}" for name, lacks in op.lacks)
        facts.append(tag("span", f"by {op.kernel}", class_="badge", title=why or None))
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
    return tag(
        "li", [line(), box, edges] if panel.from_the_loss and moves else [edges, box], class_="row"
    )


def anchor(op_tag: str, phase: str, styles: AxisStyles) -> str:
    """The id of an op in a phase, for links to it."""
    return f"{styles.prefix}-{phase}-{op_tag}"


def _idle(op: OpView, panel: Panel) -> Markup | None:
    """A badge for an op that devices repeat; None where that is too little to matter."""
    if not op.idle or op.flops.get(panel.phase, 0.0) <= REPEATED * panel.flops:
        return None
    return tag("span", f"repeated over {', '.join(op.idle)}", class_="badge")


def _details(op: OpView, panel: Panel) -> list[Markup | None]:
    """What an op shows when it is opened: its loop nest, the rules behind its moves, and facts."""
    styles = panel.styles
    nest = dims_table(op.dims, styles, [styles.dim(dim) for dim in op.dims])
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
    if op.idle and op.advice:
        facts.append(("could use", f"{', '.join(op.idle)} with the rule {op.advice}"))
    facts.append(("tag", tag("code", op.tag)))
    return [
        tag("div", nest, class_="scroll") if op.dims else None,
        tag("ul", rules, class_="rules") if rules else None,
        tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in facts], class_="facts"),
    ]
