"""The table of lemmas: for each primitive of JAX, what its results mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value


class Walk(Protocol):
    """What a lemma knows: all terms, the sizes of axes, and how to go through an inner program."""

    terms: Terms
    sizes: Mapping[str, int]
    depth: int

    def run(self, jaxpr: Any, args: Sequence[Value]) -> list[Value]: ...


Lemma = Callable[..., Sequence[Value]]
LEMMAS: dict[str, Lemma] = {}


def lemma(*primitives: str):
    """Says of a function that it is the lemma of these primitives.

    It gets the walk, the equation, and what its operands mean, each as one argument.
    """

    def register(function: Lemma) -> Lemma:
        LEMMAS.update(dict.fromkeys(primitives, function))
        return function

    return register


def integer_dtypes(eqn) -> tuple[str, ...]:
    """The dtypes of the operands that are integers: their order and range depend on it."""
    dtypes = [str(atom.aval.dtype) for atom in eqn.invars]
    return tuple(dtype if "int" in dtype else "" for dtype in dtypes)
