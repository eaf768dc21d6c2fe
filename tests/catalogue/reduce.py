"""Reductions, and what is built from them."""

from meshdsl.ops import reduce
from tests.catalogue import Case, Entry

REDUCE = "ReduceOperation"


def _over(fn, low=1, **how):
    """Over one dim of two, or over both."""

    def example(draw):
        a, b = draw.dims("a", "b", low=low)
        over = draw.pick((a,), (b, a))
        return Case(lambda x: fn(x, over), (draw.tensor(a, b, **how),), over)

    return example


def _along(fn):
    def example(draw):
        a, b = draw.dims("a", "b")
        return Case(lambda x: fn(x, a), (draw.tensor(a, b),), (a,))

    return example


PART = "the same of its part"
ENTRIES = [
    Entry("sum", _over(reduce.sum), PART, mesh_tensorflow=REDUCE),
    Entry("mean", _over(reduce.mean), "the sum of its part, over the number of all", mesh_tensorflow=REDUCE),
    Entry("var", _over(lambda x, d: reduce.var(x, d, ddof=1), low=2), "the mean, then squared distances from it: sums of its part",
          ("psum",)),
    Entry("std", _over(reduce.std, low=2), "the root of `var`", ("psum",)),
    Entry("norm", _over(reduce.norm), "the sum of squares of its part; the root of what they come to"),
    Entry("count_nonzero", _over(reduce.count_nonzero), PART, gradients=False),
    Entry("max", _over(reduce.max), PART, ("pmax",), f"{REDUCE}; gives each of equal elements the whole gradient"),
    Entry("min", _over(reduce.min), PART, ("pmax",), f"{REDUCE}; gives each of equal elements the whole gradient"),
    Entry("prod", _over(reduce.prod, low=1), f"{PART}; the product of those of all parts, which are gathered", ("all_gather",), f"{REDUCE}; no gradient"),
    Entry("any", _over(lambda x, d: reduce.any(x > 0.5, d)), PART, ("pmax",), REDUCE, gradients=False),
    Entry("all", _over(lambda x, d: reduce.all(x > -0.5, d)), PART, ("pmin",), REDUCE, gradients=False),
    Entry("argmax", _along(reduce.argmax), f"{PART}; the lowest index of those with the largest element", ("pmax", "pmin"),
          "TopKOperation", gradients=False),
    Entry("argmin", _along(reduce.argmin), f"{PART}; the lowest index of those with the smallest element", ("pmax", "pmin"), gradients=False),
    Entry("logsumexp", _over(reduce.logsumexp), "the sum of exponentials of its part, less the maximum of all", ("pmax", "psum"), REDUCE),
    Entry("softmax", _over(reduce.softmax), "exponentials of its part, less the maximum of all, over the sum of all", ("pmax", "psum"), REDUCE),
    Entry("log_softmax", _over(reduce.log_softmax), "its part, less the maximum and the logarithm of the sum of all", ("pmax", "psum"), REDUCE),
]  # fmt: skip
