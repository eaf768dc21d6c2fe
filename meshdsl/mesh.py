"""Device meshes: named axes over the devices at hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout, check_mesh


def axis_sizes(sizes: Mapping[str, int | str], devices: int, name: str = "mesh") -> dict[str, int]:
    """The size of each axis, with `"rest"` filled in so that all `devices` are used.

    Raises:
      MeshDSLError: the axes and the number of devices do not fit each other.
    """
    fixed = math.prod(n for n in sizes.values() if n != "rest")
    if "rest" in sizes.values():
        if devices % fixed:
            shape = ", ".join(f"{a}={n}" for a, n in sizes.items())
            raise MeshDSLError(f"{name}: mesh {shape} does not fit {devices} devices: {fixed} does not divide {devices}")
        return {a: devices // fixed if n == "rest" else n for a, n in sizes.items()}
    if fixed != devices:
        shape = ", ".join(f"{a}={n}" for a, n in sizes.items()) or "of one device"
        raise MeshDSLError(
            f"{name}: mesh {shape} needs {fixed} device{'s' * (fixed > 1)} and {devices} are given; "
            f'use {fixed}, or set one axis to "rest"'
        )
    return dict(sizes)


def make_mesh(layout: Layout | Mapping[str, int | str], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with the axes of `layout` (or of a dict of axis sizes), major first.

    Args:
      devices: the devices to use, all of them. By default those of the process group: all when an axis is
        `"rest"`, otherwise the first ones that the axes need.

    Raises:
      MeshDSLError: the axes and the devices do not fit each other.
    """
    name, sizes = (layout.name, layout.mesh) if isinstance(layout, Layout) else ("mesh", layout)
    check_mesh(sizes, name)
    if devices is None:
        devices = jax.devices()
        need = math.prod(n for n in sizes.values() if n != "rest")
        if "rest" not in sizes.values() and need < len(devices):
            devices = devices[:need]
    sizes = axis_sizes(sizes, len(devices), name)
    if not sizes:
        return Mesh(np.array(devices[0]), ())
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices
    )
