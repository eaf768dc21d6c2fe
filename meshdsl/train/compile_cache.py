"""Compiled programs that are kept in the folder of a run, so that a restart need not compile them.

JAX has such a cache; here it is given a folder. What lies in it is machine code, so it is read only
where nobody but the user can have written it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

_LEAST = 0.3  # seconds that a program took to compile, for it to be kept


@contextmanager
def compile_cache(folder: Path, print_line: Callable[[str], None]) -> Iterator[None]:
    """A context in which programs that take a while to compile are kept in `folder`, and found.

    Where the user has given JAX a cache, by `JAX_COMPILATION_CACHE_DIR` say, that one is used, and
    `folder` is left alone. A cache that cannot be used is said in a line, and costs nothing but the
    time to compile.

    Args:
      folder: made where it is missing. Programs for CPUs lie in a folder of their own for each
        kind of CPU, because JAX would give one to another kind, where it may crash.
      print_line: prints a line, in one process.
    """
    # JAX adds its options to `jax.config` when it is imported, which a type checker cannot see.
    given = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if given is not None:
        yield
        return
    if jax.default_backend() == "cpu":
        folder = folder / f"cpu-{_kind_of_cpu()}"
    if reason := _unusable(folder):
        print_line(f"compiled programs are not kept: {folder}: {reason}")
        yield
        return
    option = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, option)
    jax.config.update(option, _LEAST)
    compilation_cache.set_cache_dir(str(folder))
    compilation_cache.reset_cache()  # JAX looks only once whether there is one
    try:
        yield
    finally:
        jax.config.update(option, before)
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


def _unusable(folder: Path) -> str:
    """Makes the folder, and says why it cannot be used; or empty."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return error.strerror or str(error)
    if found.st_uid != os.geteuid():
        return "it belongs to another user, and what is in it would be run"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write into it, and what is in it would be run"
    return ""


def _kind_of_cpu() -> str:
    """A short text that differs between CPUs that understand different instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    says = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {says}".encode()).hexdigest()[:8]
