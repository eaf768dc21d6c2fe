"""The mesh of a layout on a target, and the devices of this machine as a target."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.machine import Target, find_target, fit_mesh
from meshdsl.machine.chips import chip_of
from meshdsl.mesh import check_slices

_Devices = Sequence[jax.Device]  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX's types


def mesh_on(target: Target, layout: Layout) -> dict[str, int]:
    """The sizes of the layout's mesh on all devices of `target`.

    Raises:
      MeshDSLError: the mesh does not fit the target, or its axes across slices not the slices.
    """
    sizes = fit_mesh(target, layout.mesh, layout.name)
    if target.chip.kind == "tpu":
        check_slices(layout, sizes, target.slices, "slices")
    else:
        check_slices(layout, sizes, (*target.shape, 1)[1], "nodes")
    return sizes


def target_at_hand(devices: _Devices) -> Target:
    """The target that these devices of this machine are.

    Raises:
      MeshDSLError: they are of a kind that the hardware table does not have, or no whole machine.
    """
    first, count = devices[0], len(devices)
    if first.platform == "cpu":
        return find_target(f"cpu:{count}")
    chip = chip_of(first)
    if chip is None:
        raise MeshDSLError(
            f"compile: {first.device_kind} is no chip of the hardware table; name a target"
        )
    if chip.kind == "gpu":
        nodes = len({d.process_index for d in devices})
        whole = f"{chip.node}x{nodes}" if nodes > 1 else str(count)
        return find_target(f"{chip.name}:{whole}")
    along = zip(*(d.coords for d in devices), strict=True)
    shape = [max(at) - min(at) + 1 for at in along][: chip.dims]
    return find_target(f"{chip.name}:{'x'.join(map(str, shape))}")
