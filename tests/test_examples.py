"""The examples run, and say the same under every layout."""

import re
import runpy

import pytest


@pytest.fixture(scope="module")
def mlp():
    """The `main` of the example, which is run as a module only once.

    Each run makes a class, and JAX may take two of one name and shape for the same in a cache.
    """
    return runpy.run_path("examples/mlp.py")["main"]


@pytest.mark.parametrize(
    "rules", [[], ["batch -> devices"], ["d_ff -> devices"], ["classes -> devices"]]
)
def test_mlp_learns_the_same_under_every_layout(mlp, rules, capsys):
    mlp(rules)
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert losses == pytest.approx([0.1619, 0.0059, 0.0013], abs=1e-4)
