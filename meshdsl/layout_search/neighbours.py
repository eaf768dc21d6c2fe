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
    """Makes the neighbours of plans of one workload.

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
        """The neighbours of a plan, each once; whether the law allows them is not known yet."""
        seen = {plan}
        for near in self._all(plan):
            if near not in seen:
                seen.add(near)
                yield near

    def _all(self, plan: Plan) -> Iterator[Plan]:
        yield from self.settings(plan)
        yield from self.exchanges(plan)
        yield from _sizes(plan)
        yield from self._new_axes(plan)
        yield from self._lines(plan)
        yield from _attributes(plan)
        yield from _words(plan)

    def settings(self, plan: Plan) -> Iterator[Plan]:
        """A setting one value further or back, or half of the way to its last value."""
        said = dict(plan.settings)
        for name, values in self._choices.items():
            at = list(values).index(said[name])
            for other in dict.fromkeys(((at + len(values)) // 2, at + 1, at - 1)):
                if 0 <= other < len(values):
                    yield plan.with_setting(name, values[other])

    def exchanges(self, plan: Plan) -> Iterator[Plan]:
        """The plan with what is visited left where it is, or gathered again."""
        for x in plan.at("rules"):
            if x.dim in self._visited:
                move = None if x.attribute("move") == "exchange" else "exchange"
                new = x.with_attribute("move", move)
                yield plan.with_lines("rules", [new if y == x else y for y in plan.at("rules")])

    def _new_axes(self, plan: Plan) -> Iterator[Plan]:
        """An axis taken from the largest, with the rules that an axis of a shipped layout has."""
        sizes = dict(plan.sizes)
        donor = max(sizes, key=sizes.__getitem__, default="")
        there = {tuple(replace(x, axis=_NEW) for x in plan.of(axis)) for axis in sizes}
        for role in self._roles:
            for size in _ROLES:
                if not donor or sizes[donor] % size or sizes[donor] == size or role in there:
                    continue
                others = {a: n // size if a == donor else n for a, n in sizes.items()}
                split = replace(
                    plan, sizes=(*others.items(), (_NEW, size)), lines=plan.lines + role
                )
                yield self._named(_in_lists(split))
                # What the list of the donor says of things at rest holds for both axes.
                both = _stored_alike(split, donor, _NEW)
                if both != split:
                    yield self._named(_in_lists(both))

    def _named(self, plan: Plan) -> Plan:
        """A plan with a name for its new axis."""
        taken = [axis for axis, _ in plan.sizes if axis != _NEW]
        name = axis_name(plan.of(_NEW), self._stored, taken)
        sizes = tuple((name if axis == _NEW else axis, size) for axis, size in plan.sizes)
        lines = tuple(replace(x, axis=name) if x.axis == _NEW else x for x in plan.lines)
        return replace(plan, sizes=sizes, lines=lines)

    def _lines(self, plan: Plan) -> Iterator[Plan]:
        for axis, _ in plan.sizes:
            for level in LEVELS:
                lines = plan.at(level)
                mine = [x for x in lines if x.axis == axis]
                for x in mine:
                    yield plan.with_lines(level, [y for y in lines if y != x])
                for first, second in pairwise(mine):
                    yield plan.with_lines(level, _swapped(lines, first, second))
                for other, _ in plan.sizes:
                    if other != axis:
                        yield from _moved(plan, level, mine, other)
                dims = self._dims if level == "rules" else self._stored
                for dim in dims:
                    if any(x.dim == dim for x in mine):
                        continue
                    new = Line(level, dim, axis)
                    yield plan.with_lines(level, [*lines, new])
                    if mine:
                        yield plan.with_lines(level, [new, *lines])
                        yield plan.with_lines(level, [new if y == mine[0] else y for y in lines])
            for level in _BELOW:
                for other in _BELOW:
                    mine = plan.at(level, axis)
                    if other == level or not mine:
                        continue
                    moved = plan.with_lines(level, [x for x in plan.at(level) if x.axis != axis])
                    lines = [*moved.at(other), *(replace(x, level=other) for x in mine)]
                    yield moved.with_lines(other, lines)


def _sizes(plan: Plan) -> Iterator[Plan]:
    """A factor moved from one axis to another; an axis that is left with 1 is gone."""
    sizes = dict(plan.sizes)
    for donor in sizes:
        for taker in sizes:
            if donor == taker or sizes[donor] % _FACTOR:
                continue
            moved = sizes | {donor: sizes[donor] // _FACTOR, taker: sizes[taker] * _FACTOR}
            yield plan.with_sizes(moved)


def _attributes(plan: Plan) -> Iterator[Plan]:
    """Another way to move what a rule gathers; more or fewer microbatches and rounds."""
    for x in plan.lines:
        lines = plan.at(x.level)
        changed = []
        if x.level == "rules" and x.attribute("microbatches") is None:
            changed.append(x.with_attribute("move", None if x.attribute("move") else "ring"))
        if (table := x.attribute("microbatches")) is not None:
            dim, count = table
            counts = (count * _FACTOR, count // _FACTOR)
            changed += [x.with_attribute("microbatches", (dim, n)) for n in counts if n]
            rounds = x.attribute("rounds") or 1
            changed += [
                x.with_attribute("rounds", n if n > 1 else None)
                for n in (rounds * _FACTOR, rounds // _FACTOR)
                if n
            ]
        for new in changed:
            yield plan.with_lines(x.level, [new if y == x else y for y in lines])


def _words(plan: Plan) -> Iterator[Plan]:
    said = dict(plan.words)
    if plan.at("parameters"):
        yield plan.with_word("gather", None if "gather" in said else "step")
    yield plan.with_word("sum", None if "sum" in said else "layer")


def _moved(plan: Plan, level: str, mine: list[Line], axis: str) -> Iterator[Plan]:
    """Each of the lines of a list over another axis, above what that has and below it."""
    theirs = plan.at(level, axis)
    for x in mine:
        new = replace(x, axis=axis)
        if all(y.dim != x.dim for y in theirs):
            others = [y for y in plan.at(level) if y != x]
            yield plan.with_lines(level, [*others, new])
            if theirs:
                yield plan.with_lines(level, [new, *others])


def _swapped(lines: list[Line], first: Line, second: Line) -> list[Line]:
    swap = {first: second, second: first}
    return [swap.get(x, x) for x in lines]


def _stored_alike(plan: Plan, axis: str, other: str) -> Plan:
    """A plan whose lists for what is at rest say of `other` what they say of `axis`."""
    lines = []
    for x in plan.lines:
        lines.append(x)
        twin = replace(x, axis=other)
        if x.level in _BELOW and x.axis == axis and twin not in plan.lines:
            lines.append(twin)
    return replace(plan, lines=tuple(lines))


def _in_lists(plan: Plan) -> Plan:
    """A plan with its lines in the order of their lists, each line once."""
    lines = dict.fromkeys(plan.lines)
    return replace(plan, lines=tuple(x for level in LEVELS for x in lines if x.level == level))


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
