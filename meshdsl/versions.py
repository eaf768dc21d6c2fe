"""The versions of what computes: in `meshdsl --version`, and in the folder of each run."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

# What may change the bits of a result or the form of a checkpoint.
_PACKAGES = (
    *("meshdsl", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"),
    *("flax", "optax", "orbax-checkpoint", "tensorstore", "numpy"),
)


def versions() -> dict[str, str]:
    """The version of Python, and of each package that is installed, by its name."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What differs, such as `jax 0.10.2 -> 0.12.0`."""
    names = [*now, *(name for name in before if name not in now)]
    return [
        f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}"
        for name in names
        if before.get(name) != now.get(name)
    ]
