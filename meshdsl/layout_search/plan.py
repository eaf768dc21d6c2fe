"""A layout in the form that a search changes: rules of one dim and one axis each, in order.

`Layout` says how a file is written, with several dims and axes in a line. Here each rule is one
`Line`, so that one can be added, taken out or moved by itself. `layout_of` and `plan_of` go from
one form to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import Any

from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.layout_search.constraints import WORDS


@dataclass(frozen=True)
class Line:
    """One dim over one axis, in one of the lists of a layout.

    Attributes:
      optional: whether a program may lack the dim.
      attributes: as a table of a layout file has them, such as `(("move", "ring"),)`; those that
        say what is so by default are left out.
    """

    level: str
    dim: str
    axis: str
    optional: bool = True
    attributes: tuple[tuple[str, Any], ...] = ()

    def with_attribute(self, name: str, value: Any) -> Line:
        """The same rule with an attribute; None takes it away."""
        others = {key: old for key, old in self.attributes if key != name}
        if value is not None:
            others[name] = value
        return replace(self, attributes=tuple(sorted(others.items())))

    def attribute(self, name: str) -> Any:
        """What the rule says of an attribute; None if nothing."""
        return dict(self.attributes).get(name)


@dataclass(frozen=True)
class Plan:
    """Everything that a search decides.

    Attributes:
      sizes: of the axes that are larger than 1, major first; those across slices come first.
      dcn: the axes that go across slices.
      lines: in the order of their lists.
      words: what the layout says beside its rules, such as `(("gather", "step"),)`; sorted.
      settings: of the run, sorted by name.
    """

    sizes: tuple[tuple[str, int], ...]
    lines: tuple[Line, ...]
    dcn: tuple[str, ...] = ()
    words: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def at(self, level: str, axis: str | None = None) -> list[Line]:
        """The lines of a list, from the top; with `axis` those of that axis."""
        return [x for x in self.lines if x.level == level and axis in (None, x.axis)]

    def of(self, axis: str) -> list[Line]:
        """The lines of an axis, in all lists."""
        return [x for x in self.lines if x.axis == axis]

    def with_lines(self, level: str, lines: Iterable[Line]) -> Plan:
        """The same plan with other lines in one list."""
        every = {each: self.at(each) for each in LEVELS} | {level: list(lines)}
        return replace(self, lines=tuple(x for each in LEVELS for x in every[each]))

    def with_word(self, word: str, value: Any) -> Plan:
        """The same plan with something else said of `gather`, say; None says nothing."""
        words = dict(self.words) | {word: value}
        said = {key: value for key, value in words.items() if value is not None}
        return replace(self, words=tuple(sorted(said.items())))

    def with_setting(self, name: str, value: str) -> Plan:
        """The same plan with another setting of the run."""
        return replace(self, settings=tuple(sorted((dict(self.settings) | {name: value}).items())))

    def with_sizes(self, sizes: Mapping[str, int]) -> Plan:
        """The same rules on a mesh of other sizes; what is said of an axis of size 1 is dropped."""
        large = {axis: size for axis, size in sizes.items() if size > 1}
        return replace(
            self,
            sizes=tuple(large.items()),
            dcn=tuple(axis for axis in self.dcn if axis in large),
            lines=tuple(x for x in self.lines if x.axis in large),
        )


_DEFAULTS = {"uneven": "error", "move": Rule.move, "order": Rule.order, "rounds": 1}


def plan_of(
    layout: Layout, sizes: Mapping[str, int], settings: Mapping[str, str] | None = None
) -> Plan:
    """A layout on a mesh of these sizes as a plan."""
    lines = [
        Line(rule.level, rule.dim, rule.axis, rule.optional, _attributes(rule))
        for level in LEVELS
        for rule in layout.parsed
        if rule.level == level
    ]
    said = {w: getattr(layout, w) for w, default in WORDS.items() if getattr(layout, w) != default}
    plan = Plan(
        tuple(sizes.items()),
        tuple(lines),
        tuple(layout.dcn),
        tuple(sorted(said.items())),
        tuple(sorted((settings or {}).items())),
    )
    return plan.with_sizes(sizes)


def _attributes(rule: Rule) -> tuple[tuple[str, Any], ...]:
    said: dict[str, Any] = {
        "uneven": "pad" if rule.pads else "error",
        "move": rule.move,
        "order": rule.order,
        "rounds": rule.rounds,
    }
    found = {key: value for key, value in said.items() if value != _DEFAULTS[key]}
    if rule.microbatches:
        found["microbatches"] = rule.microbatches
    return tuple(sorted(found.items()))


def layout_of(plan: Plan, name: str = "layout") -> Layout:
    """The layout that a plan describes, with neighbouring rules that are alike in one line."""
    said: dict[str, Any] = {level: _texts(plan.at(level)) for level in LEVELS}
    said |= dict(plan.words)
    return Layout(**said, mesh=dict(plan.sizes), dcn=plan.dcn, name=name)


def _texts(lines: list[Line]) -> list[str | dict[str, Any]]:
    """Lines as a layout file has them: dims of one axis together, then axes of one dim."""
    found: list[tuple[list[str], list[str], tuple]] = []
    for (axis, attributes), same in groupby(lines, key=lambda x: (x.axis, x.attributes)):
        dims = [f"{x.dim}{'?' * x.optional}" for x in same]
        alone = any(name in ("microbatches", "rounds") for name, _ in attributes)
        for each in [[dim] for dim in dims] if alone else [dims]:
            last = found[-1] if found else None
            if last and last[0] == each and last[2] == attributes and len(each) == 1:
                last[1].append(axis)
            else:
                found.append((each, [axis], attributes))
    return [_text(f"{', '.join(dims)} -> {', '.join(axes)}", how) for dims, axes, how in found]


def _text(rule: str, attributes: tuple[tuple[str, Any], ...]) -> str | dict[str, Any]:
    if not attributes:
        return rule
    how = dict(attributes)
    if "microbatches" in how:
        dim, count = how["microbatches"]
        how["microbatches"] = {dim: count}
    return {"rule": rule, **how}


def merged(plan: Plan) -> Iterator[Plan]:
    """The plans in which two axes that do the same are one."""
    for one, other in combinations(dict(plan.sizes), 2):
        of_one, of_other = ([replace(x, axis="") for x in plan.of(axis)] for axis in (one, other))
        if of_one == of_other and (one in plan.dcn) == (other in plan.dcn):
            sizes = dict(plan.sizes)
            sizes[one] *= sizes.pop(other)
            yield plan.with_sizes(sizes)
