"""The compiler's options per chip that let collectives run while the device computes.

The same options are used to compile for a machine that is not at hand and to train on one, so what was planned is what runs.
docs/compile.md says how each set was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from jax.sharding import Mesh

from meshdsl.errors import MeshDSLError

# Where a chip has sparse cores beside its matrix units, they can carry collectives; by default the others wait for these.
_OFFLOAD = {
    f"xla_tpu_enable_sparse_core_collective_offload_{collective}": "True"
    for collective in ("all_gather", "reduce_scatter", "all_reduce")
}
_BY_CHIP: dict[str, dict[str, str]] = {
    "TPU v5": _OFFLOAD,
    "TPU v6 lite": _OFFLOAD,
}
_WORDS = {
    "true": "True",
    "false": "False",
}  # TPU compilers take both spellings, GPU compilers only the second


def default_options(mesh: Any) -> dict[str, str]:
    """The options for the chips of `mesh`; none for a mesh without devices, for CPUs, and where the compiler's own choice is the best known."""
    return (
        dict(_BY_CHIP.get(mesh.devices.flat[0].device_kind, {})) if isinstance(mesh, Mesh) else {}
    )


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """Options that were given as `KEY=VALUE`.

    Raises:
      MeshDSLError: one is not of that form.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+", key):
            raise MeshDSLError(
                f"option `{text}`: expected KEY=VALUE, for example xla_tpu_scoped_vmem_limit_kib=32768"
            )
        found[key] = _WORDS.get(value, value)
    return found
