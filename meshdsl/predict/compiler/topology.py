"""Devices of machines that are not at hand: enough for a mesh and for the compiler, not to run on.

libtpu asks the machine that it is loaded on which TPUs it has, and complains where there are none;
the environment variables below answer for the machine. They are read when libtpu is loaded, which
is later than the import of JAX: at the first use of any backend, or here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec

import jax
from jax.experimental import topologies

from meshdsl.errors import MeshDSLError
from meshdsl.machine import Target

# Any host will do: what is compiled for is named by the topology. Processes that hold no TPU may
# load libtpu at the same time.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_Devices = list[jax.Device]  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX's types
# For each kind of chip the extra of meshdsl that brings its compiler, and the compiler's modules.
_EXTRAS = {
    "tpu": ("tpu", ("libtpu",)),
    "gpu": ("cuda13", ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")),
}


def without_tpu() -> None:
    """Keep libtpu from reporting on stderr that it found no TPU, where there is none.

    For programs that run something; call it before JAX makes its backends. Where there is a TPU it
    does nothing.
    """
    # JAX sets this variable as it is imported, exactly where no TPU is attached.
    if os.environ.get("TPU_SKIP_MDS_QUERY"):
        _answer_for_host()


def compile_only() -> None:
    """Keep the accelerators of this machine out of a process that only compiles.

    None is looked for, and none is held. Call it before JAX makes its backends.
    """
    _answer_for_host()
    jax.config.update("jax_platforms", "cpu")


def _answer_for_host() -> None:
    """Set the variables that libtpu reads, where they are not set."""
    for name, value in _NO_TPU_HERE.items():
        os.environ.setdefault(name, value)


def target_devices(target: Target) -> _Devices:
    """The devices of `target`, in the order in which JAX lists them.

    Those of a `cpu` target are real, so what is compiled for them runs. They are made here, unless
    JAX has made its devices already.

    Raises:
      MeshDSLError: the compiler for the target is not installed, or it does not know the topology.
    """
    without_tpu()
    if target.chip.kind == "cpu":
        return _virtual(target.devices)
    try:
        found = topologies.get_topology_desc(**target.topology).devices
    except (RuntimeError, NotImplementedError) as error:  # JAX's own errors are RuntimeErrors
        raise _explained(error, target) from None
    if len(found) != target.devices:
        raise MeshDSLError(
            f"target {target}: the compiler counts {len(found)} devices, "
            f"and the hardware table {target.devices}"
        )
    return list(found)


def ask_for_virtual(number: int) -> None:
    """Ask JAX for `number` virtual CPU devices.

    Where JAX has made its devices already this does nothing; the caller sees how many there are.
    """
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)


def _virtual(number: int) -> _Devices:
    """So many CPU devices.

    Raises:
      MeshDSLError: JAX has made fewer already.
    """
    ask_for_virtual(number)
    found = jax.devices("cpu")
    if len(found) < number:
        raise MeshDSLError(
            f"target cpu:{number}: there are {len(found)} CPU devices, "
            "and no more can be made once JAX has begun to compute"
        )
    return found[:number]


def _explained(error: Exception, target: Target) -> MeshDSLError:
    """Why JAX has no devices for `target`: its compiler is missing, or refuses the topology."""
    extra, modules = _EXTRAS[target.chip.kind]
    if not any(_installed(module) for module in modules):
        return MeshDSLError(
            f"target {target}: the compiler for {target.chip.name} is not installed; "
            f'pip install "meshdsl[{extra}]"'
        )
    if isinstance(error, NotImplementedError):
        return MeshDSLError(
            f"target {target}: JAX could not load its CUDA plugin; "
            "on a machine without a GPU set JAX_PLATFORMS=cpu"
        )
    reason = " ".join(str(error).split())
    return MeshDSLError(f"target {target}: the compiler refuses it: {reason}")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False
