"""Hundreds of programs are compiled here to run once each: quickly, but for the nightly profile, which compiles them as users do."""

import os

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compiles():
    jax.config.update("jax_disable_most_optimizations", os.environ.get("HYPOTHESIS_PROFILE") != "nightly")
    yield
    jax.config.update("jax_disable_most_optimizations", False)
