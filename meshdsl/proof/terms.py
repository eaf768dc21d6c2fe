"""Terms: what an array of a program is, as an expression of the program's arguments."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from meshdsl.program.jaxpr import join_scopes


class Place(NamedTuple):
    """An equation, and that which runs the program that it is in.

    Attributes:
      equation: of a jaxpr.
      outer: None for one of the whole program.
    """

    equation: Any
    outer: Place | None

    @property
    def primitive(self) -> str:
        return self.equation.primitive.name

    @property
    def scope(self) -> str:
        """JAX's name stack, of all that is around it too."""
        own = str(self.equation.source_info.name_stack)
        if self.outer is None:
            return own
        return join_scopes(join_scopes(self.outer.scope, self.outer.primitive), own)


class NotProved(Exception):
    """A step of a program for which there is no proof; its text says why.

    Attributes:
      place: the equation; None until that is known.
      term: the term that is at fault, if there is one.
    """

    def __init__(self, why: str, term: Term | None = None):
        super().__init__(why)
        self.place: Place | None = None
        self.term = term


class Term:
    """An expression for a whole array. Terms that are put together alike are one object.

    An operation has *indices*, numbered 0, 1, ... where the result has them as its dims, in this
    order, and -1, -2, ... where it has not: a sum over rows has an index for the rows, which its
    result lacks. Dims of size 1 are left out.

    Attributes:
      op: the operation.
      params: what it depends on beside its arguments. The last one of an operation that
        `values.made` has made is the sizes of the indices -1, -2, ...
      args: terms.
      views: for each argument and each of its dims, the indices that it consists of, major first.
        None for an argument that only says what a variable of a loop is.
      shape: the sizes of the indices that are dims of the result.
      free: the variables of loops that it depends on, and that no loop in it binds.
      pads: pairs of an index and a number of elements: those after may be padding; see `padding`.
      planned: whether it depends on numbers alone that are known before the program runs.
      number: terms are numbered in the order in which they are made.
      place: the equation that it was first made for.
    """

    __slots__ = (
        *("args", "free", "number", "op", "pads", "params", "place", "planned", "shape", "views"),
    )

    def __init__(
        self,
        op: str,
        params: tuple[Any, ...],
        args: tuple[Term, ...],
        views: tuple[tuple[tuple[int, ...], ...] | None, ...],
        shape: tuple[int, ...],
        free: frozenset[Hashable],
        number: int,
        place: Place | None,
    ):
        self.op, self.params, self.args, self.views = op, params, args, views
        self.shape, self.free, self.number, self.place = shape, free, number, place
        self.pads = _pads(self)
        of_numbers = bool(args) and all(arg.planned for arg in args)
        self.planned = of_numbers or op in ("array", "const", "iota")

    def __repr__(self) -> str:
        return f"{self.op}:{self.number}{list(self.shape)}"


def _pads(term: Term) -> frozenset[tuple[int, int]]:
    """The pads of a term: its own, and those of its arguments."""
    if term.op == "pad" and term.params[0][0][0] == term.params[0][0][2] == 0:
        own = (len(term.shape) - 1, term.shape[-1] - term.params[0][0][1])
    elif term.op == "spread" and term.shape:
        own = (len(term.shape) - 1, 0)
    elif (count := counted_to(term)) is not None:
        own = (0, count)
    elif not any(arg.pads for arg in term.args):
        return frozenset()
    else:
        own = None
    found = {
        (view[dim][0], n)
        for arg, view in zip(term.args, term.views, strict=True)
        for dim, n in arg.pads
        if view is not None and len(view[dim]) == 1 and view[dim][0] >= 0
    }
    return frozenset(found if own is None else {*found, own})


def counted_to(term: Term) -> int | None:
    """n, where a term says which of the numbers 0, 1, ... are less than n, and some are not."""
    if term.op != "lt" or term.args[0].op != "iota" or term.args[1].op != "const":
        return None
    n = term.args[1].params[1]
    return n if isinstance(n, int) and 0 < n < term.shape[0] else None


class Terms:
    """All terms of a proof.

    Attributes:
      memo: what `padding` has found out about terms.
      place: the equation that terms are made for at present.
      branches: how many conditions are around that equation.
      rounds: the labels of the rounds of loops around it that may be gone through one by one.
      lists: what such rounds have made, by the term that stands for all of it; see `turns`.
    """

    def __init__(self):
        self._known: dict[Hashable, Term] = {}
        self._all: list[Term] = []
        self.memo: dict[Hashable, Any] = {}
        self.place: Place | None = None
        self.branches = 0
        self.rounds: frozenset[Hashable] = frozenset()
        self.lists: dict[Term, tuple[Any, tuple[Any, ...]]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> Term:
        return self._all[number]

    def term(
        self,
        op: str,
        params: tuple[Any, ...] = (),
        args: tuple[Term, ...] = (),
        views: tuple[tuple[tuple[int, ...], ...] | None, ...] = (),
        shape: tuple[int, ...] = (),
        *,
        uses: Iterable[Hashable] = (),
        binds: Iterable[Hashable] = (),
    ) -> Term:
        """The term of this kind; see `Term`.

        Args:
          uses: variables of loops that it depends on, beside those of its arguments.
          binds: variables that it does not depend on although its arguments do.
        """
        key = op, params, tuple(a.number for a in args), views, shape
        found = self._known.get(key)
        if found is None:
            free = frozenset(uses).union(*(a.free for a in args)) - frozenset(binds)
            found = Term(op, params, args, views, shape, free, len(self), self.place)
            self._known[key] = found
            self._all.append(found)
        return found

    def constant(self, number: Any, dtype: Any) -> Term:
        """A number. Zero is the same in every dtype but bool; -0.0 is a number of its own."""
        number = number.item() if hasattr(number, "item") else number
        negative = isinstance(number, float) and math.copysign(1, number) < 0
        if negative and number == 0:
            number = "-0.0"
        elif not isinstance(number, bool) and number == 0:
            number, dtype = 0, ""
        return self.term("const", (str(dtype), number if number == number else "nan"))

    def iota(self, size: int) -> Term:
        """The numbers 0, 1, ... `size - 1`."""
        return self.term("iota", (), shape=(size,)) if size > 1 else self.constant(0, "")
