"""What a compiled program says of itself, read from its text: its collectives, and its time by replaying its schedule."""

from meshdsl.plan.hlo.collectives import from_hlo

__all__ = ["from_hlo"]
