"""The table of lemmas: for each primitive of JAX, what its results mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from meshdsl.proof.sends.routes import Pieces
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value

# What devices send to each other is taken for parts that go round (`rings`), or for edges of
# neighbours (`edges`), or it is followed element by element (`ticks`, `passed`).
SENDS = PARTS, EDGES, ELEMENTS = "parts", "edges", "elements"


class Walk(Protocol):
    """What a lemma knows: all terms, the sizes of axes, and how to go through an inner program.

    Attributes:
      depth: how many loops are around what is looked at.
      sends: as what arrays are taken that devices send to each other, one of `SENDS`.
      pieces: of what loops hand on, see `routes`.
      zeros_stay: whether loops are tried first with the zeros that they carry staying zeros.
    """

    terms: Terms
    sizes: Mapping[str, int]
    depth: int
    sends: str
    pieces: Pieces
    zeros_stay: bool

    def run(self, jaxpr: Any, args: Sequence[Value]) -> list[Value]: ...
    def step(self, eqn: Any, lemma: Callable[[], Sequence[Value]]) -> Sequence[Value]: ...
    def applied(self, eqn: Any, values: list[Value]) -> Sequence[Value]: ...
    def leaf(self, op: str, params: tuple, shape: tuple[int, ...]) -> Value: ...
    def constant(self, x: Any, aval: Any) -> Value: ...


# Equations that run an inner program once, each with the parameter that has it.
CALLS = {
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_lin": "jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "jit": "jaxpr",
    "linear_call": "callee",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}

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
