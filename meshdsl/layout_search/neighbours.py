"""The plans that differ from one in a single decision."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

from meshdsl.layout import LEVELS, Layout, Rule, shipped
from meshdsl.layout_search.axis_names import axis_name
from meshdsl.layout_search.plan import Plan, plan_of, rule_of
from meshdsl.rules import SCHEDULES

_BELOW = LEVELS[1:]  # the lists of what is at rest
_FACTOR = 2  # by which axes grow and shrink
_SPLIT = 4  # dims of the most work: an axis may begin with one of them alone
_ROLES = (2, 4)  # sizes that an axis begins with when it is added with all of its rules
_NEW = ""  # stands for an axis that has no name yet


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
        alone = [(rule_of("rules", dim, _NEW),) for dim in dims[:_SPLIT]]
        self._roles = dict.fromkeys([*_roles({*dims, *stored}), *alone])

    def __call__(self, plan: Plan) -> Iterator[Plan]:
        """The neighbours of a plan; whether the law allows them is not known yet."""
        yield from self.small(plan)
        for x in plan.rules:
            yield plan.with_rules(y for y in plan.rules if y != x)
        yield from self._new_axes(plan)
        for level in LEVELS:
            for axis, _ in plan.sizes:
                yield from self._changed_list(plan, level, axis)
        if plan.at("parameters"):
            yield plan.with_word("gather", None if "gather" in dict(plan.words) else "step")
        yield plan.with_word("sum", None if "sum" in dict(plan.words) else "layer")
        for x in plan.at("rules"):
            if x.microbatches is None:
                move = "ring" if x.move == Rule.move else Rule.move
                yield plan.with_rule(x, replace(x, move=move))

    def small(self, plan: Plan) -> Iterator[Plan]:
        """Those with the same rules: other sizes, settings, and ways to follow the rules."""
        sizes = dict(plan.sizes)
        for donor, taker in permutations(sizes, 2):
            if sizes[donor] % _FACTOR == 0:
                moved = {donor: sizes[donor] // _FACTOR, taker: sizes[taker] * _FACTOR}
                yield plan.with_sizes(sizes | moved)
        yield from self._settings(plan)
        for x in plan.at("rules"):
            if x.dim in self._visited:
                move = Rule.move if x.move == "exchange" else "exchange"
                yield plan.with_rule(x, replace(x, move=move))
        for x in plan.rules:
            if x.microbatches is not None:
                dim, count = x.microbatches
                for n in filter(None, (count * _FACTOR, count // _FACTOR)):
                    yield plan.with_rule(x, replace(x, microbatches=(dim, n)))
                for n in filter(None, (x.rounds * _FACTOR, x.rounds // _FACTOR)):
                    yield plan.with_rule(x, replace(x, rounds=n))
                for schedule in SCHEDULES:
                    if schedule != x.schedule:
                        yield plan.with_rule(x, replace(x, schedule=schedule))

    def _settings(self, plan: Plan) -> Iterator[Plan]:
        """A setting one value further or back, or half of the way to its last value."""
        said = dict(plan.settings)
        for name, values in self._choices.items():
            at = list(values).index(said[name])
            for other in dict.fromkeys(((at + len(values)) // 2, at + 1, at - 1)):
                if 0 <= other < len(values):
                    yield plan.with_setting(name, values[other])

    def _new_axes(self, plan: Plan) -> Iterator[Plan]:
        """An axis taken from the largest, with the rules that an axis of a shipped layout has."""
        sizes = dict(plan.sizes)
        if not sizes:
            return
        donor = max(sizes, key=sizes.__getitem__)
        there = {tuple(replace(x, axis=_NEW) for x in plan.of(axis)) for axis in sizes}
        for size in _ROLES:
            for role in self._roles:
                if sizes[donor] % size or sizes[donor] == size or role in there:
                    continue
                name = axis_name(role, self._stored, list(sizes))
                others = sizes | {donor: sizes[donor] // size}
                split = replace(plan, sizes=(*others.items(), (name, size)))
                rules = plan.rules + tuple(replace(x, axis=name) for x in role)
                # What the list of the donor says of things at rest may hold for both axes.
                both: list[Rule] = []
                for x in rules:
                    shared = x.level in _BELOW and x.axis == donor
                    both += [x, replace(x, axis=name)] if shared else [x]
                yield split.with_rules(both)
                yield split.with_rules(rules)

    def _changed_list(self, plan: Plan, level: str, axis: str) -> Iterator[Plan]:
        """A rule more, in the place of another, in another place, or over another axis."""
        rules = plan.at(level)
        mine = [x for x in rules if x.axis == axis]
        for new in self._new(level, axis):
            if all(x.dim != new.dim for x in mine):
                yield plan.with_list(level, [*rules, new])
                if mine:
                    yield plan.with_list(level, [new, *rules])
                    yield plan.with_rule(mine[0], new)
        for one, other in pairwise(mine):
            swap = {one: other, other: one}
            yield plan.with_list(level, [swap.get(x, x) for x in rules])
        for x in mine:
            for other, _ in plan.sizes:
                new = replace(x, axis=other)
                if other != axis and all((y.dim, y.axis) != (x.dim, other) for y in rules):
                    rest = [y for y in rules if y != x]
                    yield plan.with_list(level, [*rest, new])
                    yield plan.with_list(level, [new, *rest])
        for below in _BELOW if level in _BELOW and mine else ():
            left = [x for x in plan.rules if x not in mine]
            yield plan.with_rules([*left, *(replace(x, level=below) for x in mine)])

    def _new(self, level: str, axis: str) -> Iterator[Rule]:
        """The rules of one dim that a list may have; what is visited may stay where it is."""
        for dim in self._dims if level == "rules" else self._stored:
            if level == "rules" and dim in self._visited:
                yield rule_of(level, dim, axis, move="exchange")
            yield rule_of(level, dim, axis)


def _roles(known: set[str]) -> Iterator[tuple[Rule, ...]]:
    """What each axis of the shipped layouts does.

    Roles with rules of dims that are not `known` are left out, unless these are optional.
    """
    for path in shipped().values():
        layout = Layout.load(path)
        plan = plan_of(layout, dict.fromkeys(layout.mesh, 2))
        for axis in layout.mesh:
            mine = plan.of(axis)
            role = tuple(replace(x, axis=_NEW) for x in mine if x.dim in known)
            if role and all(x.dim in known or x.optional for x in mine):
                yield role
