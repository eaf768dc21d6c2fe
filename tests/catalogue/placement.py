"""Placements by hand. Examples name `p`, an axis of every mesh that they meet, and sizes that all of these divide."""

import meshdsl as md
from tests.catalogue import Case, Entry


def _dims(draw):
    return md.Dim("a", draw.pick(24, 24, 24, 0)), md.Dim("b", 24)


def _resharded(draw):
    a, b = _dims(draw)
    split, pending = draw.pick(({"b": "p"}, ()), ({"a": "p"}, ()), ({}, ("p",)))
    return Case(lambda x: md.reshard(x, split, pending=pending), (draw.tensor(a, b),), (a,))


def _replicated(draw):
    a, b = _dims(draw)
    return Case(md.replicate, (draw.tensor(a, b),), (a,))


ENTRIES = [
    Entry(
        "reshard",
        _resharded,
        "nothing",
        ("all_gather", "all_to_all", "ppermute"),
        "none: one layout for all, no placement by hand",
    ),
    Entry("replicate", _replicated, "nothing", ("all_gather",)),
]
