"""What a layout that is searched for must have, and must not have, and how a user writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import LEVELS, Layout, Rule
from meshdsl.parsing import parse_toml

_LEVEL = re.compile(rf"\s*({'|'.join(LEVELS)})\s*:\s*(.*)", re.DOTALL)
_KEY = re.compile(r"\s*\w+\s*=")
_NEVER = re.compile(r"\s*(\w+|\*)\s*->\s*(\w+|\*)\s*")
# What a layout says beside its rules, with the value that stands for nothing said.
WORDS = {"gather": "layer", "sum": "step", "uneven": "error", "strict": False}


def words_of(layout: Layout) -> dict[str, Any]:
    """What a layout says beside its rules, such as `{"gather": "step"}`."""
    said = {word: getattr(layout, word) for word in WORDS}
    return {word: value for word, value in said.items() if value != WORDS[word]}


@dataclass(frozen=True)
class Constraints:
    """What the user has decided.

    Attributes:
      keep: rules, and sizes of axes, that the layout must have; more may come below and beside
        them. What it says of `gather`, `sum`, `uneven` and `strict` holds where it is not what a
        layout has by default. None: nothing.
      never: rules that the layout must not have; `*` stands for any dim or any axis:
        `vocab -> *`, `* -> model`. They are in none of the lists; or not in the one that is named,
        as in `parameters: vocab -> *`.
      mesh: sizes of axes, which go before those of `keep`. Axes that are not in it may be added as
        long as the sizes fit the devices.
      axes: at most how many axes larger than 1.
      within_host: axes that must lie within one host.
      dcn: sizes of axes over the slow network between slices, such as `{"replica": 2}`.
      memory: bytes of a device that may be used; None for all that the chip has.
      remat: values of `model.remat` to choose from; None for all that the family has.
      microbatches: numbers of microbatches to choose from; None for the search's own choice.
    """

    keep: Layout | None = None
    never: tuple[str, ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict)
    axes: int = 3
    within_host: tuple[str, ...] = ()
    dcn: Mapping[str, int] = field(default_factory=dict)
    memory: int | None = None
    remat: tuple[str, ...] | None = None
    microbatches: tuple[int, ...] | None = None

    @property
    def kept(self) -> tuple[Rule, ...]:
        """The rules of `keep`, one dim and one axis each."""
        return self.keep.parsed if self.keep else ()

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of axes that are decided, by `keep`, `dcn` or `mesh`."""
        of_keep = self.keep.mesh if self.keep else {}
        fixed = {axis: size for axis, size in of_keep.items() if isinstance(size, int)}
        return fixed | dict(self.dcn) | dict(self.mesh)

    @property
    def across(self) -> tuple[str, ...]:
        """The axes that must go across slices."""
        return tuple(dict.fromkeys((*(self.keep.dcn if self.keep else ()), *self.dcn)))

    @property
    def words(self) -> dict[str, Any]:
        """What `keep` says beside its rules."""
        return words_of(self.keep) if self.keep else {}

    def size_words(self, axis: str) -> str:
        """The size of an axis as the user has said it, without the dashes of the flag."""
        by_file = axis not in self.mesh and axis not in self.dcn
        name = "dcn" if axis in self.across else "mesh"
        return f"{'keep ' * by_file}{name} {axis}={self.sizes[axis]}"


def kept_words(rule: Rule) -> str:
    """A rule that is kept, as the user has said it."""
    return f'keep "{"" if rule.level == "rules" else f"{rule.level}: "}{rule.text}"'


# -- texts -------------------------------------------------------------------------------------


def parse_keep(texts: Sequence[str]) -> tuple[Layout | None, dict[str, int], dict[str, int]]:
    """What several `--keep`s say, the upper ones first: their rules, and sizes of axes.

    The sizes are those of layout files, of axes within slices and then of axes across them.

    Each is a rule, or a table as in a layout file, `{ rule = "vocab -> model", uneven = "pad" }`,
    maybe after the name of its list, `parameters: d_model -> data`; or another key of `[layout]`,
    `gather = "step"`; or a layout file, or the name of a shipped layout. A size `"rest"` is free.

    Raises:
      MeshDSLError: a text is none of these.
    """
    given: dict[str, Any] = {level: [] for level in LEVELS}
    sizes: dict[str, int | str] = {}
    across: list[str] = []
    for text in texts:
        found = _parse_one(text)
        for level in LEVELS:
            given[level] += getattr(found, level)
        given |= words_of(found)
        sizes |= found.mesh
        across += found.dcn
    fixed = {axis: size for axis, size in sizes.items() if isinstance(size, int)}
    within = {axis: size for axis, size in fixed.items() if axis not in across}
    beyond = {axis: size for axis, size in fixed.items() if axis in across}
    return Layout(**given, name="keep") if texts else None, within, beyond


def _parse_one(text: str) -> Layout:
    """The layout that one `--keep` stands for."""
    match = _LEVEL.fullmatch(text)
    level, rest = (match[1], match[2]) if match else ("rules", text)
    name = f"--keep {text!r}"
    try:
        if rest.lstrip().startswith("{"):
            body = {level: [parse_toml(f"rule = {rest}")["rule"]]}
        elif "->" in rest or match:
            body = {level: [rest]}
        elif _KEY.match(rest):
            body = parse_toml(rest)
        else:
            body = None
    except ValueError as error:
        raise MeshDSLError(f"{name}: not as in a layout file: {error}") from None
    if body is not None:
        return Layout.from_dict({"layout": body}, name=name)
    try:
        return Layout.load(text)
    except MeshDSLError as error:
        hint = "" if Path(text).suffix == ".toml" else f'; a rule is written "{text} -> AXIS"'
        raise MeshDSLError(f"{name}: {error}{hint}") from None


def parse_never(pattern: str) -> tuple[str, str, str]:
    """List, dim and axis of a pattern such as `parameters: vocab -> *`; each may be `*`.

    Raises:
      MeshDSLError: it is no such pattern.
    """
    match = _LEVEL.fullmatch(pattern) if isinstance(pattern, str) else None
    level, rest = (match[1], match[2]) if match else ("*", pattern)
    found = _NEVER.fullmatch(rest) if isinstance(rest, str) else None
    if not found:
        raise MeshDSLError(
            f'search: never {quote(pattern)} is not of the form "dim -> axis", in which each may '
            "be `*`"
        )
    return level, found[1], found[2]
