"""The programs that the benchmarks compare compute the same."""

import pytest

from benchmarks import against_handwritten, cases

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_every_implementation_gives_the_loss_and_gradients_of_one_device(layout):
    against_handwritten.check(layout)
