"""What a test of a model needs: the same under every layout, and the collectives that it runs.

    @pytest.mark.layouts("all")
    def test_my_model(layout):
        assert_same_under(loss, (model, batch), layout)

`assert_same_under` compares a function with itself on one device. `assert_collectives` compares the
collectives of a lowered function with lines of text, and `assert_golden` with a file. What is
wrong is an AssertionError, which every runner of tests reports. The mark, and virtual devices to
run on, are those of the plugin of pytest, `meshdsl_pytest.py`.
"""

from meshdsl.testing.collectives import assert_collectives, assert_golden
from meshdsl.testing.equal import assert_equal
from meshdsl.testing.same import assert_same_under

__all__ = ["assert_collectives", "assert_equal", "assert_golden", "assert_same_under"]
