"""Ops that pick, cut, join, move or run over the elements of a dim."""

import meshdsl as md
from meshdsl.ops.cumulative import SCANS
from tests.catalogue import Case, Entry

NOT_SPLIT = "not along a split dim"
WINDOW = "its own elements of the result; fetches those that it lacks"


def _take(draw):
    a, b, c = draw.dims("a", "b", "c")
    x, ids = (
        draw.tensor(a, b),
        draw.pick(draw.integers(c, below=a.size + 2), draw.integers(b, c, below=a.size + 2)),
    )
    return Case(lambda x, ids: md.take(x, ids, a), (x, ids), (a,))


def _one_hot(draw):
    a, v = draw.dims("a", "v")
    return Case(lambda ids: md.one_hot(ids, v), (draw.integers(a, below=v.size + 2),), (v,))


def _iota(draw):
    a, v = draw.dims("a", "v")
    return Case(lambda x: md.iota(v, like=x), (draw.tensor(a),), (v,))


def _slice(draw):
    a, b = draw.dims("a", "b")
    start = draw.integer(0, a.size)
    new = md.Dim("v", draw.integer(0, a.size - start))
    return Case(lambda x: md.slice(x, a, start, new), (draw.tensor(a, b),), (a,))


def _pad(draw):
    a, b = draw.dims("a", "b")
    before, after, value = draw.integer(0, 5), draw.integer(0, 9), draw.pick(1.5, 0)
    return Case(lambda x: md.pad(x, a, before, after, value, out="v"), (draw.tensor(a, b),), (a,))


def _split(draw):
    a, b = draw.dims("a", "b")
    first = draw.integer(0, a.size)
    return Case(
        lambda x: md.split(x, a, [md.Dim("v", first), md.Dim("w", a.size - first)]),
        (draw.tensor(a, b),),
        (a,),
    )


def _concat(draw):
    a, b = draw.dims("a", "b")
    return Case(
        lambda x, y: md.concat([x, y, x], "a", out="v"),
        (draw.tensor(a, b), draw.tensor(a, b)),
        (a,),
    )


def _stack(draw):
    a, b = draw.dims("a", "b")
    return Case(
        lambda x, y: md.stack([x, y, x], "v"),
        (draw.tensor(a, b), draw.tensor(a, b)),
        (md.Dim("v", 3),),
    )


def _unstack(draw):
    a, b = draw.dims("a", "b")
    return Case(lambda x: list(md.unstack(x, a)), (draw.tensor(a, b),), (a,))


def _moved(fn):
    def example(draw):
        a, b = draw.dims("a", "b")
        by = draw.integer(-2 * a.size, 2 * a.size)
        return Case(lambda x: fn(x, a, by), (draw.tensor(a, b),), (a,))

    return example


def _running(fn):
    def example(draw):
        a, b = draw.dims("a", "b")
        how = {"reverse": draw.pick(False, True), "exclusive": draw.pick(False, True)}
        return Case(lambda x: fn(x, a, **how), (draw.tensor(a, b),), (a,))

    return example


ENTRIES = [
    Entry("take", _take, "a lookup in what it has; zeros for the rest", mesh_tensorflow="EinsumOperation with a OneHotOperation (`gather`)"),
    Entry("one_hot", _one_hot, "compares with its own indices", mesh_tensorflow="OneHotOperation", gradients=False),
    Entry("iota", _iota, "numbers its own elements", mesh_tensorflow="RangeOperation", gradients=False),
    Entry("slice", _slice, WINDOW, ("ppermute",), f"SliceOperation; {NOT_SPLIT}"),
    Entry("pad", _pad, WINDOW, ("ppermute",), f"PadOperation; {NOT_SPLIT}, and only zeros"),
    Entry("split", _split, WINDOW, ("ppermute",), f"SplitOperation; {NOT_SPLIT}"),
    Entry("concat", _concat, WINDOW, ("ppermute",), f"ConcatOperation; {NOT_SPLIT}"),
    Entry("stack", _stack, "puts together its own parts", mesh_tensorflow="StackOperation; the new dim not split"),
    Entry("unstack", _unstack, "takes apart what it has", ("all_gather", "all_to_all"), f"UnstackOperation; {NOT_SPLIT}"),
    Entry("shift", _moved(lambda x, dim, by: md.shift(x, dim, by, fill=2)), WINDOW, ("ppermute",), "ShiftOperation; zeros, and sizes that divide"),
    Entry("roll", _moved(md.roll), WINDOW, ("ppermute",), "ShiftOperation with `wrap`; sizes that divide"),
    Entry("flip", _moved(lambda x, dim, _: md.flip(x, dim)), WINDOW, ("ppermute",)),
    *(
        Entry(
            name, _running(getattr(md, name)), "its own scan, then the prefix of one total for each part", ("all_gather",),
            "EinsumOperation with a triangle of ones (`cumsum`); forwards only" if name == "cumsum" else "",
        )
        for name in SCANS
    ),
]  # fmt: skip
