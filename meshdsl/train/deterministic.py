"""`deterministic`: a run that gives the same bits each time, or is refused.

On CPUs and TPUs a compiled program gives the same bits each time. On GPUs the compiler chooses
kernels by timing them, and some add numbers in any order, unless it is told otherwise
(`xla_gpu_deterministic_ops`, see openxla.org/xla/determinism).
"""

from __future__ import annotations

import os

from jax.sharding import Mesh

from meshdsl.errors import MeshDSLError

FLAG = "--xla_gpu_deterministic_ops=true"
_VARIABLE = "XLA_FLAGS"


def ask_for_determinism() -> None:
    """Tell the compiler; before JAX makes its devices."""
    flags = os.environ.get(_VARIABLE, "")
    if FLAG not in flags.split():
        os.environ[_VARIABLE] = f"{flags} {FLAG}".strip()


def check_deterministic(mesh: Mesh, executable: bool) -> None:
    """Raise a MeshDSLError where a run on these devices may give other bits each time.

    Args:
      executable: whether the step was compiled elsewhere.
    """
    if mesh.devices.flat[0].platform != "gpu":
        return
    if FLAG not in os.environ.get(_VARIABLE, "").split():
        raise MeshDSLError(
            f"deterministic: GPUs need {_VARIABLE}={FLAG} in the environment before Python starts"
        )
    if executable:
        raise MeshDSLError(
            "deterministic: --executable was compiled with other options; leave one of both out"
        )
