"""What of a compiled program's text is not understood, counted by kind, with one example of each.

Compilers change how they write programs. Every reader of a text therefore reads each instruction
through `Module.read`: where the text is not in a form that the reader knows, the instruction is
counted here and left out, and the rest of the program is read all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

# What reading raises where a text is not in the form that is expected: a name that nothing has, a
# number that is none, a part of a pattern that was not found. Sizes may be beyond all bounds.
STRANGE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
_LONGEST = 160  # characters of an example


@dataclass(frozen=True)
class UnreadKind:
    """Instructions of one kind that are not understood.

    Attributes:
      kind: their opcode, such as `copy-start`; of what is no instruction, a word for it.
      count: how many of them the text has.
      example: the text of the first.
    """

    kind: str
    count: int
    example: str


class Unread:
    """What was met in one text, each instruction once, however many readers fail on it."""

    def __init__(self):
        self._found: dict[str, tuple[str, str]] = {}

    def add(self, kind: str, text: str, key: str) -> None:
        """Count `text` as one of `kind`; the same `key` is counted once only."""
        example = " ".join(text.split())
        shown = example if len(example) <= _LONGEST else example[:_LONGEST] + "..."
        self._found.setdefault(key, (kind, shown))

    def kinds(self) -> tuple[UnreadKind, ...]:
        """The kinds that were met, the most frequent first."""
        examples: dict[str, list[str]] = {}
        for kind, example in self._found.values():
            examples.setdefault(kind, []).append(example)
        found = (UnreadKind(kind, len(texts), texts[0]) for kind, texts in examples.items())
        return tuple(sorted(found, key=lambda one: -one.count))


def unread_sentence(kinds: tuple[UnreadKind, ...]) -> str:
    """All of them in one sentence; empty where everything is understood."""
    if not kinds:
        return ""
    total = sum(one.count for one in kinds)
    named = ", ".join(f"{one.kind} x {one.count:,}" for one in kinds)
    noun = "instruction that is" if total == 1 else "instructions that are"
    return (
        f"the compiler's text has {total:,} {noun} not understood ({named}): "
        "what is said of time, collectives and arrays is without them"
    )
