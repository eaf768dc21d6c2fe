"""The description of a GPU that lets XLA compile for it on a machine that does not have one."""

from __future__ import annotations

import re

from meshdsl.errors import MeshDSLError, quote
from meshdsl.machine.chips import Chip

# What XLA's compiler asks of every GPU, by the names of XLA's `GpuDeviceInfoProto`:
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
_ALL = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "threads_per_core_limit": 2048,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "shared_memory_per_block": 49152,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
}
_OWN = ("compute_capability", "active_links")  # keys that are written in a way of their own


def gpu_target_config(chip: Chip) -> str:
    """The text of XLA's `GpuTargetConfigProto` for `chip`.

    It is what `get_topology_desc(platform="cuda", target_config=...)` takes.

    Raises:
      MeshDSLError: the chip's table lacks the key `compiler`, or a part of it.
    """
    missing = [f"`{key}`" for key in _OWN if key not in chip.compiler]
    if missing:
        raise MeshDSLError(
            f"chip `{chip.name}`: cannot be compiled for; add `[{chip.name}.compiler]` with "
            f"{', '.join(missing)} and the fields of XLA's GpuDeviceInfoProto to its table, as "
            "meshdsl/machine/hardware.toml has it for `h100`"
        )
    capability = re.fullmatch(r"(\d+)\.(\d+)(a?)", str(chip.compiler["compute_capability"]))
    if capability is None:
        raise MeshDSLError(
            f'chip `{chip.name}`: `compiler.compute_capability` is a text such as "9.0a", not '
            f"{quote(chip.compiler['compute_capability'])}"
        )
    major, minor, accelerated = capability.groups()
    features = "ACCELERATED_FEATURES" if accelerated else "NONE"
    links = chip.compiler["active_links"]
    values = _ALL | {key: value for key, value in chip.compiler.items() if key not in _OWN}
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
