"""What docs/language.md says of `lower(dims=)`, run."""

import re
from pathlib import Path

import numpy as np
import pytest

import meshdsl as md
from tests.helpers import data, dims

TEXT = (Path(__file__).parents[1] / "docs/language.md").read_text(encoding="utf-8")


def test_the_dims_of_lower_are_those_that_rules_may_be_for_without_anything_having_them():
    example = next(e for e in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "dims=" in e)
    before, _, _ = example.partition("md.lower(")
    refused, runs = (line for line in example.splitlines() if line.startswith("md.lower("))
    batch, d_model, d_ff = dims(batch=4, d_model=8, d_ff=16)
    names = {"md": md, "d_model": d_model, "d_ff": d_ff, "x": data(batch, d_model)}
    names |= {"up": data(d_model, d_ff, seed=1), "down": data(d_ff, d_model, seed=2)}
    exec(before, names)
    said = refused.partition("# MeshDSLError: ")[2]
    with pytest.raises(md.MeshDSLError, match=re.escape(said)):
        eval(refused.partition("  #")[0], names)
    found = eval(runs.partition("  #")[0], names)
    expected = names["mlp"](names["x"], names["up"], names["down"])
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5)
