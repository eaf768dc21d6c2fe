"""What an early pipeline is made of, and what goes into its ticks: see `lowering.early_ticks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from meshdsl.splits.pipeline import Schedule


class Parts(NamedTuple):
    """What an early pipeline is made of. Compared by identity, as a parameter of an equation is.

    Attributes:
      schedule: which stage works on what, when.
      stage: gives the number of this device's stage.
      first_of: gives the index of the first element of this stage's chunk of a round.
      rows: for each array of the carry, the position of the dim that is cut into microbatches, or
        None.
      enter: a closed jaxpr: of a microbatch of the carry and its number, what the first stage gets.
      element: a closed jaxpr: of the parameters of an element, of what it gets, the number of the
        microbatch and that of the element: the carry after it, and its results.
      hand: a closed jaxpr: of the carry after a stage, the same as the next stage gets it.
      counts: how many arrays the elements have, and how many `enter` and `element` close over. The
        latter are their first arguments.
      types: of what the scan returns for one microbatch: the carry, the results of all elements of
        a stage, and the number of the microbatch.
      chunk, unroll: how many elements a tick runs through, and a turn of the compiled loop.
    """

    schedule: Schedule
    stage: Callable[[], jax.Array]
    first_of: Callable[[Any], jax.Array]
    rows: tuple[int | None, ...]
    enter: Any
    element: Any
    hand: Any
    counts: tuple[int, int, int]
    types: tuple[Any, ...]
    chunk: int
    unroll: int

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Kind(NamedTuple):
    """How a result of the whole function comes from those for each microbatch.

    Attributes:
      is_sum: whether they are added up.
      at: the position along which they are put together. If neither, all are the same.
    """

    is_sum: bool
    at: int | None


class Group:
    """Operands that stand together, and those of them by which gradients are taken.

    Attributes:
      wanted: the numbers of the latter among all operands.
      chosen, fixed: their arrays, and those of the others.
    """

    def __init__(self, operands: list, start: int, end: int, wanted):
        self._numbers = range(start, end)
        self.wanted = [i for i in wanted if start <= i < end]
        self.chosen = [operands[i] for i in self.wanted]
        self.fixed = [operands[i] for i in self._numbers if i not in self.wanted]

    def merged(self, chosen, fixed) -> list:
        """Arrays that stand for these, in the order of all."""
        chosen, fixed = iter(chosen), iter(fixed)
        return [next(chosen if i in self.wanted else fixed) for i in self._numbers]

    def all(self, chosen=()) -> list:
        """All operands of the group; `chosen` in the place of the wanted ones, if given."""
        return self.merged(chosen or self.chosen, self.fixed)

    def added(self, gradients, more, at=None) -> dict[int, jax.Array]:
        """The gradients with `more` by the wanted operands; with `at`, by this element of each."""
        add = lambda total, x: total + x if at is None else total.at[at].add(x)
        found = {i: add(gradients[i], x) for i, x in zip(self.wanted, more, strict=True)}
        return gradients | found
