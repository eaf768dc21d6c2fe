"""What docs/language.md says, run: of `lower(dims=)`, of indices, and a whole program."""

import re
from pathlib import Path

import numpy as np
import pytest

import meshdsl as md
from tests.helpers import data, dims

TEXT = (Path(__file__).parents[1] / "docs/language.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_dims_of_lower_are_those_that_rules_may_be_for_without_anything_having_them():
    example = next(e for e in EXAMPLES if "dims=" in e)
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


def test_indices_give_the_dims_that_are_said():
    (example,) = (e for e in EXAMPLES if e.startswith('x["length", 0:4]'))
    batch, length, d_model = dims(batch=2, length=8, d_model=3)
    names = {"md": md, "x": data(batch, length, d_model), "ids": md.tensor([7, 0], batch)}
    for line in example.splitlines():
        index, _, said = line.partition("  # ")
        found = eval(index, names)
        if said.startswith("["):
            assert [d.name for d in found.dims] == re.findall(
                r"([a-z]\w*)", said.partition("]")[0]
            ), line
        else:
            expected = eval(said.partition(", for")[0], names)
            np.testing.assert_array_equal(found.array, expected.array)


def test_a_whole_program_of_functions_and_dicts_runs_and_learns(capsys):
    (example,) = (e for e in EXAMPLES if e.startswith("import jax"))
    names: dict = {}
    exec(example, names)
    said = re.fullmatch(r"loss (\d\.\d{3})\n", capsys.readouterr().out)
    assert said and float(said[1]) < 2 < np.log(names["vocab"].size)
