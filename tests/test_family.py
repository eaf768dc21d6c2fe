"""What a family reports."""

import jax.numpy as jnp
import pytest

import meshdsl as md


@pytest.mark.parametrize(
    "total, count, value", [(6.0, 4, 1.5), (3.0, 0.5, 6.0), (0.0, 0, 0.0), (0.0, 0.0, 0.0)]
)
def test_an_average_divides_by_its_count_also_by_a_fraction(total, count, value):
    found = md.Average(md.tensor(jnp.asarray(total), ()), md.tensor(jnp.asarray(count), ()))
    assert found.value.item() == value
