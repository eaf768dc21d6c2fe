"""What a search has found, as text: what `meshdsl search` prints.

The best layout comes first, then what is near to it in one table, and what its differences from the
best shipped layout are worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from meshdsl.figures import byte_words, columns, give_or_take, time_words
from meshdsl.layout import LEVELS, Layout
from meshdsl.layout_search.constraints import words_of
from meshdsl.layout_search.found import Candidate, Difference, Found, Judged
from meshdsl.layout_search.plan import attributes

_EQUAL = 5e-4  # a share of a step that is not worth a word
_SHOWN = 8  # rows of the frontier


def describe(found: Found) -> str:
    """All that a search has found."""
    best = ["the best layout", *(f"  {line}" for line in candidate_lines(found.best.candidate))]
    parts = [_head(found), best, _table(found), _differences(found)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(found: Found) -> list[str]:
    best, took = found.best, time_words(found.seconds)
    compiled = f", {found.compiled:,} compiled, in {took} without the compiler"
    how = compiled if found.compiled else f", in {took}"
    judged = f"judged by the {best.judge}, of the likeliest {found.compiled:,} by the estimate"
    if best.judge == "estimate":
        free = f"with {found.margin:.0%} of the memory kept free"
        judged = f"judged by the estimate, {free}; --compile K asks the compiler"
    uncertainty = best.estimate.uncertainty if best.estimate else None
    unsure = give_or_take(best.step, uncertainty) if best.judge == "estimate" else ""
    stopped = "it was stopped before it ended by itself: with more --seconds it may find better"
    return [
        f"{found.title}, on {found.target}",
        f"searched: {found.explained:,} layouts estimated{how}",
        *([] if found.ended else [stopped]),
        judged,
        f"best: step {step_words(best.step)}{unsure}, {memory_words(best, found)}",
        *_undecided(found),
        _beside_shipped(best, found.shipped),
    ]


def _undecided(found: Found) -> list[str]:
    """How many may be faster than the best, as far as the estimate can tell."""
    if count := len(found.close):
        others = f"{count:,} other{'s' * (count > 1)}"
        if not found.compiled:
            ask = "--compile K compiles the likeliest first"
        else:
            ask = "not compiled; a larger --compile goes on with the likeliest"
        return [f"{others} may be faster, within what the estimate is good for: {ask}"]
    if not found.compiled or not found.best.estimate or not found.best.estimate.deviations:
        return []
    left = f"the other {len(found.fitting):,} that fit" if found.fitting else "no other"
    return [f"not compiled: {left}, each slower by more than the estimate may be off"]


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
    rows += [(word, str(value)) for word, value in words_of(layout).items()]
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
    said += [f"{word} {value}" for word, value in words_of(candidate.layout).items()]
    return "; ".join([*said, *(f"{key}={value}" for key, value in candidate.settings)])


def _rule_words(layout: Layout) -> str:
    """`batch -> data; heads, d_ff, length (move = ring) -> model; parameters: d_model -> data`."""
    said = []
    for level in LEVELS:
        # Rules of one axis stand together; those of several axes never interact.
        dims: dict[str, dict[str, None]] = {}
        for r in (r for r in layout.parsed if r.level == level):
            dims.setdefault(r.axis, {})[line_words({"rule": r.dim, **attributes(r)})] = None
        head = "" if level == "rules" else f"{level}: "
        for words, axes in groupby(dims, key=lambda axis: ", ".join(dims[axis])):
            said.append(f"{head}{words} -> {', '.join(axes)}")
    return "; ".join(said) or "nothing is split"


def _name(judged: Judged) -> str:
    """A shipped layout by its name and mesh."""
    return f"{judged.candidate.shipped} ({mesh_words(judged.candidate.layout)})"


# -- several layouts ---------------------------------------------------------------------------


def _table(found: Found) -> list[str]:
    """A row for the best, for all that is near to it, and for the best shipped layout."""
    # Of a long frontier those that are nearest to the fastest.
    frontier = found.frontier[-_SHOWN:]
    some = [found.best, found.second, found.shipped, *frontier, *found.rejected]
    shown = {id(j.candidate): j for j in some if j is not None}
    if len(shown) == 1:
        return []
    sure = {id(j.candidate) for j in frontier}
    other = lambda j: j.judge != found.best.judge
    rows = [("", "step", "", "peak", "memory", "waits", "collectives by axis", "mesh", "layout")]
    for j in sorted(shown.values(), key=lambda j: (other(j), not j.fits, j.step)):
        share = j.step / found.best.step - 1 if found.best.step and not other(j) else 0.0
        moved = ", ".join(f"{a.name} {byte_words(a.bytes)}" for a in j.axes if a.bytes)
        rows.append(
            (
                "*" if id(j.candidate) in sure else "",
                step_words(j.step),
                f"{share:+.1%}" if abs(share) > _EQUAL else "",
                byte_words(j.peak),
                verdict(j, found),
                time_words(j.exposed),
                moved or "none",
                mesh_words(j.candidate.layout),
                layout_words(j.candidate),
            )
        )
    more = len(found.frontier) - len(frontier)
    return [
        "near to the best; nothing found is both smaller and faster than a row with a *",
        *columns(rows, right=(1, 2, 3, 5)),
        *(["  rows with `estimate` are not compiled"] if any(map(other, shown.values())) else []),
        *([f"  and {more} with less memory, which are slower"] if more else []),
    ]


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
