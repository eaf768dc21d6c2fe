"""Lemmas of loops.

The rounds of a loop are a dim like any other: what a round takes from a list is the list, and what
all rounds make is what one makes. Only what a loop carries from round to round is more than that:
see `carried`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshdsl.program.jaxpr import scan_counts
from meshdsl.proof.carried import Carried, Loop
from meshdsl.proof.forms.sums import inwards, total
from meshdsl.proof.labels import Minor, Part, Parts, fresh, labelled
from meshdsl.proof.lemmas import Walk
from meshdsl.proof.sends.orders import OfEachRound
from meshdsl.proof.sends.turns import few, in_list, one_by_one
from meshdsl.proof.terms import NotProved, Terms
from meshdsl.proof.values import Value, aligned, arguments_of, joined, made


def looped(
    walk: Walk, eqn, values: Sequence[Value], around: Parts = (), afresh: Collection[int] = ()
) -> list[Value]:
    """What a `scan` makes.

    Args:
      around: parts of the rounds, before those that the `scan` has itself. What is carried at first
        does not have them.
      afresh: the numbers of what is not carried along `around`, but begins again; see `Carried`.
    """
    p = eqn.params
    consts, carries = scan_counts(p)
    first, lists = values[consts : consts + carries], values[consts + carries :]
    by_round = lambda: one_by_one(walk, p, values[:consts], first, values[consts + carries :])
    if any(x.dims[0] and in_list(walk.terms, x) is not None for x in lists):
        return by_round()
    lists = aligned(lists, [[0] * len(lists)]) if lists else []
    parts = joined(x.dims[0] for x in lists) or (Part(p["length"], None),)
    if around and any(isinstance(part.label, Minor) for part in parts):
        raise NotProved("the rounds of a loop within another one over devices lie in another order")
    own = tuple(p if p.label is not None else Part(p.size, fresh()) for p in parts if p.size > 1)
    each = [x.at(x.dims[1:]) for x in lists]
    loop = Loop(walk.depth + 1, (*around, *own), bool(p["reverse"]))
    carried = Carried(walk, loop, first, afresh)

    def body(variables: list[Value]) -> tuple[list[Value], list[Value]]:
        found = walk.run(p["jaxpr"], [*values[:consts], *variables, *each])
        return found[:carries], found[carries:]

    rounds = walk.terms.rounds
    alone = labelled(own).keys() if few(p["length"]) and not around else set()
    walk.depth, walk.terms.rounds = walk.depth + 1, rounds | alone
    try:
        others = carried.solve(body)
    except OfEachRound as error:
        if not alone & error.labels:
            raise
        others = None
    finally:
        walk.depth, walk.terms.rounds = walk.depth - 1, rounds
    if others is None and around:
        raise NotProved("parts are sent on in a loop within another one over devices")
    if others is None:
        return by_round()
    made = map(carried.of_all_rounds, others)
    return [*carried.last(own), *(y.at([own, *y.dims[1:]]) for y in made)]


@inwards("all")
def _of_all(terms: Terms, value: Value, labels, sizes) -> Value:
    """A sum of what rounds make goes into a round."""
    (y,) = arguments_of(value)
    binds = frozenset().union(*(arg.free for arg in value.term.args)) - value.term.free
    y = total(terms, y, labels, sizes)
    if not y.term.free & binds:
        return y
    return made(terms, "all", (), [y], value.dims, beside=value.term.args[1:], binds=binds)
