"""Constraints as a user writes them: rules that are kept, and patterns of rules that are not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import LEVELS, Layout
from meshdsl.layout_search.constraints import WORDS
from meshdsl.parsing import parse_toml

_LEVEL = re.compile(rf"\s*({'|'.join(LEVELS)})\s*:\s*(.*)", re.DOTALL)
_KEY = re.compile(r"\s*\w+\s*=")
_NEVER = re.compile(r"\s*(\w+|\*)\s*->\s*(\w+|\*)\s*")


class Kept(NamedTuple):
    """What several `--keep`s say.

    Attributes:
      layout: their rules, without a mesh; None where there are none.
      mesh: sizes of axes within slices, where a layout file has them.
      dcn: sizes of axes across slices, likewise.
    """

    layout: Layout | None
    mesh: dict[str, int]
    dcn: dict[str, int]


def parse_keep(texts: Sequence[str]) -> Kept:
    """What several `--keep`s say, the upper ones first.

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
        stated = {word: getattr(found, word) for word in WORDS}
        given |= {word: value for word, value in stated.items() if value != WORDS[word]}
        sizes |= found.mesh
        across += found.dcn
    fixed = {axis: size for axis, size in sizes.items() if isinstance(size, int)}
    return Kept(
        Layout(**given, name="keep") if texts else None,
        {axis: size for axis, size in fixed.items() if axis not in across},
        {axis: size for axis, size in fixed.items() if axis in across},
    )


def _parse_one(text: str) -> Layout:
    """The layout that one `--keep` stands for.

    Raises:
      MeshDSLError: it is no rule, no table, no key and no layout.
    """
    match = _LEVEL.fullmatch(text)
    level, rest = (match[1], match[2]) if match else ("rules", text)
    name = f"--keep {text!r}"
    if rest.lstrip().startswith("{"):
        line = _from_toml(f"rule = {rest}", name)["rule"]
        return Layout.from_dict({"layout": {level: [line]}}, name=name)
    if "->" in rest or match:
        return Layout.from_dict({"layout": {level: [rest]}}, name=name)
    if _KEY.match(rest):
        return Layout.from_dict({"layout": _from_toml(rest, name)}, name=name)
    try:
        return Layout.load(text)
    except MeshDSLError as error:
        hint = "" if Path(text).suffix == ".toml" else f'; a rule is written "{text} -> AXIS"'
        raise MeshDSLError(f"{name}: {error}{hint}") from None


def _from_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise MeshDSLError(f"{name}: not as in a layout file: {error}") from None


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
