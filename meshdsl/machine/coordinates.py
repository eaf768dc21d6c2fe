"""Which device of a target stands at each position of a mesh, without having the devices.

JAX itself arranges the mesh, on stand-ins that have the coordinates of the real devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshdsl.machine.target import Target
from meshdsl.mesh import arrange


@dataclass(frozen=True)
class _Device:
    """The attributes of a device that JAX reads when it arranges a mesh."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int
    slice_index: int
    device_kind: str
    platform: str = "tpu"


def device_coordinates(target: Target, sizes: Mapping[str, int]) -> np.ndarray:
    """The coordinates of the device at each position of a mesh.

    Args:
      sizes: of the mesh axes; the mesh has as many devices as `target`.

    Returns:
      An array [*sizes, k]. Its last dim is (slice, x, y, z, core) for TPUs, and (node, GPU) for
      GPUs; CPUs count as one node.
    """
    shape = tuple(sizes.values())
    if target.chip.kind != "tpu":
        return np.stack(
            np.divmod(np.arange(target.devices).reshape(shape), target.shape[0]), axis=-1
        )
    x, y, z = (*target.shape, 1, 1)[:3]
    # JAX numbers the cores of a chip first, then the chips along x, then along y and z.
    indices = np.indices((target.slices, z, y, x, target.chip.devices_per_chip)).reshape(5, -1)
    at = indices[[0, 3, 2, 1, 4]].T
    devices = [
        _Device(i, (x, y, z), core, s, target.chip.device_kind)
        for i, (s, x, y, z, core) in enumerate(at.tolist())
    ]
    mesh = arrange(sizes, devices) if sizes else np.array(devices)
    return at[[d.id for d in mesh.flat]].reshape(*shape, 5)
