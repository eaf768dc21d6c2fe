"""Machines: what their chips can do, targets by name, and how a mesh lies on their networks."""

from meshdsl.machine.axis_network import AxisNetwork
from meshdsl.machine.chips import Chip, chip_of, chips
from meshdsl.machine.network import Network
from meshdsl.machine.target import Target, find_target, fit_mesh, propose_meshes

__all__ = [
    "AxisNetwork",
    "Chip",
    "Network",
    "Target",
    "chip_of",
    "chips",
    "find_target",
    "fit_mesh",
    "propose_meshes",
]
