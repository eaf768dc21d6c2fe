"""What workers send, as the kernel counts it at a link: what the record says, and when it does."""

import pytest

from benchmarks.limited_network import missing
from benchmarks.slow_network import in_namespaces


@pytest.mark.slow
def test_the_kernel_counts_what_the_record_says():
    if why := missing():
        pytest.skip(why)
    for found in in_namespaces("2x100", ["workers"]):
        # Most steps send nothing; processes send signs of life now and then.
        assert found["between"] < 500, found
        assert found["sent"] - found["between"] == pytest.approx(found["recorded"], rel=0.1), found
