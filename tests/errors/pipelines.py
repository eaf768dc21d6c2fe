"""Errors of pipelines: of the rule that makes one, and of what runs in it."""

import meshdsl as md
from meshdsl.layers.stack import Stack
from tests.errors.common import A, B, C, X, under
from tests.helpers import data, weight

CUT = {"rule": "a -> model", "microbatches": {"b": 2}}


def rule(**how):
    """A layout of one rule over `layers`, with these attributes."""
    return md.Layout([{"rule": "layers -> stage", **how}])


def piped(body, *rules, carry=None, cut=CUT, xs=X, **how):
    """A pipeline over `a` of 4, on 4 stages, whose carry [b=8, c=3] is cut along `b`."""
    carry = data(B, C) if carry is None else carry
    run = lambda carry, xs: md.scan(body, carry, xs, dim=A, **how)
    return under([cut, *rules], run, carry, xs)


def stacked(x, w):
    return Stack(w, A)(x)


ERRORS = [
    # The rule.
    (
        lambda: rule(microbatches=16),
        "layout, rule 1: microbatches is a table of one dim … { batch = 16 }, not 16",
    ),
    (
        lambda: rule(microbatches={"batch": 4, "length": 2}),
        "layout, rule 1: microbatches is a table of one dim and a whole number",
    ),
    (
        lambda: rule(microbatches={"batch": 0}),
        "layout, rule 1: microbatches is a table … at least 1 … {'batch': 0}",
    ),
    (
        lambda: rule(rounds=2),
        "layout, rule 1: rounds are of a pipeline; add microbatches = { batch = 16 }",
    ),
    (
        lambda: rule(microbatches={"batch": 4}, rounds=1.5),
        "layout, rule 1: rounds is a whole number of at least 1, not 1.5",
    ),
    (
        lambda: md.Layout(parameters=[{"rule": "a -> data", "microbatches": {"batch": 4}}]),
        "layout, parameters rule 1: microbatches are of the list `rules`",
    ),
    (
        lambda: md.Layout([{"rule": "a, c -> data", "microbatches": {"batch": 4}}]),
        'layout, rule 1: a rule with microbatches is of one dim … "layers -> stage"',
    ),
    (
        lambda: rule(microbatches={"batch": 4}, order="zigzag"),
        "layout, rule 1: `move` and `order` do not go with microbatches",
    ),
    (
        lambda: rule(microbatches={"bath": 4}).check_dims(["layers", "batch"]),
        "layout, rule 1: no dim `bath` in this model to cut … did you mean `batch`?",
    ),
    (
        lambda: piped(lambda c, x: (c, ()), cut=CUT | {"rounds": 2}),
        "rule 1: a -> model: `a`=4 does not divide into 8 chunks, 2 for each part over "
        '`model` … stages and rounds whose product is 1, 2 or 4, or uneven = "pad"',
    ),
    # What runs in it.
    (
        lambda: under(["a -> model"], stacked, data(B, C), weight(A, C)),
        "layout dp.toml, rule 1: a -> model: the layers run one after another … write { rule "
        '= "a -> model", microbatches = { batch = 16 } } for a pipeline … put "a -> model" '
        "in the list `parameters`",
    ),
    (
        lambda: piped(lambda c, x: (c, ()), reverse=True),
        "rule 1: a -> model: a pipeline runs forward … scan over `a` has reverse=True",
    ),
    (
        lambda: piped(lambda c, x: (c, ()), cut=CUT | {"microbatches": {"b": 3}}),
        "a device has 8 of b=8, which do not divide into 3 microbatches; use 1, 2, 4 or 8",
    ),
    (
        lambda: piped(
            lambda c, x: (c, ()), cut=CUT | {"rounds": 2, "uneven": "pad", "microbatches": {"b": 2}}
        ),
        "with rounds, microbatches are a multiple of the 4 stages, such as 4 or 8, not 2",
    ),
    (
        lambda: piped(lambda c, x: (c, ()), carry=(data(B, C), data(md.Dim("b", 4)))),
        "the carry has several dims `b`, b=8 and b=4",
    ),
    (
        lambda: piped(
            lambda c, x: (c, ()),
            {"rule": "z -> data", "uneven": "pad"},
            carry=data(md.Dim("z", 5), C),
            cut=CUT | {"microbatches": {"z": 1}},
        ),
        "`z`=5 is cut into microbatches, so it divides over `data`=2, in natural order",
    ),
    (
        lambda: piped(lambda c, x: (c - md.mean(c, B), ())),
        "this needs all of a dim that is cut into microbatches … rule 1: a -> model … "
        "outside of the scan, or let the body return each layer's sum as a result",
    ),
    (
        lambda: piped(lambda c, x: (c - md.max(c, B), ())),
        "max … needs all of a dim that is cut into microbatches",
    ),
    (
        lambda: piped(lambda c, x: (md.softmax(c, B), ())),
        "softmax: this needs all of a dim that is cut into microbatches",
    ),
    (
        lambda: piped(lambda c, x: (md.reshape(md.transpose(c, (C, B)), (md.Dim("z", 24),)), ())),
        "reshape: this needs all of a dim that is cut into microbatches … rule 1: a -> model",
    ),
]
