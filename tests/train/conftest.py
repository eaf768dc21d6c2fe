"""What the tests of training share."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compiler():
    """Compile fast rather than well: runs of a few tiny steps are nearly all compile time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
