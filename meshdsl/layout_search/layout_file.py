"""The layout that a search has found, as a file: with what each rule splits, and what that costs.

The comments are read off the explanation of the step under that layout; none is guessed.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshdsl.figures import byte_words, time_words
from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraints import WORDS
from meshdsl.predict.explanation import Explanation, MoveView

_WIDTH = 100
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
    if layout.mesh:
        lines += ["", "[mesh]", *(f"{axis} = {_value(size)}" for axis, size in table.items())]
    if across:
        lines += ["", "[mesh.dcn]", *(f"{axis} = {_value(size)}" for axis, size in across.items())]
    lines += ["", "[layout]"]
    for level in LEVELS:
        rules = getattr(layout, level)
        if level == "rules" or rules:
            lines += _list(level, rules, layout, explanation)
    for word, default in WORDS.items():
        if (value := getattr(layout, word)) != default:
            lines.append(f"{word} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _list(
    level: str, rules: Sequence[Any], layout: Layout, explanation: Explanation | None
) -> list[str]:
    """The lines of one list of rules."""
    if not rules:
        return [f"{level} = []"]
    lines = [f"{level} = ["]
    for number, line in enumerate(rules, 1):
        said = _comment(level, number, layout, explanation) if explanation else ()
        for sentence in said:
            first, below = "  # ", "  #   "
            lines += textwrap.wrap(
                sentence,
                _WIDTH,
                initial_indent=first,
                subsequent_indent=below,
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append(f"  {_value(line)},")
    return [*lines, "]"]


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
    sizes = {axis.name: axis.size for axis in e.axes}
    if all(sizes.get(rule.axis, 1) == 1 for rule in rules):
        over = _and([f"`{axis}`" for axis in dict.fromkeys(rule.axis for rule in rules)])
        yield f"Splits nothing here: {over} has one device."
        return
    yield _splits(level, rules, e)
    own, with_others = _collectives(rules, e)
    if own:
        yield f"It causes, in a step: {'; '.join(own)}."
    if with_others:
        yield f"Together with other rules: {'; '.join(with_others)}."
    if not own and not with_others:
        axes = {rule.axis for rule in rules}
        moves = any(axes & set(move.axes) for op in e.ops for move in op.moves)
        if any(str(rules[0]) in _causes(move) for op in e.ops for move in op.moves):
            yield "The collectives that it causes are small."
        elif level != "rules" and moves:
            yield "What gathers and sums them is counted at the rules of the ops that ask for it."
        else:
            yield "It causes no collective."


def _splits(level: str, rules: Sequence[Rule], e: Explanation) -> str:
    """What a line splits, in words."""
    sizes = {axis.name: axis.size for axis in e.axes}
    if (cut := rules[0].microbatches) is not None:
        stages = sizes.get(rules[0].axis, 1)
        return (
            f"A pipeline: `{rules[0].dim}` in {stages} stages over `{rules[0].axis}`, `{cut[0]}` "
            f"in {cut[1]} microbatches."
        )
    views = [view for op in e.ops for view in op.dims]
    if level != "rules":
        kind, what = _AT_REST[level]
        kept = [t for t in e.memory.at_rest if t.kind == kind]
        views = [view for tensor in kept for view in tensor.dims]
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
        said.append(f"{_and([f'`{dim}` ({_range(dims[dim])})' for dim in dims])} over {over}")
    text = f"Splits {' and '.join(said)}"
    if level != "rules":
        split = {rule.dim for rule in rules}
        share = [t for t in kept if any(d.name in split and d.axes for d in t.dims)]
        text += f", of {what}: {byte_words(sum(t.bytes for t in share))} of them on a device"
    how = _how(rules[0])
    return f"{text}{how and ', '}{how}."


def _how(rule: Rule) -> str:
    """What the attributes of a rule say."""
    said = rule.words + (["padded where it does not divide"] if rule.pads else [])
    return _and(said) if said else ""


def _causes(move: MoveView) -> list[str]:
    """The rules behind a collective."""
    return re.split(r"; then | or ", move.why)


def _collectives(rules: Sequence[Rule], e: Explanation) -> tuple[list[str], list[str]]:
    """Collectives that a line causes alone, and with other lines; small ones are left out."""
    mine = str(rules[0])
    total = sum(move.count * move.bytes for op in e.ops for move in op.moves)
    groups: tuple[dict, dict] = ({}, {})
    for move in (move for op in e.ops for move in op.moves):
        causes = _causes(move)
        if mine not in causes:
            continue
        key = (move.operation, move.axes)
        into = groups[len(causes) > 1]
        count, size, seconds = into.get(key, (0, 0, 0.0))
        into[key] = (
            count + move.count,
            size + move.count * move.bytes,
            seconds + move.count * (move.seconds or 0.0),
        )
    said: tuple[list[str], list[str]] = ([], [])
    for into, words in zip(groups, said, strict=True):
        for (operation, axes), (count, size, seconds) in sorted(
            into.items(), key=lambda item: -item[1][1]
        ):
            if size < _MATTERS * total:
                continue
            alone = f", {time_words(seconds)} alone" if seconds else ""
            over = _and([f"`{axis}`" for axis in axes])
            words.append(
                f"{count:,} {operation}{'s' * (count > 1)} over {over} ({byte_words(size)}{alone})"
            )
    return said


def _range(sizes: set[int]) -> str:
    return str(min(sizes)) if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
