"""What becomes of each primitive of JAX: the list in the documentation."""

from __future__ import annotations

import textwrap

from meshdsl.plain_jax.evaluate import RULES
from meshdsl.plain_jax.fallback import PASSING, REFUSED
from meshdsl.plain_jax.primitives import ELEMENTWISE, KEYS
from meshdsl.plain_jax.program import CALLS

# What was recognised is no primitive of JAX.
_RECOGNISED = frozenset({"softmax", "log_softmax", "logsumexp", "attention"})


def rows() -> dict[str, frozenset[str]]:
    """The primitives by what becomes of them. All others run on whole operands."""
    own = frozenset(RULES) - _RECOGNISED - ELEMENTWISE
    return {
        "Elementwise, on what each device has": ELEMENTWISE,
        "A rule of its own": own,
        "Inlined": frozenset(CALLS),
        "On every device alike": KEYS,
        "Whole along the dims on which it works, where it has no rule": frozenset(PASSING),
        "An error, over an axis of a mesh": REFUSED,
    }


def text() -> str:
    """The list, in Markdown."""
    found = []
    for what, names in rows().items():
        line = f"- {what}: {', '.join(f'`{name}`' for name in sorted(names))}."
        found.append(textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join([*found, "- Whole: all others."])
