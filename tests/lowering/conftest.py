"""Hundreds of programs are compiled here to run once each."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def compiled_to_run_once(quick_compiles):
    """A module that is to be compiled as users compile has a fixture `quick_compiles` of its own."""
