"""The schedule of a pipeline: which stage works on which microbatch at which tick.

The elements of a dim, such as `layers`, lie on S stages, and the rows of the data are cut into M
microbatches, which travel from stage to stage. At tick t stage s works on item n = t - s. With
2 stages and 3 microbatches (GPipe; Huang et al., 2019), where a dot is a stage that waits:

    tick       0 1 2 3
    stage 0    0 1 2 .
    stage 1    . 0 1 2

With v *rounds* each stage has v shorter chunks of the elements instead of one, and each microbatch
goes round the stages v times (circular, or interleaved; Narayanan et al., 2021): chunk c lies on
stage c mod S and is of round c div S. Item n is microbatch (n div vS) S + n mod S in round
(n mod vS) div S. So the S - 1 ticks for which a stage waits are ticks of a v-th of the work.

The last stage has all results, and outside of the pipeline the stages may share the rows: stage d
then has those of the d-th M / S microbatches. Where results are *handed out*, the last stage sends
each, once it is finished, to stage 0, from which it goes on by one stage a tick. Microbatches take
their turns in such an order that the last result arrives when the last tick ends: first those of
stage S - 2, which travel longest, then those of S - 3 and so on, and those of the last stage last.

In an *early* schedule (one forward, one backward, "1F1B"; Narayanan et al., 2019) the backward pass
of a microbatch begins at the tick at which its forward pass ends. At most of the ticks a stage then
works on two items: F on one, forward, and B on another, back. What it has to keep for the way back
is what it got of the microbatches that are under way, however many there are in all:

    tick       0  1  2  3  4
    stage 0    F0 F1 F2 .  .
               .  .  B0 B1 B2
    stage 1    .  F0 F1 F2 .
               .  B0 B1 B2 .
"""

from __future__ import annotations

from typing import Any, NamedTuple

from meshdsl.splits.windows import Piece


class Schedule(NamedTuple):
    """A pipeline's schedule.

    Attributes:
      stages: how many there are.
      microbatches: how many there are.
      rounds: how often each microbatch goes round the stages.
      hands_out: whether results go to the stages that have their rows outside of the pipeline.
      early: whether the backward pass of a microbatch begins when its forward pass ends.
    """

    stages: int
    microbatches: int
    rounds: int = 1
    hands_out: bool = False
    early: bool = False

    @property
    def items(self) -> int:
        """How many items each stage works on.

        With rounds, microbatches go round in groups of as many as there are stages; the last group
        may lack some.
        """
        if self.rounds == 1:
            return self.microbatches
        groups = -(-self.microbatches // self.stages)
        return groups * self.stages * self.rounds

    @property
    def ticks(self) -> int:
        """How many ticks there are, each of which takes the time of one chunk of the elements."""
        return self.items + self.stages - 1

    @property
    def bubble(self) -> float:
        """The share of the ticks for which a stage waits: (S - 1) / (vM + S - 1)."""
        return 1 - self.rounds * self.microbatches / self.ticks

    def round_of(self, item) -> Any:
        """The round of an item; `item` may be an array."""
        return item % (self.rounds * self.stages) // self.stages

    def microbatch_of(self, item) -> Any:
        """The microbatch of an item, or a number that no microbatch has where there is none."""
        return self._ordered(self._place_of(item))

    def _place_of(self, item) -> Any:
        """Which place a microbatch has in the order of their turns."""
        return item // (self.rounds * self.stages) * self.stages + item % self.stages

    def _ordered(self, place) -> Any:
        """The microbatch that takes its turn in a place; also the place of a microbatch."""
        if not self.hands_out:
            return place
        return (self.stages - 2 - place // self.share) % self.stages * self.share + (
            place % self.share
        )

    @property
    def share(self) -> int:
        """How many microbatches of results each stage has, where they are handed out."""
        return self.microbatches // self.stages

    def arrives(self, stage, tick) -> tuple[Any, Any]:
        """Which of the results of a stage arrives there at a tick, and whether one does.

        Args:
          stage, tick: may be arrays.
        """
        item = tick - (stage + 1) % self.stages - (self.stages - 1)
        which, finished = self.microbatch_of(item), self.round_of(item) == self.rounds - 1
        inside = (item >= 0) & (item < self.items)
        return which % self.share, inside & finished & (which // self.share == stage)

    def item_of(self, microbatch: int, in_round: int) -> int:
        """The item that a microbatch is in a round: the inverse of the two above."""
        group, place = divmod(self._ordered(microbatch), self.stages)
        return (group * self.rounds + in_round) * self.stages + place

    @property
    def first_back(self) -> int:
        """The tick at which the first microbatch goes back, in an early schedule."""
        return self.rounds * self.stages - 1

    @property
    def _under_way(self) -> int:
        """How many items a stage may have taken forward and not back yet, in an early schedule."""
        return 2 * self.rounds * self.stages - 1

    @property
    def slots(self) -> int:
        """For how many items a stage has a place for what it keeps, in an early schedule."""
        return self._under_way if self._under_way <= self.items else self.items + 1

    def slot(self, item) -> Any:
        """The place for what a stage keeps of an item, which may be none: a free place then."""
        if self._under_way <= self.items:
            return item % self._under_way
        inside = (item >= 0) & (item < self.items)
        return inside * item + (1 - inside) * self.items

    def back(self, stage, tick) -> Any:
        """The item with which a stage goes back at a tick, or a number that no item has.

        Within a group of microbatches the last round goes back first.

        Args:
          stage, tick: may be arrays.
        """
        place = tick - self.first_back - (self.stages - 1 - stage)
        turn = self.rounds * self.stages
        in_round = self.rounds - 1 - place % turn // self.stages
        return place // turn * turn + in_round * self.stages + place % self.stages

    def at(self, stage: int, tick: int) -> tuple[int, int] | None:
        """Microbatch and round that a stage works on at a tick; None where it waits.

        Microbatches have the numbers of their turns.
        """
        item = tick - stage
        if not 0 <= item < self.items or self._place_of(item) >= self.microbatches:
            return None
        return self._place_of(item), self.round_of(item)

    def deal(self, chunk: int) -> list[Piece]:
        """The pieces by which parts of consecutive chunks become every S-th chunk of each stage.

        Args:
          chunk: how many elements a chunk has.
        """
        found = []
        for stage in range(self.stages):
            for place in range(self.rounds):
                home, there = divmod(place * self.stages + stage, self.rounds)
                found.append(Piece(home, stage, there * chunk, place * chunk, chunk))
        return found

    def collect(self, chunk: int) -> list[Piece]:
        """The pieces by which `deal` is undone."""
        dealt = self.deal(chunk)
        return [Piece(p.target, p.source, p.write, p.read, p.length) for p in dealt]
