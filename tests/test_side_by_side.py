"""The two programs of docs/side-by-side.md compute the same."""

import re
from pathlib import Path

import numpy as np
import pytest

TEXT = (Path(__file__).parents[1] / "docs/side-by-side.md").read_text(encoding="utf-8")
PLAIN, OURS, CALLS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
data, in_plain_jax, made, in_meshdsl = (line for line in CALLS.splitlines() if line)


@pytest.fixture(scope="module")
def both() -> dict[str, dict]:
    """What each of the two programs computes."""
    found = {"plain": {}, "ours": {}}
    programs = (PLAIN, [in_plain_jax]), (OURS, [made, in_meshdsl])
    for (program, call), names in zip(programs, found.values(), strict=True):
        for text in (program, data, *call):
            exec(text, names)
    return found


def test_both_programs_give_the_same_loss_and_gradients_split_alike(both):
    plain, ours = both["plain"], both["ours"]
    np.testing.assert_allclose(ours["value"].array, plain["value"], rtol=1e-5)
    assert float(plain["value"]) > 1
    for name, expected in plain["gradients"].items():
        found = ours["gradients"][name].array
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
        assert found.sharding.is_equivalent_to(expected.sharding, found.ndim), name
        for model in (plain["model"][name], ours["model"][name].array):
            assert model.sharding.is_equivalent_to(expected.sharding, found.ndim), name


def test_sequence_parallelism_is_one_more_rule(both):
    names: dict = {}
    rule = 'rules = ["batch -> data", "heads, d_ff -> model"'
    assert rule in OURS
    for text in (OURS.replace(rule, rule + ', "length -> model"'), data, made, in_meshdsl):
        exec(text, names)
    assert {d.name: a for d, a in names["layout"].split(names["dims"]).items()} == {
        "batch": ("data",),
        "length": ("model",),
    }
    np.testing.assert_allclose(names["value"].array, both["ours"]["value"].array, rtol=1e-5)
