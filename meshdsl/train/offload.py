"""Offloading: arrays wait in the memory of the host while the devices do not use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from meshdsl.errors import MeshDSLError
from meshdsl.tensor import is_tensor

DEVICE, HOST = "device", "pinned_host"


def check_host_memory(mesh: Mesh, offload: Iterable[str]) -> None:
    """Raise a MeshDSLError if the devices of `mesh` cannot reach the memory of the host.

    Args:
      offload: what is to be offloaded; where that is nothing, there is no error. There is none
        either for a mesh without devices, of which nothing is known.
    """
    offload = tuple(offload)
    if not offload or isinstance(mesh, AbstractMesh):
        return
    device = mesh.local_devices[0] if mesh.local_devices else mesh.devices.flat[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if HOST not in kinds:
        raise MeshDSLError(
            f"offload={', '.join(offload)}: needs {HOST} memory, "
            f"and a device of kind {device.device_kind} has {', '.join(kinds)}"
        )


def in_memory(shardings: Any, kind: str) -> Any:
    """A tree of shardings, with those of Tensors in memory of the given kind: DEVICE or HOST.

    What is no Tensor, such as the counters of an optimizer, stays with the device, which reads it.
    """

    def with_kind(node):
        if not is_tensor(node):
            return node
        return jax.tree.map(lambda sharding: sharding.with_memory_kind(kind), node)

    return jax.tree.map(with_kind, shardings, is_leaf=is_tensor)
