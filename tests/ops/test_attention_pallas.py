"""Attention by the Pallas kernel for GPUs, interpreted on CPU, equals that by blocks."""

import jax
import pytest

import meshdsl as md
from tests.helpers import assert_equal, assert_same, layout, only, with_gradients
from tests.ops.attention_operands import RING, beside, blocks_and, operands

# For each case what it asks for, and the sizes.
CASES = {
    "plain": ({}, {}),
    "causal segments": ({"causal": True, "segments": True}, {"rows": 300, "columns": 300}),
    "window": ({"window": 77}, {"rows": 256, "columns": 300, "features": 80}),
    "causal window": ({"causal": True, "window": 100}, {"rows": 300, "columns": 300}),
    "soft cap": ({"causal": True, "softcap": 1.5, "segments": True}, {}),
    "other features": ({"causal": True}, {"features": 128, "of_values": 40}),
    "wide heads": ({"causal": True}, {"features": 256}),
}


@pytest.mark.parametrize("name", only(["causal segments", "window"], CASES))
def test_pallas_equals_blocks(name):
    numbers, sizes = CASES[name]
    args = operands(**{"rows": 150, "columns": 150, "features": 64} | sizes)
    expected, found = blocks_and("pallas", numbers, *args)
    assert_equal(found, expected, tolerance=1e-5)
