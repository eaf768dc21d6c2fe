"""The record of a program: its ops, moves and collectives, written down while it is traced."""

from meshdsl.program.collective import Collective, summary
from meshdsl.program.jaxpr import from_jaxpr

__all__ = ["Collective", "from_jaxpr", "summary"]
