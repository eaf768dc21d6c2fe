"""Convolution and pooling."""

import meshdsl as md
from tests.catalogue import Case, Entry


def _conv(fn):
    def example(draw):
        a, b, c, d, e = draw.dims("a", "b", "c", "d", "e")
        stride, dilation = draw.pick(1, 2, 3), draw.pick(1, 2)
        run = lambda x, k: fn(
            x, k, {b: d}, out=(..., e), stride=stride, dilation=dilation, into={b: "v"}
        )
        return Case(run, (draw.tensor(a, b, c), draw.tensor(d, c, e)), (b, d))

    return example


def _pool(fn):
    def example(draw):
        a, b, c = draw.dims("a", "b", "c")
        size = draw.integer(1, max(1, b.size))
        stride, padding = draw.pick(1, 2, 3), draw.pick("SAME", "VALID")
        run = lambda x: fn(x, {b: size}, stride=stride, padding=padding, into={b: "v"})
        return Case(run, (draw.tensor(a, b, c),), (b,))

    return example


HALO = "its outputs, of the elements that it has and the halo of their windows; a kernel split along its windows is gathered"
SPATIAL = "no split of spatial and kernel dims, no dilation, no groups"
POOL = "PoolOperation; no split of spatial dims, windows only side by side"
ENTRIES = [
    Entry("conv", _conv(md.conv), HALO, ("ppermute", "all_gather"), f"Conv2dOperation, Conv3dOperation; {SPATIAL}"),
    Entry("conv_transpose", _conv(md.conv_transpose), HALO, ("ppermute", "all_gather"),
          f"Conv2dTransposeOperation, Conv3dTransposeOperation; {SPATIAL}"),
    Entry("max_pool", _pool(md.max_pool), "its outputs, of the elements that it has and the halo of their windows", ("ppermute",), POOL),
    Entry("mean_pool", _pool(md.mean_pool), "its outputs, of the elements that it has and the halo of their windows", ("ppermute",), POOL),
]  # fmt: skip
