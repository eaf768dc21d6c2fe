"""The one error that users of meshdsl see.

A message says what was asked, the dims with their sizes, the rule or operand at fault, and what would
be legal. Array values never appear in it. `assert` is for our own invariants, this class for the user's input.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MeshDSLError(ValueError):
    """Input that meshdsl cannot accept: a misspelt name, an indivisible size, a malformed layout, bad data."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean `x`?"` for the known word closest to `word`, or the known words when none is close."""
    known = sorted(set(known))
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known: {', '.join(f'`{k}`' for k in known)}" if known else ""


def quote(value) -> str:
    """What was given, for a message: names and numbers as they are written, anything else by its type."""
    if isinstance(value, (str, int, float, type(None))):
        return repr(value)
    return f"of type {type(value).__name__}"
