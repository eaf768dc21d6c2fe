"""Every test runs on eight virtual CPU devices."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_num_cpu_devices", 8)

from hypothesis import settings

# The same few examples every time; `HYPOTHESIS_PROFILE=nightly` draws many, and others each time.
settings.register_profile("quick", derandomize=True, max_examples=25, deadline=None, database=None)
settings.register_profile("nightly", max_examples=500, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
