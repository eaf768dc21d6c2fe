"""What is drawn with a key. Nothing is communicated: an element's bits follow from its index in the whole tensor."""

import jax

import meshdsl as md
from meshdsl.ops import random
from tests.catalogue import Case, Entry

KEY = jax.random.key(5)
LOCAL = "its own part, of the key and the indices in the whole"
UNIFORM = "RandomOperation; other numbers under every layout"
DROPOUT = "RandomOperation (`dropout`); other elements under every layout"


def _draw(fn):
    def example(draw):
        a, b = draw.dims("a", "b")
        return Case(lambda x: fn((a, b), x), (draw.tensor(a, b),))

    return example


def _categorical(draw):
    a, b = draw.dims("a", "b")
    k = draw.integer(1, max(1, a.size))
    how = draw.pick({"top_p": 0.8}, {}, {"top_k": k}, {"temperature": 0.7})
    return Case(
        lambda x: random.categorical(KEY, x, a, **how),
        (draw.tensor(a, b, low=-3.0, high=3.0),),
        (a,),
    )


def _dropout(draw):
    return Case(lambda x: md.dropout(x, 0.5, KEY), (draw.tensor(*draw.dims("a", "b")),))


def _permutation(draw):
    a, b = draw.dims("a", "b")
    return Case(lambda x: random.permutation(KEY, a, like=x), (draw.tensor(a, b),), (a,))


def _permute(draw):
    a, b = draw.dims("a", "b")
    return Case(lambda x: random.permute(KEY, x, a), (draw.tensor(a, b),), (a,))


DRAWS = {
    "bits": (lambda dims, x: random.bits(KEY, dims, like=x), ""),
    "uniform": (lambda dims, x: random.uniform(KEY, dims, like=x), UNIFORM),
    "normal": (lambda dims, x: random.normal(KEY, dims, like=x), UNIFORM),
    "truncated_normal": (lambda dims, x: random.truncated_normal(KEY, dims, -2.0, 2.0, like=x), ""),
    "exponential": (lambda dims, x: random.exponential(KEY, dims, like=x), ""),
    "gumbel": (
        lambda dims, x: random.gumbel(KEY, dims, like=x),
        "RandomOperation (`sample_with_temperature`)",
    ),
    "bernoulli": (lambda dims, x: random.bernoulli(KEY, 0.3, dims, like=x), ""),
    "randint": (lambda dims, x: random.randint(KEY, dims, -3, 99, like=x), ""),
}
ENTRIES = [
    *(Entry(f"random.{name}", _draw(fn), LOCAL, mesh_tensorflow=theirs, gradients=False) for name, (fn, theirs) in DRAWS.items()),
    Entry("dropout", _dropout, LOCAL, mesh_tensorflow=DROPOUT),
    Entry("random.dropout", _dropout, LOCAL, mesh_tensorflow=DROPOUT),
    Entry("random.categorical", _categorical, "the largest of logits and draws; of top_p, masses above bounds, which close in", ("all_gather",),
          "RandomOperation (`sample_with_temperature`); no top_k or top_p", gradients=False),
    Entry("random.permutation", _permutation, "the whole order", gradients=False),
    Entry("random.permute", _permute, "its part of the other dims; the dim is whole", ("all_gather", "all_to_all")),
]  # fmt: skip
