"""The compiler's options per chip that let collectives run while the device computes.

The same options are used to compile for a machine that is not at hand and to train on one, so what
was compiled ahead is what runs. docs/compile.md says how each set was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from jax.sharding import Mesh

from meshdsl.errors import MeshDSLError

# Where a chip has sparse cores beside its matrix units, these can carry collectives; by default the
# matrix units wait for them.
_OFFLOAD = {
    f"xla_tpu_enable_sparse_core_collective_offload_{collective}": "True"
    for collective in ("all_gather", "reduce_scatter", "all_reduce")
}
# The same over several dims of a 3-D torus, all links of which are used then. The last option keeps
# a gather over a whole slice from becoming a sum of buffers that are filled with zeros.
_SEVERAL_DIMS = {
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather": "True",
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": "True",
    "xla_tpu_prefer_async_allgather_to_allreduce": "True",
}
# Scatters over two dims use all links of both with this option, but those over a whole slice go
# along one ring; as sums, which they are without it, they use all links.
_SCATTERS = "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter"
_BY_CHIP: dict[str, dict[str, str]] = {
    "TPU v5": _OFFLOAD | _SEVERAL_DIMS,
    "TPU v6 lite": _OFFLOAD,
}
# TPU compilers take both spellings of a truth value, GPU compilers only the second.
_SPELLED = {"true": "True", "false": "False"}


def default_options(mesh: Any) -> dict[str, str]:
    """The options for the chips of `mesh`, by name.

    There are none for a mesh without devices, for CPUs, and for chips on which the compiler's own
    choice is the best known. For v5p they depend on whether an axis of the mesh is a whole slice.
    """
    if not isinstance(mesh, Mesh):
        return {}
    options = dict(_BY_CHIP.get(mesh.devices.flat[0].device_kind, {}))
    slices = len({getattr(device, "slice_index", None) for device in mesh.devices.flat})
    longest = max(mesh.devices.shape, default=1)
    if _SEVERAL_DIMS.keys() <= options.keys() and longest * slices < mesh.size:
        options[_SCATTERS] = "True"
    return options


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """The options in `texts`, each `KEY=VALUE`, by name.

    Raises:
      MeshDSLError: one is not of that form.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+", key):
            raise MeshDSLError(
                f"option `{text}`: expected KEY=VALUE, "
                "for example xla_tpu_scoped_vmem_limit_kib=32768"
            )
        found[key] = _SPELLED.get(value, value)
    return found
