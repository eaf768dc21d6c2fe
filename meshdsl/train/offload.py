"""Memory of the host: what waits there while the devices do not use it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from meshdsl.errors import MeshDSLError
from meshdsl.tensor import is_tensor

DEVICE, HOST = "device", "pinned_host"


def check_host_memory(mesh: Mesh, offload: Iterable[str]) -> None:
    """Raise a MeshDSLError where something is to be offloaded and the devices of `mesh` cannot reach memory of the host."""
    offload = tuple(offload)
    if not offload or isinstance(mesh, AbstractMesh):
        return
    device = mesh.local_devices[0] if mesh.local_devices else mesh.devices.flat[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if HOST not in kinds:
        raise MeshDSLError(
            f"offload={', '.join(offload)}: needs {HOST} memory, and a device of kind {device.device_kind} has {', '.join(kinds)}"
        )


def in_memory(shardings: Any, kind: str) -> Any:
    """A tree of shardings with those of Tensors in memory of a kind; counters stay with the device, which reads them."""
    move = lambda t: jax.tree.map(lambda s: s.with_memory_kind(kind), t) if is_tensor(t) else t
    return jax.tree.map(move, shardings, is_leaf=is_tensor)
