"""The one error that users of meshdsl see, and a kind of it.

A message says what was asked, the dims with their sizes, the rule or operand at fault, and what
would be legal. Array values never appear in it. `assert` is for our own invariants, this class
for the user's input.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class MeshDSLError(ValueError):
    """Input that meshdsl cannot accept: a misspelt name, a size that does not divide, bad data."""


class LayoutDoesNotFit(MeshDSLError):
    """A layout that is not for this model, or not for these devices.

    It has a rule for a dim that the model lacks, splits a dim that does not divide, or has a mesh
    of another number of devices.
    """


@contextmanager
def system_errors_say(what: object, then: str = "") -> Iterator[None]:
    """A context in which an error of the operating system is ours: `what: no such file; then`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise MeshDSLError(f"{what}: {why}{then and '; '}{then}") from None


def nearest(word: object, known: Iterable[str], far: str | None = None) -> str:
    """`; did you mean `x`?` for the known word closest to `word`.

    Args:
      word: a text, or anything that a file has in its place.
      far: what is said where no word is close; by default all that are known.
    """
    known = sorted(set(known))
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{close[0]}`?"
    if far is not None:
        return far
    return f"; known: {', '.join(f'`{k}`' for k in known)}" if known else ""


def quote(value) -> str:
    """What was given, for a message: names and numbers as written, others by their type."""
    if isinstance(value, (str, int, float, type(None))):
        return repr(value)
    kind = type(value).__name__
    return "a value that is being traced" if kind.endswith("Tracer") else f"of type {kind}"


def either(words: Sequence[str], between: str = "or") -> str:
    """`a, b or c`, or with another word before the last one."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {between} {words[-1]}"


LEAKED = (
    "a Tensor or array was kept from a traced function that has ended; return it from there, "
    "and give it here as an argument"
)
COMPUTED = "it is known before the program runs; md.take picks elements at computed indices"


def is_whole(value) -> bool:
    """Whether `value` is a whole number that is known now: no fraction, no True, not traced."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def whole_number(what: str, value, least: int | None = None) -> int:
    """`value` as an int, or an error that begins with `what`: "conv: the stride along b=8"."""
    if not is_whole(value) or (least is not None and value < least):
        raise MeshDSLError(
            f"{what} is a whole number{'' if least is None else f' of at least {least}'}, not "
            f"{quote(value)}"
        )
    return operator.index(value)
