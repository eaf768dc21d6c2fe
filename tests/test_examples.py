"""The examples run, and say the same under every layout."""

import re
import runpy

import pytest


@pytest.fixture(scope="module")
def mlp():
    """Run once: JAX may take two classes of one name and shape, as each run makes one,
    for the same in a cache.
    """
    return runpy.run_path("examples/mlp.py")["main"]


@pytest.mark.parametrize(
    "rules", [[], ["batch -> devices"], ["d_ff -> devices"], ["classes -> devices"]]
)
def test_mlp_learns_the_same_under_every_layout(mlp, rules, capsys):
    mlp(rules)
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert losses == pytest.approx([0.1619, 0.0059, 0.0013], abs=1e-4)
