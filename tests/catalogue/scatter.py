"""What puts elements where an index says, and what is said of the matrix that two dims span."""

import meshdsl as md
from meshdsl.ops import triangle
from meshdsl.ops.scatter import bincount, scatter, segment_sum
from tests.catalogue import Case, Entry


def _scatter(*how):
    def example(draw):
        a, b, c = draw.dims("a", "b", "c")
        chosen = draw.pick(*how)
        picked = draw.pick((c,), (b, c))
        x, ids, updates = (
            draw.tensor(a, b),
            draw.integers(*picked, below=a.size + 1),
            draw.tensor(b, c),
        )
        return Case(
            lambda x, ids, updates: scatter(x, ids, updates, a, how=chosen),
            (x, ids, updates),
            (a, c),
        )

    return example


def _segment_sum(draw):
    a, b, v = draw.dims("a", "b", "v")
    ids = draw.integers(*draw.pick((a,), (b, a)), below=v.size + 1)
    return Case(lambda x, ids: segment_sum(x, ids, a, v), (draw.tensor(a, b), ids), (a,))


def _bincount(draw):
    a, b, v = draw.dims("a", "b", "v")
    ids, weights = draw.integers(a, b, below=v.size + 1), draw.tensor(b, a)
    return Case(
        lambda ids, w: [bincount(ids, v), bincount(ids, v, weights=w)], (ids, weights), (a, b)
    )


def _diagonal(draw):
    a, b, c = draw.dims("a", "b", "c")
    new = md.Dim("v", min(a.size, b.size))
    return Case(lambda x: triangle.diagonal(x, a, b, new), (draw.tensor(a, c, b),), (a, b))


def _mask(fn):
    def example(draw):
        a, b = draw.dims("a", "b")
        k = draw.integer(-2, 2)
        return Case(lambda x: fn(x, a, b, k), (draw.tensor(a, b),), (a, b))

    return example


def _eye(draw):
    a, b = draw.dims("a", "b")
    return Case(lambda x: triangle.eye(a, b, like=x), (draw.tensor(a),), (a, b))


OWN = "the updates that fall into its part"
ONE_HOT = "OneHotOperation and EinsumOperation; of the size of both dims"
ENTRIES = [
    Entry("scatter", _scatter("add"), f"{OWN}, added up", mesh_tensorflow=ONE_HOT),
    Entry("scatter", _scatter("max", "min"), f"{OWN}: the largest (smallest) of them", ("pmax",)),
    Entry("scatter", _scatter("set"), f"{OWN}: the last of them", ("pmax",)),
    Entry("segment_sum", _segment_sum, f"{OWN}, added up", mesh_tensorflow=ONE_HOT),
    Entry("bincount", _bincount, f"{OWN}, counted", mesh_tensorflow=ONE_HOT),
    Entry("diagonal", _diagonal, "the elements of the diagonal that it has", ("ppermute",)),
    Entry(
        "tril",
        _mask(triangle.tril),
        "its part, by the indices that it has",
        mesh_tensorflow="RangeOperation and BinaryOpWithBroadcasting",
    ),
    Entry(
        "triu",
        _mask(triangle.triu),
        "its part, by the indices that it has",
        mesh_tensorflow="RangeOperation and BinaryOpWithBroadcasting",
    ),
    Entry(
        "eye",
        _eye,
        "its part, by the indices that it has",
        mesh_tensorflow="RangeOperation and BinaryOpWithBroadcasting",
        gradients=False,
    ),
]
