"""What a search has found, as text: what `meshdsl search` prints.

The best layout comes first, then the frontier of memory against time, the best beside the second
and the best shipped one, what the differences are worth, and what was not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from meshdsl.estimate.explanation import AxisView
from meshdsl.figures import byte_words, columns, time_words
from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraints import WORDS
from meshdsl.layout_search.found import Candidate, Difference, Found, Judged

_EQUAL = 5e-4  # a share of a step that is not worth a word
_SHOWN = 8  # rows of the frontier, and of what was not taken


def describe(found: Found) -> str:
    """All that a search has found."""
    best = ["the best layout", *(f"  {line}" for line in candidate_lines(found.best.candidate))]
    parts = [
        _head(found),
        best,
        _frontier(found),
        _side_by_side(found),
        _differences(found),
        _rejected(found),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(found: Found) -> list[str]:
    best, took = found.best, time_words(found.seconds)
    compiled = f", {found.compiled:,} compiled, in {took} without the compiler"
    how = compiled if found.compiled else f", in {took}"
    judged = f"judged by the {best.judge}, of the best {found.compiled:,} by the estimate"
    if best.judge == "estimate":
        free = f"with {found.margin:.0%} of the memory kept free"
        judged = f"judged by the estimate, {free}; --compile K asks the compiler"
    stopped = "it was stopped before it ended by itself: with more --seconds it may find better"
    return [
        f"{found.title}, on {found.target}",
        f"searched: {found.explained:,} layouts estimated{how}",
        *([] if found.ended else [stopped]),
        judged,
        f"best: step {step_words(best.step)}, {memory_words(best, found)}",
        _beside_shipped(best, found.shipped),
    ]


def _beside_shipped(best: Judged, shipped: Judged | None) -> str:
    """How the best compares with the best shipped layout."""
    if shipped is None:
        return "no shipped layout obeys and fits"
    if best.candidate.shipped:
        settings = " ".join(f"{key}={value}" for key, value in best.candidate.settings)
        return (
            f"it is the shipped layout {best.candidate.shipped}{settings and f', with {settings}'}"
        )
    share = shipped.step / best.step - 1 if best.step else 0.0
    faster = f"{share:.1%} faster than" if share < 1 else f"{share + 1:.1f} times as fast as"
    faster = "as fast as" if abs(share) < _EQUAL else faster
    unlike = ", by different judges" if shipped.judge != best.judge else ""
    return f"{faster} the best shipped layout, {_name(shipped)}{unlike}"


def step_words(seconds: float) -> str:
    """The time of a step, in digits that show a difference of a tenth of a percent."""
    return time_words(seconds) if seconds < 0.9995 else f"{seconds:.3f} s"


def memory_words(judged: Judged, found: Found) -> str:
    """The peak, and what is known of whether it fits: `peak 8.20 GiB of 95.74 GiB, fits: ...`.

    Only what a compiler has confirmed "fits". An estimate says how much it leaves free.
    """
    budget = byte_words(found.budget)
    return f"peak {byte_words(judged.peak)} of {budget} per device, {verdict(judged, found)}"


def verdict(judged: Judged, found: Found) -> str:
    """Who says what of the memory, in a few words."""
    over = f"does NOT fit, by {byte_words(judged.peak - found.budget)}"
    free = 1 - judged.peak / found.budget if found.budget else 0.0
    if judged.refused:
        said = f"refused, {judged.refused}"
    elif judged.judge != "estimate":
        said = "fits" if judged.fits else over
    elif judged.fits:
        said = f"{free:.0%} free"
    else:
        said = f"only {free:.0%} free" if free >= 0 else over
    return f"{judged.judge}: {said}"


# -- a layout in words -------------------------------------------------------------------------


def candidate_lines(candidate: Candidate) -> list[str]:
    """A candidate, a line for the mesh, one for each rule, and one for its settings."""
    layout = candidate.layout
    rows = [("mesh", mesh_words(layout))]
    for level in LEVELS:
        lines = [line_words(line) for line in getattr(layout, level)]
        rows += [(level if i == 0 else "", line) for i, line in enumerate(lines)]
    rows += _said(layout)
    if candidate.settings:
        rows.append(("settings", " ".join(f"{key}={value}" for key, value in candidate.settings)))
    return columns(rows, indent=0)


def mesh_words(layout: Layout) -> str:
    """The mesh in words: `data=16 model=4`, with what goes across slices marked."""
    across = dict.fromkeys(layout.dcn, " (across slices)")
    words = [f"{axis}={size}{across.get(axis, '')}" for axis, size in layout.mesh.items()]
    return " ".join(words) or "one device"


def line_words(line: str | Mapping[str, Any]) -> str:
    """A line of a layout, with its attributes in brackets."""
    if isinstance(line, str):
        return line
    said = {key: value for key, value in line.items() if key != "rule"}
    if "microbatches" in said:
        ((dim, count),) = said["microbatches"].items()
        said["microbatches"] = f"{count} of {dim}"
    how = ", ".join(f"{key} = {value}" for key, value in said.items())
    return f"{line['rule']}{how and f' ({how})'}"


def layout_words(candidate: Candidate) -> str:
    """A candidate in one line: its shipped name, or its rules, an axis after another."""
    said = [candidate.shipped or _rule_words(candidate.layout)]
    said += [f"{word} {value}" for word, value in _said(candidate.layout)]
    return "; ".join([*said, *(f"{key}={value}" for key, value in candidate.settings)])


def _rule_words(layout: Layout) -> str:
    """`batch -> data; heads, d_ff, length (ring) -> model; parameters: d_model -> data`."""
    said = []
    for level in LEVELS:
        # Rules of one axis stand together; those of several axes never interact.
        dims: dict[str, dict[str, None]] = {}
        for r in (r for r in layout.parsed if r.level == level):
            word = r.dim if r.move == Rule.move else f"{r.dim} ({r.move})"
            dims.setdefault(r.axis, {})[word] = None
        head = "" if level == "rules" else f"{level}: "
        for words, axes in groupby(dims, key=lambda axis: ", ".join(dims[axis])):
            said.append(f"{head}{words} -> {', '.join(axes)}")
    return "; ".join(said) or "nothing is split"


def _said(layout: Layout) -> list[tuple[str, str]]:
    """What the layout says beside its rules."""
    said = {word: getattr(layout, word) for word in WORDS}
    return [(word, str(value)) for word, value in said.items() if value != WORDS[word]]


def _name(judged: Judged) -> str:
    """A shipped layout by its name and mesh."""
    return f"{judged.candidate.shipped} ({mesh_words(judged.candidate.layout)})"


# -- several layouts ---------------------------------------------------------------------------


def _frontier(found: Found) -> list[str]:
    if len(found.frontier) < 2:
        return []
    # All from the least memory to the fastest; of many those that are nearest to the fastest.
    shown = found.frontier[-_SHOWN:]
    more = len(found.frontier) - len(shown)
    rows = [("peak", "step", "", "memory", "mesh", "layout")]
    for judged in shown:
        step, slower = step_words(judged.step), _slower(judged, found.best)
        rows.append((byte_words(judged.peak), step, slower, verdict(judged, found), *_what(judged)))
    return [
        "memory against time: nothing found is both smaller and faster than one of these",
        *columns(rows, right=(0, 1, 2)),
        *(["  rows with `estimate` are not compiled"] if len({j.judge for j in shown}) > 1 else []),
        *([f"  and {more} with less memory, which are slower"] if more else []),
    ]


def _what(judged: Judged) -> tuple[str, str]:
    return mesh_words(judged.candidate.layout), layout_words(judged.candidate)


def _slower(judged: Judged, best: Judged) -> str:
    """By what share; empty where it is none, and where another judge says so of the best."""
    share = judged.step / best.step - 1 if best.step and judged.judge == best.judge else 0.0
    return f"{share:+.1%}" if abs(share) > _EQUAL else ""


def _side_by_side(found: Found) -> list[str]:
    """The best, the second and the best shipped one in columns."""
    shown = {"best": found.best}
    if found.second is not None:
        name = found.second.candidate.shipped
        shown[f"second: {name}" if name else "second"] = found.second
    if found.shipped is not None and not found.best.candidate.shipped:
        shown[f"shipped: {found.shipped.candidate.shipped}"] = found.shipped
    if len(shown) == 1:
        return []

    def step(judged: Judged) -> str:
        slower = _slower(judged, found.best)
        return f"{step_words(judged.step)}{slower and f' ({slower})'}"

    several = list(shown.values())
    cells: dict[str, Callable[[Judged], str]] = {
        "judged by": lambda j: j.judge,
        "step": step,
        "compute": lambda j: time_words(j.compute),
        "waits for collectives": lambda j: time_words(j.exposed),
        "peak": lambda j: byte_words(j.peak),
        "memory": lambda j: verdict(j, found),
        "mesh": lambda j: mesh_words(j.candidate.layout),
    }
    if len({judged.judge for judged in several}) == 1:
        del cells["judged by"]
    rows = [("", *shown), *((name, *map(cell, several)) for name, cell in cells.items())]
    axes = dict.fromkeys(axis.name for judged in several for axis in judged.axes if axis.size > 1)
    for axis in axes:
        rows.append((f"over {axis}", *(_over(axis, judged.axes) for judged in several)))
    lines = columns(rows)
    if found.second is not None and not found.second.candidate.shipped:
        second = candidate_lines(found.second.candidate)
        lines += ["", "the second", *(f"  {line}" for line in second)]
    return ["side by side: one step on one device, and the bytes of its collectives", *lines]


def _over(axis: str, axes: Sequence[AxisView]) -> str:
    """The bytes of the collectives over an axis, and their time alone."""
    view = next((view for view in axes if view.name == axis), None)
    if view is None or view.size == 1:
        return "-"
    if not view.bytes:
        return "nothing"
    alone = f", {time_words(view.seconds)} alone" if view.seconds is not None else ""
    return f"{byte_words(view.bytes)}{alone}"


def _differences(found: Found) -> list[str]:
    if found.shipped is None or not found.differences:
        return []
    return [
        f"what differs from {_name(found.shipped)}, and what the best would lose without it",
        *columns([_difference(one, found.best.step) for one in found.differences]),
    ]


def _difference(one: Difference, step: float) -> tuple[str, str, str]:
    """A line with its sign, seconds and bytes."""
    line = f"{'+' if one.added else '-'} {one.line}"
    if one.seconds is None or one.bytes is None:
        return line, f"not known: {one.why}", ""
    share = f" ({one.seconds / step:+.1%})" if step else ""
    sign = lambda value: "-" if value < 0 else "+"
    seconds, size = time_words(abs(one.seconds)), byte_words(abs(one.bytes))
    return line, f"{sign(one.seconds)}{seconds}{share}", f"peak {sign(one.bytes)}{size}"


def _rejected(found: Found) -> list[str]:
    if not found.rejected:
        return []
    rows = [
        (step_words(j.step), byte_words(j.peak), one.why, *_what(j))
        for one in found.rejected[:_SHOWN]
        for j in (one.judged,)
    ]
    return ["not taken, the nearest to the best first", *columns(rows, right=(0, 1))]
