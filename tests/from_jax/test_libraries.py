"""Models of equinox and haiku, and packages from PyPI, under layouts that split them."""

import pytest

import meshdsl as md
from tests.from_jax.libraries import LIBRARIES
from tests.from_jax.test_from_jax import assert_same
from tests.from_jax.test_zoo import LAYOUTS

CASES = [(model, layout) for model in LIBRARIES for layout in ("fsdp and sequence", "experts")]


@pytest.mark.slow
@pytest.mark.parametrize("model, layout", CASES)
def test_a_model_of_a_library_equals_itself_under_a_layout(model, layout):
    fn, names, args = LIBRARIES[model]()
    sizes = {"heads": 4} if model in ("equinox", "haiku") else None
    assert_same(fn, md.from_jax(fn, names, sizes=sizes), args, LAYOUTS[layout])
