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
from meshdsl.machine import Chip, chip_of

# TPU compilers take both spellings of a truth value, GPU compilers only the second.
_SPELLED = {"true": "True", "false": "False"}


def default_options(mesh: Any, chip: Chip | None = None) -> dict[str, str]:
    """The options for the chips of `mesh`, by name.

    They are those of the chip in `machine/hardware.toml`. There are none for a mesh without
    devices, for CPUs, and for chips on which the compiler's own choice is the best known.

    Args:
      chip: of the mesh, where it is not the one that `hardware.toml` has for the devices.
    """
    if not isinstance(mesh, Mesh):
        return {}
    chip = chip or chip_of(mesh.devices.flat[0])
    if chip is None:
        return {}
    options = dict(chip.options)
    slices = len({getattr(device, "slice_index", None) for device in mesh.devices.flat})
    longest = max(mesh.devices.shape, default=1)
    if longest * slices < mesh.size:
        options |= chip.options_of_parts
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
