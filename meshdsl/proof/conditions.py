"""Lemmas of branches: of what a condition chooses while a program runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshdsl.proof.elements import together
from meshdsl.proof.forms.branches import by_case
from meshdsl.proof.lemmas import Walk, lemma
from meshdsl.proof.sends.rings import settled
from meshdsl.proof.values import Value, arguments_of


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
        walk.run(branch, [_inside(arg, which, case, count) for arg in args])
        for case, branch in enumerate(branches)
    ]
    for cases in zip(*results, strict=True):
        if all(case.same_as(cases[0]) for case in cases):
            yield cases[0]
        else:
            values, dims = together([which, *cases])
            yield by_case(walk.terms, values[0], values[1:]).at(dims)


def _inside(arg: Value, which: Value, case: int, count: int) -> Value:
    """What an argument is in a branch, if it is that of the same branch of an earlier condition."""
    if arg.term.op != "cond":
        return arg
    condition, *cases = arguments_of(arg)
    alike = condition.term is which.term and condition.parts == which.parts
    same = alike and len(cases) == count
    return cases[case].at(arg.dims) if same else arg
