"""What loops carry from round to round.

It is a *variable* along the rounds: a name, which the term of a result defines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import NamedTuple

from meshdsl.proof.elements import together
from meshdsl.proof.forms.branches import by_case, planned, times_exp
from meshdsl.proof.forms.ends import CARRIED, Ends, ends_of, narrowed, widened
from meshdsl.proof.forms.orders import of_places
from meshdsl.proof.forms.rounds import at_variables, is_chosen
from meshdsl.proof.forms.signs import bounds
from meshdsl.proof.forms.sums import is_zero, linear, summed_over
from meshdsl.proof.labels import (
    Label,
    Major,
    Minor,
    Part,
    Parts,
    axis_of,
    fresh,
    labelled,
    nameless,
    size_of,
)
from meshdsl.proof.lemmas import Walk
from meshdsl.proof.terms import NotProved, Term, Terms
from meshdsl.proof.values import Value, arguments_of, made

_TRIES = 16  # what a loop carries has the same parts before and after a round by then


def combined(terms: Terms, op: str, params: tuple, values: Sequence[Value], **how) -> Value:
    """An operation of each element, also of values whose parts do not have the same labels yet."""
    full, dims = together(values)
    return made(terms, op, params, full, dims, **how)


class Loop(NamedTuple):
    """A loop.

    Attributes:
      depth: how many loops are around it, itself among them.
      rounds: the parts of the dim of its rounds.
      reverse: whether the last round comes first.
    """

    depth: int
    rounds: Parts
    reverse: bool

    @property
    def of_terms(self) -> Parts:
        """The rounds as parts of a term, where those in another order are of a device too."""
        majors = {p: Part(len(m.table), Major(m)) for p, m in self.minors.items()}
        return tuple(q for p in self.rounds for q in ((majors[p], p) if p in majors else (p,)))

    @property
    def minors(self) -> dict[Part, Minor]:
        """Those of its parts that lie in another order."""
        return {part: part.label for part in self.rounds if isinstance(part.label, Minor)}


class Carried:
    """What a loop carries from round to round.

    A variable is known by the depth of the loop, by what it is at first and by the sizes of its
    dims, so that it is the same in two programs.

    Args:
      afresh: the numbers of what begins again before the first of the loop's own rounds. A round
        may only add something to it, and nothing else may depend on it.
    """

    def __init__(
        self, walk: Walk, loop: Loop, first: Sequence[Value], afresh: Collection[int] = ()
    ):
        self._terms, self._loop, self._first = walk.terms, loop, list(first)
        self._afresh = afresh
        zeros = enumerate(first) if walk.zeros_stay else ()
        self._known = {i: x for i, x in zeros if is_zero(x)}  # those that are no variables
        self._steps: dict[int, int] = {}  # of those that count rounds
        self._never: set[int] = set(afresh)  # those that seemed to be none
        self._ends = [Ends()] * len(first)  # without what is after them each is carried
        self._unknown = "unknown", fresh()  # a variable: what is after them
        self._like = [combined(walk.terms, "join", (), [value]) for value in first]
        self._before: list[Value] = []
        self._after: list[Value] = []

    def _variables(self) -> list[Value]:
        found: list[Value] = []
        seen: dict[Hashable, int] = {}
        rounds = self._loop.of_terms
        for i, like in enumerate(self._like):
            if i in self._known:
                found.append(self._known[i])
                continue
            known = (
                self._loop.depth,
                self._start(i).term.number,
                like.term.views[0],
                like.term.shape,
            )
            seen[known] = seen.get(known, 0) + 1
            name = "carried", *known, seen[known]
            ahead = (rounds,) if rounds else ()
            shape = (*known[-1], *map(size_of, ahead))
            term = self._terms.term("variable", name, shape=shape, uses=[name])
            parts = (*like.parts, *ahead)
            found.append(Value(term, parts, like.dims))
        return found

    def solve(
        self, body: Callable[[list[Value]], tuple[list[Value], list[Value]]]
    ) -> list[Value] | None:
        """What else a round makes, once the parts of what is carried are the same before and after.

        What no round changes, and what counts rounds, is no variable.

        Args:
          body: what a round makes of what it is given: what it carries on, and what else it makes.

        Returns:
          What else. None, if a round sends on what it is given, so that it is another part then.
        """
        for _ in range(_TRIES):
            self._before = self._variables()
            ends = [*self._ends]
            pairs = zip(self._before, ends, strict=True)
            given = [widened(self._terms, x, each, [self._unknown]) for x, each in pairs]
            after, others = body(given)
            if any(map(_sends_on, given, after)):
                return None
            self._after = [self._without_padding(i, x) for i, x in enumerate(after)]
            settled = self._ends == ends
            for i, (before, after) in enumerate(zip(self._before, self._after, strict=True)):
                if i in self._known:
                    continue
                known = None if ends[i].each else self._without_variable(i, before, after)
                if known is not None:
                    self._known[i], settled = known, False
                    continue
                like = self._form(i, after)
                if _places(like) != _places(self._like[i]):
                    self._like[i], settled = like, False
            if not settled:
                continue
            wrong = [i for i, known in self._known.items() if not self._stays(i, known)]
            if not wrong and not self._end():
                self._check_afresh(others)
                return others
            self._never.update(wrong)
            for i in wrong:
                del self._known[i]
        raise NotProved("what a loop carries is split otherwise after each of its rounds")

    def _check_afresh(self, others: Sequence[Value]) -> None:
        names = {name for i in self._afresh for name in self._before[i].term.free}
        for i, value in enumerate([*self._after, *others]):
            own = self._before[i].term.free if i in self._afresh else frozenset()
            if names & (value.term.free - own):
                raise NotProved("a round depends on what begins again on each device")

    def _start(self, i: int) -> Value:
        """What is carried at first, without padding that does not count."""
        found = narrowed(self._terms, self._first[i], self._ends[i])
        assert found is not None
        return found

    def _end(self) -> bool:
        """Whether there is more that may be carried without its padding, as it is from now on."""
        more = False
        for i, after in enumerate(self._after):
            if i in self._known or self._ends[i] != Ends():
                continue
            ends = Ends(ends_of(self._form(i, after)))
            after = narrowed(self._terms, after, ends)
            if ends.each and after and narrowed(self._terms, self._first[i], ends):
                self._ends[i], more = ends, True
                self._like[i] = self._form(i, after)
        return more

    def _without_padding(self, i: int, after: Value) -> Value:
        """What is carried on, without its padding if what is before that does not depend on it."""
        ends = self._ends[i]
        found = narrowed(self._terms, after, ends)
        if found is None or self._unknown in found.term.free:
            self._ends[i] = CARRIED
            self._like[i] = combined(self._terms, "join", (), [self._first[i]])
            return after
        if not all(ends.of(self._terms, value) for value in (self._first[i], after)):
            self._ends[i] = ends._replace(after=ends.after + 1)
        return found

    def _form(self, i: int, after: Value) -> Value:
        """A value with the dims of a variable, and the parts that it needs."""
        after, over = self._in_rounds(after)
        return combined(self._terms, "join", (), [self._start(i), after], over=over)

    def _in_rounds(self, value: Value) -> tuple[Value, set[Label]]:
        """A value in the order of rounds, and the labels of its parts that say which round it is.

        Where rounds lie in another order, that is what the round is of a device.
        """
        own = [label for label in labelled(self._loop.rounds) if label in value.labels]
        found, _ = of_places(self._terms, value, own)
        new = {label for label in found.labels if label not in value.labels}
        return found, {label for label in own if label in found.labels} | new

    def _without_variable(self, i: int, before: Value, after: Value) -> Value | None:
        if i in self._never:
            return None
        if after.same_as(before):
            return self._first[i]
        step = self._step(i, before, after)
        rounds = self._loop.rounds
        if step is None or self._loop.reverse or not rounds or self._loop.minors:
            return None
        self._steps[i] = step
        count = Value(self._terms.iota(size_of(rounds)), (rounds,), ())
        return linear(self._terms, [(1, self._first[i]), (step, count)], ())

    def _stays(self, i: int, known: Value) -> bool:
        """Whether a round keeps to what seems to be known of all of them."""
        after = self._after[i]
        if known is self._first[i]:
            return after.same_as(known)
        left = linear(self._terms, [(1, after), (-1, known)], ()).term
        return left is self._terms.constant(self._steps[i], "int32")

    def _step(self, i: int, before: Value, after: Value) -> int | None:
        """What a round adds to a number, if that is a constant."""
        added = self._added(i, before, after) if before.dims == () else None
        if added is None or added.term.op != "const":
            return None
        number = added.term.params[1]
        return number if isinstance(number, int) else None

    def _added(self, i: int, before: Value, after: Value) -> Value | None:
        """What a round adds to what is carried, if that is all that it does with it."""
        if after.term.op != "sum" or i in self._known:
            return None
        (name,) = self._before[i].term.free
        factors: tuple = after.term.params[0]
        pairs = list(zip(factors, arguments_of(after), strict=True))
        mine = [pair for pair in pairs if name in pair[1].term.free]
        if len(mine) != 1 or mine[0][0] != 1 or not mine[0][1].same_as(before):
            return None
        return linear(self._terms, [pair for pair in pairs if pair is not mine[0]], after.dims)

    @property
    def _names(self) -> dict[Hashable, int]:
        """The variables, each with the number of what is carried."""
        variables = [(i, value) for i, value in enumerate(self._before) if i not in self._known]
        names = {name: i for i, value in variables for name in value.term.free}
        return names | {self._unknown: -1}

    def _definition(self, i: int) -> Value:
        (before, _), (after, _) = map(self._in_rounds, (self._before[i], self._after[i]))
        values = [before, self._start(i), after]
        minors = self._loop.minors
        rounds = tuple(
            Part(p.size, minors[p].number) if p in minors else p for p in self._loop.rounds
        )
        params = self._loop.reverse, size_of(rounds)
        along = [[rounds], [], [rounds]]
        return combined(self._terms, "carried", params, values, along=along)

    def _definitions(self, variables: Collection[Hashable]) -> tuple[Term, ...]:
        """The terms that say what variables are, and what those are that they depend on."""
        names, found, left = self._names, {}, list(variables)
        while left:
            i = names.get(left.pop(), -1)
            if i >= 0 and i not in found:
                found[i] = self._definition(i).term
                left.extend(found[i].free)
        return tuple(sorted(found.values(), key=lambda term: term.number))

    def closed(self, op: str, value: Value) -> Value:
        """`value` with a term that says what the variables are that it depends on."""
        names = self._names
        if not value.term.free.intersection(names):
            return value
        beside = self._definitions(value.term.free)
        return made(self._terms, op, (), [value], value.dims, beside=beside, binds=names)

    def of_all_rounds(self, y: Value) -> Value:
        """What all rounds make, along a new first dim, of what one round makes."""
        if (chosen := planned(y)) is None:
            y = self.closed("all", y)
        else:
            which, cases = chosen
            y = by_case(self._terms, which, [self.closed("all", x) for x in cases]).at(y.dims)
        y = at_variables(self._terms, y) if is_chosen(self._terms, y) else y
        return y.at([self._loop.rounds, *y.dims])

    def last(self, own: Parts) -> list[Value]:
        """What is carried after the last round.

        What a round adds something to is the sum of what all of them add.

        Args:
          own: the parts of the loop's own rounds.
        """
        found = []
        for i, first in enumerate(self._first):
            before, after = self._before[i], self._after[i]
            added = None if i in self._known else self._added(i, before, after)
            if self._known.get(i) is first or (i in self._afresh and after.same_as(before)):
                found.append(first)
            elif i in self._afresh and added is None:
                raise NotProved("there is no lemma for what begins again on each device")
            elif i in self._known:
                found.append(self._counted(i))
            elif added is not None:
                parts = own if i in self._afresh else self._loop.rounds
                found.append(self._all_added(self._start(i), added, parts))
            else:
                last = self.closed("last", self._definition(i))
                found.append(next(self._scaled(i), last))
            found[-1] = widened(self._terms, found[-1], self._ends[i], [])
        return found

    def _all_added(self, first: Value, added: Value, parts: Parts) -> Value:
        """What is carried at first, and what all rounds along some parts add to it."""
        rounds = self.of_all_rounds(added)
        each = summed_over(self._terms, rounds, parts, rounds.dims[1:])
        values, dims = together([first, each])
        return linear(self._terms, [(1, value) for value in values], dims)

    def _scaled(self, i: int) -> Iterator[Value]:
        """What is carried in the end, if a round only adds to it once it is scaled.

        With what else is carried as a power: if `x * exp(m)` is after each round what it was before
        and something more, it is the sum of that in the end, and `x` is the sum times `exp(-m)`.
        """
        shapes = [value.shape for value in self._first]
        for j, shape in enumerate(shapes):
            if j == i or j in self._known or j in self._afresh or shapes[i][: len(shape)] != shape:
                continue
            if not bounds(self._after[j].term):
                continue
            first, before, after = (
                times_exp(self._terms, values[i], values[j], 1)
                for values in (self._first, self._before, self._after)
            )
            added = self._added(i, before, after)
            if added is not None:
                last = self.closed("last", self._definition(j))
                of_all = self._all_added(first, added, self._loop.rounds)
                yield times_exp(self._terms, of_all, last, -1)

    def _counted(self, i: int) -> Value:
        """A number that counts rounds, after the last one."""
        step = linear(self._terms, [(1, self._after[i]), (-1, self._before[i])], ())
        rounds = size_of(self._loop.rounds)
        return linear(self._terms, [(1, self._first[i]), (rounds, step)], ())


def _sends_on(before: Value, after: Value) -> bool:
    """Whether a round makes of a device's part along an axis that of another device."""
    new, old = (
        {
            axis_of(label)
            for label in one.labels
            if nameless(label) not in map(nameless, other.labels)
        }
        for one, other in ((after, before), (before, after))
    )
    return bool(new & old - {""})


def _places(value: Value) -> Hashable:
    """Where the parts of a value are: in which dims of the local array, and over which axes."""
    where = {
        part.label: (d, i)
        for d, parts in enumerate(value.dims)
        for i, part in enumerate(parts)
        if part.label is not None
    }
    beside = lambda label: where.get(label.minor) if isinstance(label, Major) else None
    of = lambda p: (p.size, where.get(p.label, nameless(p.label)), beside(p.label))
    return tuple(tuple(map(of, parts)) for parts in value.parts), value.term.views[0]
