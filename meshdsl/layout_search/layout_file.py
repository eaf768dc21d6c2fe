"""The layout that a search has found, as a file: with what each rule splits, and what that costs.

The comments are read off the explanation of the step under that layout; none is guessed.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshdsl.errors import either
from meshdsl.figures import byte_words, time_words
from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraints import words_of
from meshdsl.predict.explanation import Explanation, MoveView

_WIDTH = 100
_WRAPPED: dict[str, Any] = {
    "initial_indent": "  # ",
    "subsequent_indent": "  #   ",
    "break_long_words": False,
    "break_on_hyphens": False,
}
_MATTERS = 1e-3  # the share of all bytes from which on a kind of collective is worth a line
_AT_REST = {
    "parameters": ("parameter", "parameters"),
    "gradients": ("gradient", "gradients while the backward pass makes them"),
    "optimizer": ("optimizer", "gradients and the state of the optimizer"),
}


def layout_file(layout: Layout, heading: str, explanation: Explanation | None = None) -> str:
    """The text of a layout file, which `Layout.load` reads as the same layout.

    Args:
      heading: what stands at its top, as a comment.
      explanation: of a step under this layout, from which the comments of its rules come; without
        one they have none.
    """
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    table = layout.mesh_table
    across = table.pop("dcn", {})
    for name, sizes in {"mesh": table, "mesh.dcn": across}.items():
        if sizes or (name == "mesh" and across):
            lines += ["", f"[{name}]", *(f"{axis} = {_value(n)}" for axis, n in sizes.items())]
    lines += ["", "[layout]"]
    for level in LEVELS:
        rules = getattr(layout, level)
        if rules:
            lines.append(f"{level} = [")
            for number, line in enumerate(rules, 1):
                for sentence in _comment(level, number, layout, explanation) if explanation else ():
                    lines += textwrap.wrap(sentence, _WIDTH, **_WRAPPED)
                lines.append(f"  {_value(line)},")
            lines.append("]")
        elif level == "rules":
            lines.append("rules = []")
    lines += [f"{word} = {_value(value)}" for word, value in words_of(layout).items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A value as TOML writes it; a table in one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(one)}' for key, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)  # texts, numbers and booleans are as in JSON


# -- comments ----------------------------------------------------------------------------------


def _comment(level: str, number: int, layout: Layout, e: Explanation) -> Iterator[str]:
    """What a line of the layout splits and which collectives it causes, a sentence each."""
    where = f"{layout.name}, {'rule' if level == 'rules' else level + ' rule'} {number}"
    rules = [rule for rule in layout.parsed if rule.where == where]
    axes = dict.fromkeys(rule.axis for rule in rules)
    sizes = {axis.name: axis.size for axis in e.axes}
    if all(sizes.get(axis, 1) == 1 for axis in axes):
        names = either([f"`{axis}`" for axis in axes], "and")
        yield f"Splits nothing here: {names} has one device."
        return
    yield _splits(level, rules, e)
    moves = [move for op in e.ops for move in op.moves]
    causes = [re.split(r"; then | or ", move.why) for move in moves]
    mine = str(rules[0])
    caused = [(m, len(why) > 1) for m, why in zip(moves, causes, strict=True) if mine in why]
    # Small collectives are left out.
    least = _MATTERS * sum(move.count * move.bytes for move in moves)
    alone, together = (
        _collectives([m for m, others in caused if others == with_others], least)
        for with_others in (False, True)
    )
    if alone:
        yield f"It causes, in a step: {'; '.join(alone)}."
    if together:
        yield f"Together with other rules: {'; '.join(together)}."
    if not alone and not together:
        if caused:
            yield "The collectives that it causes are small."
        elif level != "rules" and any(set(axes) & set(move.axes) for move in moves):
            yield "What gathers and sums them is counted at the rules of the ops that ask for it."
        else:
            yield "It causes no collective."


def _splits(level: str, rules: Sequence[Rule], e: Explanation) -> str:
    """What a line splits, in words."""
    sizes = {axis.name: axis.size for axis in e.axes}
    if (cut := rules[0].microbatches) is not None:
        stages = sizes.get(rules[0].axis, 1)
        early = ", which go back early" if rules[0].schedule == "early" else ""
        return (
            f"A pipeline: `{rules[0].dim}` in {stages} stages over `{rules[0].axis}`, `{cut[0]}` "
            f"in {cut[1]} microbatches{early}."
        )
    kind, what = _AT_REST.get(level, ("", ""))
    kept = [t for t in e.memory.at_rest if t.kind == kind]
    views = [view for one in (kept if kind else e.ops) for view in one.dims]
    found: dict[tuple[str, ...], dict[str, set[int]]] = {}
    for rule in rules:
        axes = tuple(r.axis for r in rules if r.dim == rule.dim and sizes[r.axis] > 1)
        of_dim = [v for v in views if v.name == rule.dim and set(v.axes) & set(axes)]
        if of_dim:
            found.setdefault(axes, {})[rule.dim] = {view.size for view in of_dim}
    if not found:
        return "By itself it splits no op."
    said = []
    for axes, dims in found.items():
        over = " and ".join(f"`{axis}`={sizes[axis]}" for axis in axes)
        ends = {dim: [str(n) for n in sorted({min(n), max(n)})] for dim, n in dims.items()}
        words = [f"`{dim}` ({' to '.join(both)})" for dim, both in ends.items()]
        said.append(f"{either(words, 'and')} over {over}")
    text = f"Splits {' and '.join(said)}"
    if kind:
        split = {rule.dim for rule in rules}
        share = [t for t in kept if any(d.name in split and d.axes for d in t.dims)]
        text += f", of {what}: {byte_words(sum(t.bytes for t in share))} of them on a device"
    how = rules[0].words + ["padded where it does not divide"] * rules[0].pads
    return f"{text}, {either(how, 'and')}." if how else f"{text}."


def _collectives(moves: Iterable[MoveView], least: float) -> list[str]:
    """Collectives of at least so many bytes in words, those over the same axes together."""
    groups: dict[tuple[str, tuple[str, ...]], list[MoveView]] = {}
    for move in moves:
        groups.setdefault((move.operation, move.axes), []).append(move)
    size = {key: sum(m.count * m.bytes for m in some) for key, some in groups.items()}
    said = []
    for operation, axes in sorted(groups, key=lambda key: -size[key]):
        some, total = groups[operation, axes], size[operation, axes]
        count = sum(m.count for m in some)
        seconds = sum(m.count * (m.seconds or 0.0) for m in some)
        alone = f", {time_words(seconds)} alone" if seconds else ""
        over = either([f"`{axis}`" for axis in axes], "and")
        name = f"{operation}{'s' * (count > 1)}"
        if total >= least:
            said.append(f"{count:,} {name} over {over} ({byte_words(total)}{alone})")
    return said
