"""Machines: what their chips can do (a table), targets by name, and how a mesh lies on their networks."""

from .network import Lay, Network
from .table import Chip, chip_of, chips
from .target import Target, find_target, fit_mesh, propose

__all__ = ["Chip", "Lay", "Network", "Target", "chip_of", "chips", "find_target", "fit_mesh", "propose"]
