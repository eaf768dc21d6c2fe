"""Compares two programs, term by term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshdsl.program.jaxpr import body_of, sub_jaxprs, variables_of
from meshdsl.proof.lemmas import CALLS, ELEMENTS, LEMMAS, SENDS
from meshdsl.proof.sorting import CONTRACTS, contract_of
from meshdsl.proof.terms import NotProved, Place, Term, Terms
from meshdsl.proof.values import Value
from meshdsl.proof.walk import Run


@dataclass(frozen=True)
class Doubt:
    """Why there is no proof of some results.

    Attributes:
      results: their names.
      why: in words.
      primitive: that of the first equation that computes what the reference does not.
      scope: the name stack of this equation, with the tag of the op.
    """

    results: tuple[str, ...]
    why: str
    primitive: str = ""
    scope: str = ""


@dataclass(frozen=True)
class Proof:
    """What is proved of a program.

    Attributes:
      results: the names of all results.
      doubt: why some of them are not proved; None if all are.
    """

    results: tuple[str, ...]
    doubt: Doubt | None

    @property
    def proved(self) -> bool:
        return self.doubt is None


class Reference:
    """A program that others are to agree with, of the same arguments.

    Args:
      program: a closed jaxpr, of one device.
    """

    def __init__(self, program: Any):
        self._terms = Terms()
        self._types = _types(program)
        self._results: list[Value] = []
        self._error: NotProved | None = None
        try:
            self._results = Run(self._terms).run(program, _arguments(self._terms, program))
        except NotProved as error:
            self._error = error
        self._known = len(self._terms)

    def agrees(
        self, program: Any, names: Sequence[str], orders: Sequence[Sequence[int] | None] = ()
    ) -> Proof:
        """What is proved of a program.

        Args:
          program: a closed jaxpr.
          names: of its results.
          orders: for each result its dims in the order of those of the reference's; None, and
            nothing at all, for those that have the same order.
        """
        names = tuple(names)
        if any(a[1:] != b[1:] for a, b in zip(_types(program), self._types, strict=True)):
            return Proof(names, Doubt(names, "it has other dtypes"))
        if self._error is not None:
            return Proof(names, _doubt(names, str(self._error), self._error.place))
        sends = list(SENDS if "ppermute" in lemmas_of(program)[0] else SENDS[:1])
        if _hands_on(program):
            sends.sort(key=lambda each: each != ELEMENTS)
        tried: dict[str, Proof] = {}
        for each in sends:
            tried[each] = self._agrees(program, names, orders, each)
            if tried[each].proved:
                return tried[each]
        return tried[sends[0]]

    def _agrees(
        self,
        program: Any,
        names: tuple[str, ...],
        orders: Sequence[Sequence[int] | None],
        sends: str,
    ) -> Proof:
        """What is proved if what devices send each other is taken for `sends`, see `SENDS`."""
        terms = self._terms
        try:
            found = Run(terms, sends).run(program, _arguments(terms, program))
        except NotProved as error:
            place = error.place
            if error.term is not None and (first := _first_new(terms, error.term, self._known)):
                place = first.place
            return Proof(names, _doubt(names, str(error), place))
        for i, order in enumerate(orders):
            if order is not None:
                found[i] = found[i].at(found[i].dims[d] for d in order)
        pairs = enumerate(zip(self._results, found, strict=True))
        differ = [i for i, (a, b) in pairs if not a.same_as(b)]
        if not differ:
            return Proof(names, None)
        first = _first_new(terms, found[differ[0]].term, self._known)
        why = "it computes something else" if first else "its elements are in other places"
        doubt = _doubt([names[i] for i in differ], why, first.place if first else None)
        return Proof(names, doubt)


def prove(
    reference: Any,
    program: Any,
    names: Sequence[str],
    orders: Sequence[Sequence[int] | None] = (),
) -> Proof:
    """Compare a program with one that it is to agree with; see `Reference`."""
    return Reference(reference).agrees(program, names, orders)


def lemmas_of(program: Any) -> tuple[dict[str, int], tuple[str, ...]]:
    """How many equations of a jaxpr each lemma is for, by the name of the primitive.

    Returns:
      These counts, in the order of the names; and the primitives without a lemma of their own,
      which are taken to be functions of what they get.
    """
    found = Counter(eqn.primitive.name for eqn in _equations(program))
    unknown = tuple(sorted(name for name in found if name not in LEMMAS and name not in CALLS))
    return dict(sorted(found.items())), unknown


def _hands_on(program: Any) -> bool:
    """Whether devices hand on what a loop has made, in the first loop in which they send anything.

    That only says what to try first.
    """
    for eqn in _equations(program):
        made = set()
        inner = body_of(eqn.params["jaxpr"]).eqns if eqn.primitive.name == "scan" else ()
        for one in inner:
            if _has_loop(one) or not made.isdisjoint(variables_of(one.invars)):
                made.update(one.outvars)
            if one.primitive.name == "ppermute":
                return not made.isdisjoint(variables_of(one.invars))
    return False


def _has_loop(eqn: Any) -> bool:
    inner = (one for jaxpr in sub_jaxprs(eqn.params) for one in body_of(jaxpr).eqns)
    return eqn.primitive.name == "scan" or any(map(_has_loop, inner))


def contracts_of(program: Any) -> tuple[str, ...]:
    """What is taken for granted of operations whose own code is not looked at, in words."""
    found = {contract_of(eqn) for eqn in _equations(program)}
    return tuple(said for contract, said in CONTRACTS.items() if contract in found)


def _equations(program: Any) -> Iterator[Any]:
    """Those of a jaxpr, without the code of operations that keep to a contract."""
    left = [body_of(program)]
    while left:
        for eqn in left.pop().eqns:
            yield eqn
            if not contract_of(eqn):
                left.extend(sub_jaxprs(eqn.params))


def _types(closed_jaxpr: Any) -> list[tuple[Any, Any]]:
    """Of all arguments and results, the shape and the dtype."""
    avals = [*closed_jaxpr.in_avals, *closed_jaxpr.out_avals]
    return [(aval.shape, aval.dtype) for aval in avals]


def _arguments(terms: Terms, closed_jaxpr: Any) -> list[Value]:
    run = Run(terms)
    shapes = [var.aval.shape for var in closed_jaxpr.jaxpr.invars]
    return [run.argument(i, shape) for i, shape in enumerate(shapes)]


def _doubt(results: Sequence[str], why: str, place: Place | None) -> Doubt:
    if place is None:
        return Doubt(tuple(results), why)
    return Doubt(tuple(results), why, place.primitive, place.scope)


def _first_new(terms: Terms, term: Term, known: int) -> Term | None:
    """The first term in `term` that the reference does not have."""
    seen: set[Term] = set()
    left = [term]
    while left:
        one = left.pop()
        if one.number < known or one in seen:
            continue
        seen.add(one)
        left.extend(one.args)
        if one.op == "variable":
            left.append(terms[one.params[2]])  # what it is in the first round
    return min(seen, key=lambda one: one.number, default=None)
