"""What a search has found, as dicts, lists, strings and numbers: what `--json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshdsl.layout import LEVELS, Layout
from meshdsl.layout_search.constraints import WORDS
from meshdsl.layout_search.found import Found, Judged


def found_as_dict(found: Found) -> dict[str, Any]:
    """Everything, with layouts as the tables of a layout file."""
    return {
        "title": found.title,
        "target": found.target,
        "budget": found.budget,
        "margin": found.margin,
        "best": _judged(found.best),
        "second": _judged(found.second) if found.second else None,
        "frontier": [_judged(one) for one in found.frontier],
        "shipped": _judged(found.shipped) if found.shipped else None,
        "differences": [asdict(one) for one in found.differences],
        "rejected": [_judged(one.judged) | {"why": one.why} for one in found.rejected],
        "explained": found.explained,
        "compiled": found.compiled,
        "seconds": found.seconds,
        "ended": found.ended,
    }


def _judged(judged: Judged) -> dict[str, Any]:
    return {
        **layout_as_tables(judged.candidate.layout),
        "settings": dict(judged.candidate.settings),
        "shipped": judged.candidate.shipped,
        "step": judged.step,
        "peak": judged.peak,
        "compute": judged.compute,
        "exposed": judged.exposed,
        "axes": [asdict(axis) for axis in judged.axes],
        "fits": judged.fits,
        "judge": judged.judge,
        "refused": judged.refused,
    }


def layout_as_tables(layout: Layout) -> dict[str, Any]:
    """The two tables of a layout file, which `Layout.from_dict` reads as the same layout."""
    lists = {level: list(getattr(layout, level)) for level in LEVELS if getattr(layout, level)}
    words = {word: getattr(layout, word) for word in WORDS}
    said = {word: value for word, value in words.items() if value != WORDS[word]}
    return {"mesh": layout.mesh_table, "layout": lists | said}
