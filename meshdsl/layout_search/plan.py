"""A layout in the form that a search changes: rules of one dim and one axis each, in order.

`Layout` says how a file is written, with several dims and axes in a line. A plan has each `Rule` by
itself, so that one can be added, taken out or moved. `layout_of` and `plan_of` go from one form to
the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import Any

from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraints import words_of

# What a table of a layout file says of a rule, with what is so by default.
_PLAIN = {
    "microbatches": None,
    "move": Rule.move,
    "order": Rule.order,
    "rounds": Rule.rounds,
    "schedule": Rule.schedule,
    "uneven": "error",
}


def rule_of(level: str, dim: str, axis: str, **how: Any) -> Rule:
    """A rule that no file has: `dim? -> axis` in one of the lists of a layout."""
    return Rule(dim, axis, optional=True, level=level, where="", text="", **how)


@dataclass(frozen=True)
class Plan:
    """Everything that a search decides.

    Attributes:
      sizes: of the axes that are larger than 1, major first; those across slices come first.
      rules: in the order of their lists.
      dcn: the axes that go across slices.
      words: what the layout says beside its rules, such as `(("gather", "step"),)`; sorted.
      settings: of the run, sorted by name.
    """

    sizes: tuple[tuple[str, int], ...]
    rules: tuple[Rule, ...]
    dcn: tuple[str, ...] = ()
    words: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def at(self, level: str) -> list[Rule]:
        """The rules of a list, from the top."""
        return [x for x in self.rules if x.level == level]

    def of(self, axis: str) -> list[Rule]:
        """The rules of an axis, in all lists."""
        return [x for x in self.rules if x.axis == axis]

    def with_rules(self, rules: Iterable[Rule]) -> Plan:
        """The same plan with these rules, each once, in the order of their lists."""
        ordered = sorted(dict.fromkeys(rules), key=lambda x: LEVELS.index(x.level))
        return replace(self, rules=tuple(ordered))

    def with_list(self, level: str, rules: Iterable[Rule]) -> Plan:
        """The same plan with other rules in one list."""
        return self.with_rules([*(x for x in self.rules if x.level != level), *rules])

    def with_rule(self, old: Rule, new: Rule) -> Plan:
        """The same plan with a rule in the place of another of the same list."""
        return replace(self, rules=tuple(new if x == old else x for x in self.rules))

    def with_word(self, word: str, value: Any) -> Plan:
        """The same plan with something else said of `gather`, say; None says nothing."""
        said = {k: v for k, v in (dict(self.words) | {word: value}).items() if v is not None}
        return replace(self, words=tuple(sorted(said.items())))

    def with_setting(self, name: str, value: str) -> Plan:
        """The same plan with another setting of the run."""
        return replace(self, settings=tuple(sorted((dict(self.settings) | {name: value}).items())))

    def with_sizes(self, sizes: Mapping[str, int]) -> Plan:
        """The same rules on a mesh of other sizes; what is said of an axis of size 1 is dropped."""
        large = {axis: size for axis, size in sizes.items() if size > 1}
        dcn = tuple(axis for axis in self.dcn if axis in large)
        rules = tuple(x for x in self.rules if x.axis in large)
        return replace(self, sizes=tuple(large.items()), dcn=dcn, rules=rules)


def plan_of(layout: Layout, sizes: Mapping[str, int]) -> Plan:
    """A layout on a mesh of these sizes as a plan."""
    words = tuple(sorted(words_of(layout).items()))
    rules = [replace(rule, where="", text="") for rule in layout.parsed]
    plan = Plan((), (), tuple(layout.dcn), words)
    return plan.with_rules(rules).with_sizes(sizes)


def layout_of(plan: Plan, name: str = "layout") -> Layout:
    """The layout that a plan describes, with neighbouring rules that are alike in one line."""
    said: dict[str, Any] = {level: _lines(plan.at(level)) for level in LEVELS}
    said |= dict(plan.words)
    return Layout(**said, mesh=dict(plan.sizes), dcn=plan.dcn, name=name)


def attributes(rule: Rule) -> dict[str, Any]:
    """What a table of a layout file says beside the rule: what is not so by default."""
    cut, uneven = rule.microbatches, "pad" if rule.pads else "error"
    said = {"microbatches": cut and dict([cut]), "move": rule.move, "order": rule.order}
    said |= {"rounds": rule.rounds, "schedule": rule.schedule, "uneven": uneven}
    return {key: value for key, value in said.items() if value != _PLAIN[key]}


def _lines(rules: Sequence[Rule]) -> list[str | dict[str, Any]]:
    """Rules as a layout file has them: dims of one axis together, then axes of one dim."""
    found: list[tuple[list[str], list[str], dict[str, Any]]] = []
    for (axis, how), same in groupby(rules, key=lambda x: (x.axis, attributes(x))):
        dims = [f"{x.dim}{'?' * x.optional}" for x in same]
        alone = "microbatches" in how
        for each in [[dim] for dim in dims] if alone else [dims]:
            if found and len(each) == 1 and found[-1][::2] == (each, how):
                found[-1][1].append(axis)
            else:
                found.append((each, [axis], how))
    texts = [(f"{', '.join(dims)} -> {', '.join(axes)}", how) for dims, axes, how in found]
    return [{"rule": text, **how} if how else text for text, how in texts]


def merged(plan: Plan) -> Iterator[Plan]:
    """The plans in which two axes that do the same are one."""
    for one, other in combinations(dict(plan.sizes), 2):
        of_one, of_other = ([replace(x, axis="") for x in plan.of(axis)] for axis in (one, other))
        if of_one == of_other and (one in plan.dcn) == (other in plan.dcn):
            sizes = dict(plan.sizes)
            sizes[one] *= sizes.pop(other)
            yield plan.with_sizes(sizes)
