"""Whether the tests run at length, with HYPOTHESIS_PROFILE=nightly, and a mark of those that do."""

import os

import pytest

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
nightly = pytest.mark.skipif(
    not NIGHTLY, reason="takes minutes; HYPOTHESIS_PROFILE=nightly runs it"
)
