"""Devices, found by how many the user asks for."""

from __future__ import annotations

import math

import jax

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.predict.compiler.topology import ask_for_virtual, without_tpu

_Devices = list[jax.Device]  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX's types
_REST = 8  # virtual devices for a mesh that takes as many as there are


def devices_of_mesh(layout: Layout) -> int:
    """How many devices the mesh asks for; about 8 where it takes as many as there are."""
    sizes = layout.mesh.values()
    fixed = math.prod(size for size in sizes if isinstance(size, int))
    return math.ceil(_REST / fixed) * fixed if "rest" in sizes else fixed


def devices_of_all(asked: int | None) -> _Devices:
    """The devices of several processes, which use all of them; `asked`: how many the user wants."""
    found = jax.devices()
    if asked not in (None, len(found)):
        raise MeshDSLError(
            f"--devices {asked}: {hosts.count()} processes use all of their {len(found)} devices"
        )
    return found


def pick_devices(layout: Layout, usual: int, asked: int | None = None) -> _Devices:
    """The devices to run on.

    They are accelerators where there are any, all of them by default. Otherwise virtual CPU devices
    are made, which JAX can do until its first computation: no environment variable is needed.
    Several processes use all devices that they have together.

    Args:
      layout: its mesh says how many, where nothing else does.
      usual: how many, where the user asks for no number; 0 for what the mesh asks for.
      asked: how many the user asks for.

    Raises:
      MeshDSLError: there are fewer devices than wanted.
    """
    wanted = asked or usual
    number = wanted or devices_of_mesh(layout)
    without_tpu()
    if hosts.count() > 1:
        return devices_of_all(asked)
    ask_for_virtual(number)
    found = jax.devices()
    if found[0].platform != "cpu" and not wanted:
        return found
    if len(found) < number:
        raise MeshDSLError(
            f"{number} devices are wanted, and there are {len(found)} ({found[0].platform})"
        )
    return found[:number]
