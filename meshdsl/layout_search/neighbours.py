"""The plans that differ from one in a single decision."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from meshdsl.layout import LEVELS, Layout, shipped
from meshdsl.layout_search.axis_names import axis_name
from meshdsl.layout_search.plan import Line, Plan, plan_of

_BELOW = LEVELS[1:]  # the lists of what is at rest
_FACTOR = 2  # by which axes grow and shrink
_SPLIT = 4  # dims of the most work: an axis may begin with one of them alone
_ROLES = (2, 4)  # sizes that an axis begins with when it is added with all of its rules
_NEW = ""  # stands for an axis that has no name yet

Role = tuple[Line, ...]


class Neighbours:
    """Makes the neighbours of plans of one workload, those first that are often better.

    Args:
      dims: the dims that a rule may name, those of the most work first.
      stored: those of them that parameters have.
      choices: the values of each setting.
      visited: those of them whose parts may stay by `move = "exchange"`.
    """

    def __init__(
        self,
        dims: Sequence[str],
        stored: Sequence[str],
        choices: Mapping[str, Sequence[str]],
        visited: Collection[str] = (),
    ):
        self._dims, self._stored, self._choices = dims, stored, choices
        self._visited = visited
        alone = [(Line("rules", dim, _NEW),) for dim in dims[:_SPLIT]]
        self._roles = list(dict.fromkeys([*_roles({*dims, *stored}), *alone]))

    def __call__(self, plan: Plan) -> Iterator[Plan]:
        """The neighbours of a plan; whether the law allows them is not known yet."""
        yield from self.small(plan)
        yield from _fewer(plan)
        yield from self._new_axes(plan)
        yield from self._lines(plan)
        yield from _words(plan)
        yield from _rings(plan)

    def small(self, plan: Plan) -> Iterator[Plan]:
        """Those with the same rules: other sizes, settings, and ways to follow the rules."""
        yield from _sizes(plan)
        yield from self._settings(plan)
        yield from self._exchanges(plan)
        yield from _pipelines(plan)

    def _settings(self, plan: Plan) -> Iterator[Plan]:
        """A setting one value further or back, or half of the way to its last value."""
        said = dict(plan.settings)
        for name, values in self._choices.items():
            at = list(values).index(said[name])
            for other in dict.fromkeys(((at + len(values)) // 2, at + 1, at - 1)):
                if 0 <= other < len(values):
                    yield plan.with_setting(name, values[other])

    def _exchanges(self, plan: Plan) -> Iterator[Plan]:
        """The plan with what is visited left where it is, or gathered again."""
        for x in plan.at("rules"):
            if x.dim in self._visited:
                move = None if x.attribute("move") == "exchange" else "exchange"
                yield _with(plan, x, x.with_attribute("move", move))

    def _new_axes(self, plan: Plan) -> Iterator[Plan]:
        """An axis taken from the largest, with the rules that an axis of a shipped layout has."""
        sizes = dict(plan.sizes)
        donor = max(sizes, key=sizes.__getitem__, default="")
        there = {tuple(replace(x, axis=_NEW) for x in plan.of(axis)) for axis in sizes}
        for size in _ROLES:
            for role in self._roles:
                if not donor or sizes[donor] % size or sizes[donor] == size or role in there:
                    continue
                others = {a: n // size if a == donor else n for a, n in sizes.items()}
                name = axis_name(role, self._stored, list(sizes))
                lines = plan.lines + tuple(replace(x, axis=name) for x in role)
                # What the list of the donor says of things at rest may hold for both axes.
                both = tuple(
                    y
                    for x in lines
                    for y in (x, replace(x, axis=name))
                    if y == x or (x.level in _BELOW and x.axis == donor)
                )
                for every in dict.fromkeys((both, lines)):
                    split = replace(plan, sizes=(*others.items(), (name, size)), lines=())
                    for level in LEVELS:
                        mine = dict.fromkeys(x for x in every if x.level == level)
                        split = split.with_lines(level, mine)
                    yield split

    def _lines(self, plan: Plan) -> Iterator[Plan]:
        """A rule more, in the place of another, in another place, or over another axis."""
        axes = [axis for axis, _ in plan.sizes]
        for level in LEVELS:
            lines = plan.at(level)
            for axis in axes:
                mine = [x for x in lines if x.axis == axis]
                for new in self._new(level, axis):
                    if all(x.dim != new.dim for x in mine):
                        yield plan.with_lines(level, [*lines, new])
                        if mine:
                            yield plan.with_lines(level, [new, *lines])
                            yield _with(plan, mine[0], new)
                for one, other in pairwise(mine):
                    swap = {one: other, other: one}
                    yield plan.with_lines(level, [swap.get(x, x) for x in lines])
                for x in mine:
                    for other in axes:
                        new = replace(x, axis=other)
                        if other != axis and all(y.dim != x.dim for y in plan.at(level, other)):
                            rest = [y for y in lines if y != x]
                            yield plan.with_lines(level, [*rest, new])
                            yield plan.with_lines(level, [new, *rest])
                for below in _BELOW if level in _BELOW and mine else ():
                    moved = plan.with_lines(level, [x for x in lines if x.axis != axis])
                    added = [replace(x, level=below) for x in mine]
                    yield moved.with_lines(below, [*moved.at(below), *added])

    def _new(self, level: str, axis: str) -> Iterator[Line]:
        """The rules of one dim that a list may have; what is visited may stay where it is."""
        for dim in self._dims if level == "rules" else self._stored:
            if level == "rules" and dim in self._visited:
                yield Line(level, dim, axis, attributes=(("move", "exchange"),))
            yield Line(level, dim, axis)


def _sizes(plan: Plan) -> Iterator[Plan]:
    """A factor moved from one axis to another; an axis that is left with 1 is gone."""
    sizes = dict(plan.sizes)
    for donor in sizes:
        for taker in sizes:
            if donor != taker and sizes[donor] % _FACTOR == 0:
                moved = {donor: sizes[donor] // _FACTOR, taker: sizes[taker] * _FACTOR}
                yield plan.with_sizes(sizes | moved)


def _pipelines(plan: Plan) -> Iterator[Plan]:
    """More or fewer microbatches and rounds."""
    for x in plan.lines:
        if (table := x.attribute("microbatches")) is not None:
            dim, count = table
            for n in (count * _FACTOR, count // _FACTOR):
                if n:
                    yield _with(plan, x, x.with_attribute("microbatches", (dim, n)))
            rounds = x.attribute("rounds") or 1
            for n in (rounds * _FACTOR, rounds // _FACTOR):
                if n:
                    yield _with(plan, x, x.with_attribute("rounds", n if n > 1 else None))


def _rings(plan: Plan) -> Iterator[Plan]:
    """What a rule gathers goes round a ring, or no longer does."""
    for x in plan.at("rules"):
        if x.attribute("microbatches") is None:
            yield _with(plan, x, x.with_attribute("move", None if x.attribute("move") else "ring"))


def _words(plan: Plan) -> Iterator[Plan]:
    said = dict(plan.words)
    if plan.at("parameters"):
        yield plan.with_word("gather", None if "gather" in said else "step")
    yield plan.with_word("sum", None if "sum" in said else "layer")


def _fewer(plan: Plan) -> Iterator[Plan]:
    """A rule less."""
    for x in plan.lines:
        yield plan.with_lines(x.level, [y for y in plan.at(x.level) if y != x])


def _with(plan: Plan, old: Line, new: Line) -> Plan:
    """A plan with a line in the place of another of the same list."""
    return plan.with_lines(old.level, [new if x == old else x for x in plan.at(old.level)])


def _roles(known: set[str]) -> list[Role]:
    """What each axis of the shipped layouts does, each once.

    Roles with rules of dims that are not `known` are left out, unless these are optional.
    """
    found: dict[Role, None] = {}
    for path in shipped().values():
        layout = Layout.load(path)
        plan = plan_of(layout, dict.fromkeys(layout.mesh, 2))
        for axis in layout.mesh:
            mine = plan.of(axis)
            if all(x.dim in known or x.optional for x in mine):
                found[tuple(replace(x, axis=_NEW) for x in mine if x.dim in known)] = None
    return [role for role in found if role]
