"""Which of several kernels an op runs, and what GPU this machine has, on which that may depend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import jax

from meshdsl.errors import MeshDSLError


class Choice(Protocol):
    """A kernel that an op can choose."""

    @property
    def lacks(self) -> Callable[..., str]:
        """Says what the kernel cannot do for a call, as the end of a message; empty for nothing."""
        ...

    @property
    def platform(self) -> str:
        """The platform that the kernel is for; empty for a kernel that runs on all."""
        ...


def chosen_kernel(
    name: str, kernels: Mapping[str, Choice], wanted: str | None, platform: str, *arguments
) -> tuple[str, dict[str, str]]:
    """The name of the kernel to use: the `wanted` one, or else the first of the platform's.

    With it comes, for each kernel of the platform that would go before, what it cannot do.

    Args:
      name: what errors call the op.
      kernels: by their names; "blocks", which serves every call, is one of them.
      arguments: what `lacks` is called with.

    Raises:
      MeshDSLError: the wanted kernel cannot serve the call.
    """
    if wanted is not None:
        if lacks := kernels[wanted].lacks(*arguments):
            raise MeshDSLError(
                f"{name}: {wanted} cannot serve this call: {lacks}; leave `implementation` "
                'out, or ask for "blocks"'
            )
        return wanted, {}
    found: dict[str, str] = {}
    for kernel, one in kernels.items():
        if one.platform == platform:
            if not (lacks := one.lacks(*arguments)):
                return kernel, found
            found[kernel] = lacks
    return "blocks", found


def of_amd() -> bool:
    """Whether this machine has a GPU of AMD's."""
    has_gpu = jax.default_backend() == "gpu"
    return has_gpu and "rocm" in jax.devices()[0].client.platform_version


def compute_capability() -> float | None:
    """NVIDIA's number for the features of this machine's GPU, such as 9.0 for Hopper.

    None without a GPU of NVIDIA.
    """
    if jax.default_backend() != "gpu" or of_amd():
        return None
    return float(jax.devices()[0].compute_capability)
