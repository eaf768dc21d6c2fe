"""What orders elements along a dim."""

import meshdsl as md
from meshdsl.ops import sorting
from tests.catalogue import Case, Entry


def _sort(fn):
    def example(draw):
        a, b = draw.dims("a", "b")
        descending = draw.pick(False, True)
        x = draw.pick((a, b), (a,))
        return Case(lambda x: fn(x, a, descending=descending), (draw.tensor(*x),), (a,))

    return example


def _top_k(draw):
    a, b = draw.dims("a", "b")
    k = md.Dim("v", draw.integer(0, a.size))
    return Case(lambda x: sorting.top_k(x, a, k), (draw.tensor(a, b),), (a,))


def _nth(fn):
    def example(draw):
        a, b = draw.dims("a", "b")
        n = draw.integer(1, max(1, a.size))
        return Case(lambda x: fn(x, a, n), (draw.tensor(a, b),), (a,))

    return example


def _searchsorted(draw):
    a, b, c = draw.dims("a", "b", "c")
    side = draw.pick("left", "right")
    table = sorting.sort(draw.tensor(a, b), a)
    return Case(
        lambda x, v: sorting.searchsorted(x, v, a, side=side),
        (table, draw.tensor(*draw.pick((b, c), (c,)))),
        (a,),
    )


SORT = "rows that it gets whole; a lone row: its part, merged with those of others in turn"
NTH = "the largest of its part; or, where those are many, how many elements of its part are above bounds, which close in"
ENTRIES = [
    Entry("sort", _sort(sorting.sort), SORT, ("all_to_all", "ppermute")),
    Entry("argsort", _sort(sorting.argsort), SORT, ("all_to_all", "ppermute"), gradients=False),
    Entry("top_k", _top_k, "the k largest of its part; the k largest of those of all parts, which are gathered", ("all_gather",),
          "TopKOperation; the new dim may not be split"),
    Entry("nth_largest", _nth(sorting.nth_largest), NTH, ("all_gather", "psum"), "TopKOperation; gathers n elements of each part"),
    Entry("nth_smallest", _nth(sorting.nth_smallest), NTH, ("all_gather", "psum"), "TopKOperation; gathers n elements of each part"),
    Entry("searchsorted", _searchsorted, "how many elements of its part come before a value", gradients=False),
]  # fmt: skip
