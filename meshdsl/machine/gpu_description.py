"""The description of a GPU that lets XLA compile for it on a machine that does not have one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.machine.chips import Chip

_TABLE = Path(__file__).with_name("gpus.toml")


def gpu_target_config(chip: Chip) -> str:
    """The text of XLA's `GpuTargetConfigProto` for `chip`.

    It is what `get_topology_desc(platform="cuda", target_config=...)` takes.

    Raises:
      MeshDSLError: the GPU is one of the user's own, of which XLA has no description.
    """
    table = tomllib.loads(_TABLE.read_text())
    if chip.name not in table:
        known = ", ".join(f"`{name}`" for name in table if name != "all")
        raise MeshDSLError(f"chip `{chip.name}`: only {known} can be compiled for")
    values = table["all"] | table[chip.name]
    values.pop("source")
    capability = re.fullmatch(r"(\d+)\.(\d+)(a?)", values.pop("compute_capability"))
    assert capability is not None, chip.name
    major, minor, accelerated = capability.groups()
    features = "ACCELERATED_FEATURES" if accelerated else "NONE"
    links = values.pop("active_links")
    fields = "\n".join(f"  {key}: {value}" for key, value in values.items())
    return f"""gpu_device_info {{
{fields}
  memory_bandwidth: {int(chip.hbm_bandwidth)}
  device_memory_size: {chip.hbm}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  device_interconnect_info {{ active_links: {links} }}
}}
platform_name: "CUDA"
device_description_str: "{chip.device_kind}"
"""
