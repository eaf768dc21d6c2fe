"""Every test runs on eight virtual CPU devices, and compiles its programs fast rather than well."""

import gc
import itertools
import os
import sys
from importlib.metadata import version
from pathlib import Path

from tests.nightly import NIGHTLY

# Imports and traces make millions of objects and little garbage.
gc.set_threshold(100_000, 20, 20)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Python keeps what it compiled of each file, as it does unless told not to. Else every worker would
# compile all of the tests, and each of the many processes that tests start all of the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Most programs of the tests run once, here and in the processes that tests start, so the time of a
# test is that of the compiler. The nightly profile compiles as users do.
if not NIGHTLY:
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    # jax 0.10 has a second way to compile fused loops for a CPU, which takes a third of the time.
    if version("jaxlib").startswith("0.10."):
        flags = os.environ.get("XLA_FLAGS", "")
        fast = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ["XLA_FLAGS"] = f"{flags} {fast}".strip()

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# An error that comes out of a function of JAX keeps all its lines: to leave some out takes 4 ms.
jax.config.update("jax_traceback_filtering", "off")

from hypothesis import settings

from tests.train.common import jobs_made_once

# The same few examples every time; `HYPOTHESIS_PROFILE=nightly` draws many, and others each time.
settings.register_profile("quick", derandomize=True, max_examples=20, deadline=None, database=None)
settings.register_profile("nightly", max_examples=500, deadline=None, print_blob=True)
settings.load_profile("nightly" if NIGHTLY else "quick")


def _shared(make, times: int = 50):
    """`make()`, but what it gives is given `times` times."""
    calls, kept = itertools.count(), []

    def give():
        if next(calls) % times == 0:
            kept[:] = [make()]
        return kept[0]

    return give


# For each program that jax lowers it sets up MLIR anew: 5 ms, of 25 ms that a small one takes in
# all. Programs may share what is set up; not all of them, because it keeps their constants.
if not NIGHTLY and version("jax").startswith("0.10."):
    from jax._src.interpreters import mlir

    mlir.make_ir_context = _shared(mlir.make_ir_context)


@pytest.fixture(scope="session", autouse=True)
def cache_of_tests(tmp_path_factory):
    """Tokenized text goes to a folder of the tests, not to the user's cache.

    Programs that take long to compile are kept in another one, because several tests compile the
    same. Processes that tests start inherit both.
    """
    compiled = str(tmp_path_factory.mktemp("compiled"))
    mine = {
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "JAX_COMPILATION_CACHE_DIR": compiled,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    before = {name: os.environ.get(name) for name in mine}
    os.environ.update(mine)
    jax.config.update("jax_compilation_cache_dir", compiled)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


_MODULES = itertools.count(1)
_MEMORY = Path("/proc/self/statm")  # of Linux: pages of this process, those in memory second


def _much_memory() -> bool:
    """Whether this process has more than 1.5 GB, or may have where the system does not say."""
    if not _MEMORY.exists():
        return next(_MODULES) % 8 == 0
    return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 1.5e9


@pytest.fixture(autouse=True, scope="module")
def little_memory():
    """What JAX keeps of every program is dropped now and then; else it comes to gigabytes."""
    yield
    if _much_memory():
        jax.clear_caches()


@pytest.fixture(scope="module")
def compiled_for_users():
    """Programs are compiled as users do it, for tests that look at what the compiler made."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", not NIGHTLY)


@pytest.fixture(scope="module")
def compiled_once():
    """Runs of training compile the same step once in a module; see `jobs_made_once`."""
    with jobs_made_once():
        yield


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A file of 9,000 letters."""
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_bytes(bytes(np.random.default_rng(0).integers(97, 123, 9000, np.uint8)))
    return str(path)
