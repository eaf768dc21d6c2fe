"""Machines: what their chips can do (a table), targets by name, and how a mesh lies on their networks."""

from meshdsl.machine.chips import Chip, chip_of, chips
from meshdsl.machine.network import Lay, Network
from meshdsl.machine.target import Target, find_target, fit_mesh, propose

__all__ = [
    "Chip",
    "Lay",
    "Network",
    "Target",
    "chip_of",
    "chips",
    "find_target",
    "fit_mesh",
    "propose",
]
