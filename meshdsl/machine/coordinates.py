"""Where the positions of a mesh lie on a machine that is not at hand: the devices are stood in for by their coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshdsl.machine.target import Target
from meshdsl.mesh import arrange


@dataclass(frozen=True)
class _Device:
    """What JAX asks a device for when it arranges a mesh."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int
    slice_index: int
    device_kind: str
    platform: str = "tpu"


def places(target: Target, sizes: Mapping[str, int]) -> np.ndarray:
    """For each position of a mesh the place of its device.

    Args:
      sizes: of the mesh, of as many devices as `target`.

    Returns:
      An array [*sizes, k]: the last dim is (slice, x, y, z, core) for TPUs and (node, GPU) for GPUs; CPUs count as one node.
    """
    shape = tuple(sizes.values())
    if target.chip.kind != "tpu":
        return np.stack(
            np.divmod(np.arange(target.devices).reshape(shape), target.shape[0]), axis=-1
        )
    x, y, z = (*target.shape, 1, 1)[:3]
    # JAX counts devices along x first, the cores of a chip before that.
    order = np.indices((target.slices, z, y, x, target.chip.devices_per_chip)).reshape(5, -1)
    at = order[[0, 3, 2, 1, 4]].T
    devices = [
        _Device(i, (x, y, z), core, s, target.chip.device_kind)
        for i, (s, x, y, z, core) in enumerate(at.tolist())
    ]
    mesh = arrange(sizes, devices) if sizes else np.array(devices)
    return at[[d.id for d in mesh.flat]].reshape(*shape, 5)
