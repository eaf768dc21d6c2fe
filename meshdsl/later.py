"""Parts of the package that are imported when they are first used.

A program that trains draws no page and estimates no time, so it should start without the modules
that do. `md.explain` and the others of `LATER` are imported when somebody asks for them. Where
something below needs such a module after all, as a program in a notebook does, it asks `imported`
for it. Nowhere else in the package is anything imported while it runs, but for optional packages
such as matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# What is public as `md.NAME`, with the module that has it.
LATER = {
    "compare": "meshdsl.tools.compare",
    "compile": "meshdsl.tools.function",
    "explain": "meshdsl.tools.function",
    "JaxFamily": "meshdsl.plain_jax.family",
    "from_jax": "meshdsl.plain_jax.public",
    "ledger": "meshdsl.tools.ledger",
    "search": "meshdsl.tools.search",
    "show": "meshdsl.tools.show",
}


def imported(module: str, name: str) -> Any:
    """What is called `name` in `module`, which is imported if it has not been yet.

    For example `imported("meshdsl.tools.analysis", "Explained")`.
    """
    return getattr(import_module(module), name)
