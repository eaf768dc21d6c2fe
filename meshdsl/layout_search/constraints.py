"""What a layout that is searched for must have, and must not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshdsl.figures import byte_words
from meshdsl.layout import LEVELS, Layout, Rule

ANY_NUMBER = 64  # of axes: no mesh has so many that are larger than 1
# What a layout says beside its rules, with the value that stands for nothing said.
WORDS = {"gather": "layer", "sum": "step", "uneven": "error", "strict": False}


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
        """What `keep` says beside its rules, such as `{"gather": "step"}`."""
        if self.keep is None:
            return {}
        said = {word: getattr(self.keep, word) for word in WORDS}
        return {word: value for word, value in said.items() if value != WORDS[word]}


class Part(NamedTuple):
    """One of the things that the user has decided.

    Attributes:
      words: as the user says it, without the dashes of the flag: `keep "batch -> data"`.
      field: of `Constraints`.
      value: which part of that field it is.
    """

    words: str
    field: str
    value: Any


def parts(c: Constraints) -> list[Part]:
    """What the user has decided, one by one; what is rather left out comes first."""
    found = [Part(f"axes {c.axes}", "axes", c.axes)]
    if c.memory is not None:
        found.append(Part(f"max-memory {byte_words(c.memory)}", "memory", c.memory))
    if c.remat is not None:
        found.append(Part(f"remat {','.join(c.remat)}", "remat", c.remat))
    if c.microbatches is not None:
        counts = ",".join(map(str, c.microbatches))
        found.append(Part(f"microbatches {counts}", "microbatches", c.microbatches))
    found += [Part(f"within-host {axis}", "within_host", axis) for axis in c.within_host]
    for axis, size in c.sizes.items():
        name = "dcn" if axis in c.across else "mesh"
        by_file = axis not in c.mesh and axis not in c.dcn
        words = f"{'keep mesh.' if by_file and name == 'dcn' else 'keep ' * by_file}{name}"
        found.append(Part(f"{words} {axis}={size}", name, (axis, size)))
    found += [Part(f'never "{pattern}"', "never", pattern) for pattern in c.never]
    for word, value in c.words.items():
        found.append(Part(f"keep {word} = {_toml(value)}", "keep", (word, value)))
    for level in LEVELS:
        named = "" if level == "rules" else f"{level}: "
        for line in getattr(c.keep, level, ()):
            text = line if isinstance(line, str) else line.get("rule", "")
            found.append(Part(f'keep "{named}{text}"', "keep", (level, line)))
    return found


def _toml(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


def together(some: Iterable[Part]) -> Constraints:
    """The constraints that have these parts and no others."""
    by_field: dict[str, list] = {}
    for part in some:
        by_field.setdefault(part.field, []).append(part.value)
    one = lambda name: by_field[name][0] if name in by_field else None
    keep = None
    if "keep" in by_field:
        given: dict[str, Any] = {level: [] for level in LEVELS}
        for name, value in by_field["keep"]:
            given[name] = [*given[name], value] if name in LEVELS else value
        keep = Layout(**given, name="keep")
    return Constraints(
        keep=keep,
        never=tuple(by_field.get("never", ())),
        mesh=dict(by_field.get("mesh", ())),
        axes=one("axes") or ANY_NUMBER,
        within_host=tuple(by_field.get("within_host", ())),
        dcn=dict(by_field.get("dcn", ())),
        memory=one("memory"),
        remat=one("remat"),
        microbatches=one("microbatches"),
    )
