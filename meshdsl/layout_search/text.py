"""What a search has found, as text: what `meshdsl search` prints.

The best layout comes first, then the frontier of memory against time, the best beside the second
and the best shipped one, what the differences are worth, and what was not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from meshdsl.figures import byte_words, columns, time_words
from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraints import WORDS
from meshdsl.layout_search.found import Candidate, Difference, Found, Judged
from meshdsl.predict.explanation import AxisView

_EQUAL = 5e-4  # a share of a step that is not worth a word
_SHOWN = 8  # rows of the frontier, and of what was not taken


def describe(found: Found) -> str:
    """All that a search has found."""
    parts = [
        _head(found),
        _best(found),
        _frontier(found),
        _side_by_side(found),
        _differences(found),
        _rejected(found),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(found: Found) -> list[str]:
    best, shipped = found.best, found.shipped
    lines = [f"{found.title}, on {found.target}"]
    asked = f", {found.compiled:,} compiled" if found.compiled else ""
    lines.append(
        f"searched: {found.explained:,} layouts estimated{asked}, in {time_words(found.seconds)}"
        f"{' without the compiler' * bool(asked)}"
    )
    if not found.ended:
        lines.append(
            "it was stopped before it ended by itself: with more --seconds it may find better"
        )
    if best.judge == "estimate":
        lines.append(
            f"judged by the estimate, with {found.margin:.0%} of the memory kept free; --compile K "
            "asks the compiler"
        )
    else:
        lines.append(f"judged by the {best.judge}, of the best {found.compiled:,} by the estimate")
    lines.append(f"best: step {step_words(best.step)}, {memory_words(best, found)}")
    if shipped is None:
        lines.append("no shipped layout obeys and fits")
    elif best.candidate.shipped:
        settings = " ".join(f"{key}={value}" for key, value in best.candidate.settings)
        how = f", with {settings}" if settings else ""
        lines.append(f"it is the shipped layout {best.candidate.shipped}{how}")
    else:
        by = f"the best shipped layout, {_name(shipped)}"
        share = shipped.step / best.step - 1 if best.step else 0.0
        unlike = " by different judges" if shipped.judge != best.judge else ""
        faster = f"{share:.1%} faster than" if share < 1 else f"{share + 1:.1f} times as fast as"
        faster = "as fast as" if abs(share) < _EQUAL else faster
        lines.append(f"{faster} {by}{unlike and ','}{unlike}")
    return lines


def step_words(seconds: float) -> str:
    """The time of a step, in digits that show a difference of a tenth of a percent."""
    return time_words(seconds) if seconds < 0.9995 else f"{seconds:.3f} s"


def memory_words(judged: Judged, found: Found) -> str:
    """The peak, and what is known of whether it fits: `peak 8.20 GiB of 95.74 GiB, fits: ...`.

    Only what a compiler has confirmed "fits". An estimate says how much it leaves free.
    """
    return (
        f"peak {byte_words(judged.peak)} of {byte_words(found.budget)} per device, "
        f"{verdict(judged, found)}"
    )


def verdict(judged: Judged, found: Found) -> str:
    """Who says what of the memory, in a few words."""
    over = f"does NOT fit, by {byte_words(judged.peak - found.budget)}"
    if judged.refused:
        return f"{judged.judge}: refused, {judged.refused}"
    if judged.judge != "estimate":
        return f"{judged.judge}: {'fits' if judged.fits else over}"
    free = 1 - judged.peak / found.budget if found.budget else 0.0
    if judged.fits:
        return f"{judged.judge}: {free:.0%} free"
    return f"{judged.judge}: {f'only {free:.0%} free' if free >= 0 else over}"


# -- the best layout, line by line -------------------------------------------------------------


def _best(found: Found) -> list[str]:
    return ["the best layout", *(f"  {line}" for line in candidate_lines(found.best.candidate))]


def candidate_lines(candidate: Candidate) -> list[str]:
    """A candidate, a line for the mesh, one for each rule, and one for its settings."""
    layout = candidate.layout
    rows = [("mesh", mesh_words(layout))]
    for level in LEVELS:
        lines = [line_words(line) for line in getattr(layout, level)]
        rows += [(level if i == 0 else "", line) for i, line in enumerate(lines)]
    rows += [(word, str(getattr(layout, word))) for word in _said(layout)]
    if candidate.settings:
        rows.append(("settings", " ".join(f"{key}={value}" for key, value in candidate.settings)))
    return columns(rows, indent=0)


def mesh_words(layout: Layout) -> str:
    """The mesh in words: `data=16 model=4`, with what goes across slices marked."""
    words = [
        f"{axis}={size}{' (across slices)' * (axis in layout.dcn)}"
        for axis, size in layout.mesh.items()
    ]
    return " ".join(words) or "one device"


def line_words(line: object) -> str:
    """A line of a layout, with its attributes in brackets."""
    if isinstance(line, str):
        return line
    assert isinstance(line, dict)
    said = {key: value for key, value in line.items() if key != "rule"}
    if "microbatches" in said:
        ((dim, count),) = said["microbatches"].items()
        said["microbatches"] = f"{count} of {dim}"
    how = ", ".join(f"{key} = {value}" for key, value in said.items())
    return f"{line['rule']}{how and f' ({how})'}"


def layout_words(candidate: Candidate) -> str:
    """A candidate in one line: its shipped name, or its rules, an axis after another."""
    said = [candidate.shipped] if candidate.shipped else [_rule_words(candidate.layout)]
    said += [f"{word} {getattr(candidate.layout, word)}" for word in _said(candidate.layout)]
    said += [f"{key}={value}" for key, value in candidate.settings]
    return "; ".join(one for one in said if one)


def _rule_words(layout: Layout) -> str:
    """`batch -> data; heads, d_ff, length (ring) -> model; parameters: d_model -> data`."""
    said = []
    for level in LEVELS:
        lines = []
        # Rules of one axis stand together; those of several axes never interact.
        axes = dict.fromkeys(rule.axis for rule in layout.parsed if rule.level == level)
        for axis in axes:
            mine = [r for r in layout.parsed if r.level == level and r.axis == axis]
            dims = [r.dim if r.move == Rule.move else f"{r.dim} ({r.move})" for r in mine]
            lines.append((tuple(dict.fromkeys(dims)), axis))
        for dims, same in groupby(lines, key=lambda pair: pair[0]):
            axes_of = ", ".join(axis for _, axis in same)
            said.append(f"{'' if level == 'rules' else f'{level}: '}{', '.join(dims)} -> {axes_of}")
    return "; ".join(said) or "nothing is split"


def _said(layout: Layout) -> list[str]:
    """What the layout says beside its rules."""
    return [word for word, default in WORDS.items() if getattr(layout, word) != default]


def _name(judged: Judged) -> str:
    """A shipped layout by its name and mesh."""
    name = judged.candidate.shipped or judged.candidate.layout.name
    mesh = mesh_words(judged.candidate.layout)
    return f"{name} ({mesh})"


# -- several layouts ---------------------------------------------------------------------------


def _frontier(found: Found) -> list[str]:
    if len(found.frontier) < 2:
        return []
    rows = [("peak", "step", "", "memory", "mesh", "layout")]
    # All from the least memory to the fastest; of many those that are nearest to the fastest.
    shown = found.frontier[-_SHOWN:]
    for judged in shown:
        rows.append(
            (
                byte_words(judged.peak),
                step_words(judged.step),
                _slower(judged.step, found.best.step) if judged.judge == found.best.judge else "",
                verdict(judged, found),
                mesh_words(judged.candidate.layout),
                layout_words(judged.candidate),
            )
        )
    more = len(found.frontier) - len(shown)
    return [
        "memory against time: nothing found is both smaller and faster than one of these",
        *columns(rows, right=(0, 1, 2)),
        *(["  rows with `estimate` are not compiled"] if len({j.judge for j in shown}) > 1 else []),
        *([f"  and {more} with less memory, which are slower"] if more else []),
    ]


def _slower(step: float, best: float) -> str:
    return f"{step / best - 1:+.1%}" if best and abs(step / best - 1) > _EQUAL else ""


def _side_by_side(found: Found) -> list[str]:
    """The best, the second and the best shipped one in columns."""
    shown = [("best", found.best)]
    if found.second is not None:
        name = found.second.candidate.shipped
        shown.append((f"second: {name}" if name else "second", found.second))
    if found.shipped is not None and not found.best.candidate.shipped:
        shown.append((f"shipped: {found.shipped.candidate.shipped}", found.shipped))
    if len(shown) == 1:
        return []
    best = found.best
    several = [judged for _, judged in shown]

    def step(judged: Judged) -> str:
        # What the estimate says of one is not held against what the compiler says of another.
        slower = _slower(judged.step, best.step) if judged.judge == best.judge else ""
        return f"{step_words(judged.step)}{slower and f' ({slower})'}"

    judges = [judged.judge for judged in several]
    rows = [
        ("", *(name for name, _ in shown)),
        *([("judged by", *judges)] if len(set(judges)) > 1 else []),
        ("step", *map(step, several)),
        ("compute", *(time_words(judged.compute) for judged in several)),
        ("waits for collectives", *(time_words(judged.exposed) for judged in several)),
        ("peak", *(byte_words(judged.peak) for judged in several)),
        ("memory", *(verdict(judged, found) for judged in several)),
        ("mesh", *(mesh_words(judged.candidate.layout) for judged in several)),
    ]
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
    rows = [(*_difference(one, found.best.step),) for one in found.differences]
    return [
        f"what differs from {_name(found.shipped)}, and what the best would lose without it",
        *columns(rows),
    ]


def _difference(one: Difference, step: float) -> tuple[str, str, str]:
    """A line with its sign, seconds and bytes."""
    sign = "+" if one.added else "-"
    if one.seconds is None:
        return f"{sign} {one.line}", f"not known: {one.why}" if one.why else "not known", ""
    share = f" ({one.seconds / step:+.1%})" if step else ""
    worth = f"{_signed(time_words, one.seconds)}{share}"
    if one.bytes is None:
        return f"{sign} {one.line}", worth, one.why
    return f"{sign} {one.line}", worth, f"peak {_signed(byte_words, one.bytes)}"


def _signed(words, value: float) -> str:
    return f"{'-' if value < 0 else '+'}{words(abs(value))}"


def _rejected(found: Found) -> list[str]:
    if not found.rejected:
        return []
    rows = [
        (
            step_words(one.judged.step),
            byte_words(one.judged.peak),
            one.why,
            mesh_words(one.judged.candidate.layout),
            layout_words(one.judged.candidate),
        )
        for one in found.rejected[:_SHOWN]
    ]
    return ["not taken, the nearest to the best first", *columns(rows, right=(0, 1))]
