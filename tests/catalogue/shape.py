"""Ops that rename, regroup or repeat."""

import meshdsl as md
from tests.catalogue import Case, Entry


def _reshape(draw):
    a, b, c = draw.dims("a", "b", "c")
    v, w = draw.dims("v", "w")
    product = md.Dim("a", v.size * w.size)
    merge = Case(
        lambda x: md.reshape(x, (md.Dim("v", a.size * b.size), c)), (draw.tensor(a, b, c),), (a, b)
    )
    split = Case(lambda x: md.reshape(x, (b, v, w)), (draw.tensor(product, b),), (product,))
    across = Case(
        lambda x: md.reshape(x, (v, md.Dim("w", w.size * b.size))),
        (md.transpose(draw.tensor(product, b), (product, b)),),
        (product, b),
    )
    return draw.pick(merge, split, across)


def _rename(draw):
    a, b = draw.dims("a", "b")
    return Case(lambda x: md.rename(x, a, "v"), (draw.tensor(a, b),), (a,))


def _broadcast(draw):
    a, b, v = draw.dims("a", "b", "v")
    return Case(lambda x: md.broadcast(x, (b, v, a)), (draw.tensor(a, b),), (v,))


ENTRIES = [
    Entry(
        "reshape", _reshape, "regroups what it has; of dims that do not divide, fetches the elements that it lacks at the ends", ("ppermute",),
        "ReshapeOperation; an error where a split has no dim to move through, and wrong slices for [3, 2] -> [6] split in 2",
    ),
    Entry("rename", _rename, "nothing", ("ppermute",), "ReshapeOperation (`rename_dimension`)"),
    Entry("transpose", lambda draw: Case(lambda x: md.transpose(x, x.dims[::-1]), (draw.tensor(*draw.dims("a", "b", "c")),)), "a transpose of its own part",
          mesh_tensorflow="EinsumOperation (`transpose`)"),
    Entry("broadcast", _broadcast, "repeats what it has", mesh_tensorflow="BroadcastOperation"),
]  # fmt: skip
