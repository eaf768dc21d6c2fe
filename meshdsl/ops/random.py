"""`md.random`: every op that takes a random key. The ops declare themselves; see `declare.py`."""

from meshdsl.ops.families import named

_FUNCTIONS = named("random")
globals().update(_FUNCTIONS)

__all__ = sorted(_FUNCTIONS)  # pyright: ignore[reportUnsupportedDunderAll] (ops name themselves)
