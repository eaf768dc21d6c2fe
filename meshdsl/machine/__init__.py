"""Machines: what their chips can do, targets by name, and how a mesh lies on their networks."""

from meshdsl.machine.chips import FUSED_EFFICIENCY, Chip, chip_of, chips
from meshdsl.machine.network import Network
from meshdsl.machine.target import Target, find_target, fit_mesh, propose_meshes

__all__ = [
    "FUSED_EFFICIENCY",
    "Chip",
    "Network",
    "Target",
    "chip_of",
    "chips",
    "find_target",
    "fit_mesh",
    "propose_meshes",
]
