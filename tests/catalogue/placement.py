"""Placements by hand. Examples name `p`, an axis of every mesh that they meet, and sizes that all of these divide."""

import meshdsl as md
from tests.catalogue import Case, Entry

A, B = md.Dim("a", 24), md.Dim("b", 24)


def _resharded(draw):
    split, pending = draw.pick(({"b": "p"}, ()), ({"a": "p"}, ()), ({}, ("p",)))
    return Case(lambda x: md.reshard(x, split, pending=pending), (draw.tensor(A, B),), (A,))


ENTRIES = [
    Entry("reshard", _resharded, "nothing", ("all_gather", "all_to_all", "ppermute"), "none: one layout for all, no placement by hand"),
    Entry("replicate", lambda draw: Case(md.replicate, (draw.tensor(A, B),), (A,)), "nothing", ("all_gather",)),
]
