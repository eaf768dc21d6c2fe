"""Lemmas of branches: of what a condition chooses while a program runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshdsl.proof.elements import together
from meshdsl.proof.forms.branches import by_case, inside
from meshdsl.proof.lemmas import Walk, lemma
from meshdsl.proof.sends.rings import settled
from meshdsl.proof.values import Value


@lemma("cond")
def _cond(walk: Walk, eqn, which: Value, *args: Value) -> list[Value]:
    walk.terms.branches += 1
    try:
        found = list(_of_branches(walk, eqn.params["branches"], which, args))
    finally:
        walk.terms.branches -= 1
    return [settled(walk.terms, value) for value in found]


def _of_branches(walk: Walk, branches, which: Value, args: Sequence[Value]) -> Iterator[Value]:
    count = len(branches)
    results = [
        walk.run(branch, [inside(arg, which, case, count) for arg in args])
        for case, branch in enumerate(branches)
    ]
    for cases in zip(*results, strict=True):
        if all(case.same_as(cases[0]) for case in cases):
            yield cases[0]
        else:
            values, dims = together([which, *cases])
            yield by_case(walk.terms, values[0], values[1:]).at(dims)
