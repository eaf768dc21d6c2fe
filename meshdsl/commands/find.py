"""Layouts and devices by what the user calls them."""

from __future__ import annotations

import math
from pathlib import Path

import jax

from meshdsl import layouts
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.layout import Layout

_REST = 8  # virtual devices for a mesh that takes as many as there are


def shipped() -> dict[str, Path]:
    """The layout files that come with meshdsl, by name."""
    return {path.stem: path for path in sorted(Path(layouts.__path__[0]).glob("*.toml"))}


def find_layout(text: str) -> Layout:
    """The layout in the file `text`, or the shipped one of that name.

    Raises:
      MeshDSLError: neither exists, or the file is no layout.
    """
    known = shipped()
    if text in known and not Path(text).is_file():
        return Layout.load(known[text])
    if not Path(text).is_file() and not text.endswith(".toml"):
        raise MeshDSLError(f"layout {text}: no such file, and no shipped layout of that name{nearest(text, known)}")
    return Layout.load(text)


def devices_of_mesh(layout: Layout) -> int:
    """How many devices the mesh of `layout` asks for; about 8 where it takes as many as there are."""
    sizes = layout.mesh.values()
    fixed = math.prod(size for size in sizes if size != "rest")
    return math.ceil(_REST / fixed) * fixed if "rest" in sizes else fixed


def pick_devices(layout: Layout, wanted: int) -> list[jax.Device]:
    """The devices to run on: `wanted` of them, or for 0 what the mesh of `layout` asks for.

    Accelerators are used where there are any, all of them by default. Otherwise virtual CPU devices are made, which
    JAX can do until its first computation: no environment variable is needed.

    Raises:
      MeshDSLError: there are fewer devices than wanted.
    """
    from meshdsl.plan.compiled.topology import ask_for_virtual, without_tpu

    number = wanted or devices_of_mesh(layout)
    without_tpu()
    ask_for_virtual(number)
    found = jax.devices()
    if found[0].platform != "cpu" and not wanted:
        return found
    if len(found) < number:
        raise MeshDSLError(f"{number} devices are wanted, and there are {len(found)} ({found[0].platform})")
    return found[:number]
