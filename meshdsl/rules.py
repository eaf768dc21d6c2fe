"""The rules of a layout: what a line of one says.

A line is `"heads, d_ff -> model"`, or a table with such a line and attributes. It stands for one
`Rule` for each of its dims and axes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshdsl.errors import MeshDSLError, either, nearest, quote

LEVELS = ("rules", "parameters", "gradients", "optimizer")
UNEVEN = ("error", "pad")
# What a rule may say, the default first; the moves and orders are those of `lowering.moves.table`.
ATTRIBUTES: dict[str, Any] = {"uneven": UNEVEN, "move": {}, "order": {}}
DEFAULTS = {"move": "collective", "order": "natural"}
SCHEDULES = ("late", "early")
_OF_PIPELINES = ("microbatches", "rounds", "schedule")
_RULE = re.compile(r"\s*(\w+\??(?:\s*,\s*\w+\??)*)\s*->\s*(\w+(?:\s*,\s*\w+)*)\s*")


@dataclass(frozen=True)
class Rule:
    """One dim over one axis.

    Attributes:
      where, text: quote the line of the layout that it came from.
      pads: whether parts are padded where the dim does not divide.
      move: how ops get operands that are split over the axis at rest; see `lowering.moves`.
      order: which elements of the dim each part has; see `lowering.moves`.
      microbatches: of a rule that makes a scan over `dim` a pipeline, the dim that is cut into
        microbatches and how many there are; see `splits.pipeline`.
      rounds: how often each microbatch goes round the stages of that pipeline.
      schedule: when the backward pass of a microbatch begins: after all forward passes, "late", or
        as soon as its own has ended, "early".
    """

    dim: str
    axis: str
    optional: bool
    level: str
    where: str
    text: str
    pads: bool = False
    move: str = DEFAULTS["move"]
    order: str = DEFAULTS["order"]
    microbatches: tuple[str, int] | None = None
    rounds: int = 1
    schedule: str = SCHEDULES[0]

    def __str__(self):
        return f"{self.where}: {self.text}"

    @property
    def words(self) -> list[str]:
        """What its `order` and `move` do, each in words."""
        named = ATTRIBUTES["order"][self.order], ATTRIBUTES["move"][self.move]
        return [move.words for move in named if move.words]


def parsed_line(
    line: str | Mapping, level: str, number: int, *, name: str, mesh: Mapping, uneven: str
) -> list[Rule]:
    """The rules that a line of a layout stands for, one for each dim and axis.

    Args:
      level: the list that it is of.
      number: of the line in that list, from 1.
      name, mesh, uneven: those of the layout.

    Raises:
      MeshDSLError: the line is malformed, or names an axis that the mesh has not.
    """
    where = f"{name}, {'rule' if level == 'rules' else level + ' rule'} {number}"
    how: dict[str, Any] = {"uneven": uneven, **DEFAULTS}
    if isinstance(line, Mapping):
        check_keys(where, "", line, ("rule", *ATTRIBUTES, *_OF_PIPELINES))
        how, line = how | {k: line[k] for k in line if k != "rule"}, line.get("rule", "")
        for attribute, words in ATTRIBUTES.items():
            check_word(where, attribute, how[attribute], words)
        for attribute in DEFAULTS:
            named = ATTRIBUTES[attribute][how[attribute]]
            if named.only_rules and level != "rules":
                raise MeshDSLError(
                    f'{where}: {attribute} = "{named.name}" is of the list `rules`; what the '
                    f"list `{level}` splits {named.only_rules}"
                )
    match = _RULE.fullmatch(line) if isinstance(line, str) else None
    if not match:
        raise MeshDSLError(f'{where}: {quote(line)} is not of the form "dim, ... -> axis, ..."')
    dims, axes = ([w.strip() for w in group.split(",")] for group in match.groups())
    names = [d.rstrip("?") for d in dims]
    for dim in names:
        if names.count(dim) > 1:
            raise MeshDSLError(f"{where}: dim `{dim}` is named twice in {line!r}")
    for axis in axes:
        if axes.count(axis) > 1:
            raise MeshDSLError(f"{where}: axis `{axis}` is named twice in {line!r}")
        if mesh and axis not in mesh:
            raise MeshDSLError(f"{where}: no axis `{axis}` in the mesh{nearest(axis, mesh)}")
    pads, move, order = how["uneven"] == "pad", how["move"], how["order"]
    cut = _microbatches(where, level, names, how) if how.keys() & set(_OF_PIPELINES) else None
    text = match.string.strip()
    rule = Rule("", "", False, level, where, text, pads, move, order, cut)
    rule = replace(rule, rounds=how.get("rounds", 1), schedule=how.get("schedule", SCHEDULES[0]))
    return [
        replace(rule, dim=d.rstrip("?"), axis=a, optional=d.endswith("?"))
        for d in dims
        for a in axes
    ]


def _microbatches(where: str, level: str, dims: list[str], how: Mapping) -> tuple[str, int]:
    """The dim that a rule cuts into microbatches, and how many there are.

    Raises:
      MeshDSLError: the table does not say that of one dim, or `rounds` is no number of rounds, or
        there is no such `schedule`, or the rule is not one that can be a pipeline.
    """
    example = "microbatches = { batch = 16 }"
    if "microbatches" not in how:
        what = "rounds are" if "rounds" in how else "a schedule is"
        raise MeshDSLError(f"{where}: {what} of a pipeline; add {example}")
    check_word(where, "schedule", how.get("schedule", SCHEDULES[0]), SCHEDULES)
    table, rounds = how["microbatches"], how.get("rounds", 1)
    whole = lambda n: isinstance(n, int) and not isinstance(n, bool) and n >= 1
    if not isinstance(table, Mapping) or len(table) != 1 or not all(map(whole, table.values())):
        got = dict(table) if isinstance(table, Mapping) else quote(table)
        raise MeshDSLError(
            f"{where}: microbatches is a table of one dim and a whole number of at least 1, as in "
            f"{example}, not {got}"
        )
    if not whole(rounds):
        raise MeshDSLError(f"{where}: rounds is a whole number of at least 1, not {quote(rounds)}")
    ((name, count),) = table.items()
    if level != "rules":
        raise MeshDSLError(
            f"{where}: microbatches are of the list `rules`; the list `{level}` says how tensors "
            "are kept, not how loops run"
        )
    if len(dims) > 1 or name in dims:
        raise MeshDSLError(
            f"{where}: a rule with microbatches is of one dim, over which a scan runs, and cuts "
            f'another one, as in {{ rule = "layers -> stage", {example} }}'
        )
    if any(how[attribute] != word for attribute, word in DEFAULTS.items()):
        raise MeshDSLError(
            f"{where}: `move` and `order` do not go with microbatches: the stages of a pipeline "
            "are in natural order, and nothing gathers them"
        )
    return name, count


def check_orders(rules: Sequence[Rule]) -> None:
    """Raise a MeshDSLError for a dim of which some rules have one order and some another."""
    first: dict[str, Rule] = {}
    for rule in rules:
        if rule.level != "rules":
            continue
        known = first.setdefault(rule.dim, rule)
        if known.order != rule.order:
            raise MeshDSLError(
                f"{rule}: `{rule.dim}` is in {rule.order} order over `{rule.axis}` here, and in "
                f"{known.order} order over `{known.axis}` in {known}; all rules of a dim have one "
                "order"
            )


def check_word(where: str, what: str, word, legal: Sequence[str]) -> None:
    """Raise a MeshDSLError unless `word` is one of the legal ones."""
    if not isinstance(word, str) or word not in legal:
        raise MeshDSLError(
            f"{where}: {what} is {either([repr(w) for w in legal])}, not "
            f"{quote(word)}{nearest(str(word), legal)}"
        )


def check_keys(name: str, prefix: str, table: Mapping, known: Sequence[str]) -> None:
    """Raise a MeshDSLError for a key of a table that is not known."""
    if not isinstance(table, Mapping):
        raise MeshDSLError(f"{name}: `{prefix.rstrip('.')}` is a table, not {quote(table)}")
    for key in map(str, table):
        if key not in known:
            raise MeshDSLError(f"{name}: unknown key `{prefix}{key}`{nearest(key, known)}")
