"""What a program does: its ops, moves and collectives, recorded while it is traced and read from what JAX made of it."""

from .collective import Collective, summary
from .hlo import from_hlo
from .jaxpr import from_jaxpr

__all__ = ["Collective", "from_hlo", "from_jaxpr", "summary"]
