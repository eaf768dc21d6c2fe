"""How a run stands, as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from meshdsl.figures import clock_words, long_words
from meshdsl.train.watch.event_words import event_words
from meshdsl.train.watch.events import Event
from meshdsl.train.watch.goodput import CAUSES, Goodput
from meshdsl.train.watch.metrics_file import is_finite
from meshdsl.train.watch.standing import Standing

_HEIGHT = 8  # lines of a chart
_SIDE = 10  # columns of the values beside it
_EVENTS = 6  # that are shown
_LEAST = 0.001  # of the time of a run: what takes less is left out
# The dots of a braille letter, by their column and their line from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def standing_lines(run: Standing, width: int) -> Iterator[str]:
    """How a run stands, in lines of at most `width` columns where words fit into that."""
    facts = dict(run.facts())
    head = {name: facts.pop(name) for name in ("step", "left") if name in facts}
    yield "  ".join([run.name, run.state_words, *_named(head)])
    losses = [line["loss"] for line in run.lines if "loss" in line]
    yield from chart(losses, width - _SIDE - 1)
    if facts:
        yield "  ".join(_named(facts))
    if run.goodput:
        yield from goodput_lines(run.goodput)
    for event in list(_news(run))[-_EVENTS:]:
        yield f"{long_words(round(run.now - event['time'])):>9} ago  {event_words(event)}"[:width]


def _news(run: Standing) -> Iterator[Event]:
    """The events, of checkpoints only the newest."""
    saved = [event for event in run.events if event["event"] == "checkpoint"]
    yield from (one for one in run.events if one["event"] != "checkpoint" or one is saved[-1])


def _named(facts: Mapping[str, str]) -> list[str]:
    return [f"{name} {value}" for name, value in facts.items()]


def goodput_lines(found: Goodput) -> Iterator[str]:
    """The goodput of a run, and the causes of what was lost, the largest first."""
    wall = found.wall or 1.0
    starts = f", {found.starts} starts" if found.starts > 1 else ""
    yield f"goodput {found.share:.1%} of {clock_words(found.wall)}{starts}"
    for cause, seconds in sorted(found.losses.items(), key=lambda item: -item[1]):
        if seconds >= _LEAST * wall:
            more = _start_parts(found) if cause == "start" else ""
            more = f"{found.lost_steps} steps" if cause == "lost" else more
            words = f"{CAUSES[cause]}: {more}" if more else CAUSES[cause]
            yield f"{seconds / wall:>8.1%} {clock_words(seconds):>9}  {words}"


def _start_parts(found: Goodput) -> str:
    most = sorted(found.start_parts.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{part.replace('_', ' ')} {clock_words(seconds)}" for part, seconds in most)


def chart(values: Sequence[float], width: int) -> list[str]:
    """A curve of letters: means of equally many values beside each other, in dots of braille.

    The largest and the smallest mean stand on the left. Values that are not finite are left out;
    there are no lines where there are none.
    """
    width = max(1, width)
    points = np.asarray(_means(values, 2 * width))
    known = np.flatnonzero(np.isfinite(points))
    if not known.size:
        return []
    along = np.linspace(0, len(points) - 1, 2 * width)
    curve = np.interp(along, known, points[known])
    low, high = curve.min(), curve.max()
    rows = 4 * _HEIGHT
    shares = (high - curve) / (high - low) if high > low else np.full(2 * width, 0.5)
    cells = [[0] * width for _ in range(_HEIGHT)]
    for x, y in enumerate(np.minimum(rows - 1, (shares * rows).astype(int))):
        cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    lines = ["".join(chr(0x2800 + cell) for cell in row).rstrip("\u2800") for row in cells]
    side = [""] * _HEIGHT
    side[0], side[-1] = f"{high:.4g}", f"{low:.4g}"
    return [f"{words:>{_SIDE}} {line}" for words, line in zip(side, lines, strict=True)]


def _means(values: Sequence[float], count: int) -> list[float]:
    """At most `count` means, each of as many values that follow each other; NaN: none is finite."""
    size = max(1, math.ceil(len(values) / count))
    found = []
    for first in range(0, len(values), size):
        part = [value for value in values[first : first + size] if is_finite(value)]
        found.append(math.fsum(part) / len(part) if part else math.nan)
    return found
