"""What the tests of training share."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A file of 9,000 letters."""
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_bytes(bytes(np.random.default_rng(0).integers(97, 123, 9000, np.uint8)))
    return str(path)
