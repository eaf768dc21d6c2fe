"""Every test runs on eight virtual CPU devices."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)

from hypothesis import settings

# The same few examples every time; `HYPOTHESIS_PROFILE=nightly` draws many, and others each time.
settings.register_profile("quick", derandomize=True, max_examples=25, deadline=None, database=None)
settings.register_profile("nightly", max_examples=500, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session", autouse=True)
def cache_of_tests(tmp_path_factory):
    """Tokenized text goes to a folder of the tests, not to the user's cache; processes that tests start inherit it."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module")
def quick_compiles():
    """Compile fast rather than well, for programs that run once; the nightly profile compiles them as users do."""
    jax.config.update(
        "jax_disable_most_optimizations", os.environ.get("HYPOTHESIS_PROFILE") != "nightly"
    )
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# Hundreds of programs are compiled in these folders to run once each.
_RUN_ONCE = ("tests.lowering.", "tests.models.", "tests.ops.", "tests.splits.")


@pytest.fixture(autouse=True, scope="module")
def compiled_to_run_once(request):
    """A module that is to be compiled as users compile has a fixture `quick_compiles` of its own."""
    if request.module.__name__.startswith(_RUN_ONCE):
        request.getfixturevalue("quick_compiles")


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A file of 9,000 letters."""
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_bytes(bytes(np.random.default_rng(0).integers(97, 123, 9000, np.uint8)))
    return str(path)
