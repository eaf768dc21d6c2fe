"""What the tests of data share."""

import pytest

from tests.train.data.common import save_tokenizer


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    """A byte-level BPE of 277 tokens."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    text = "the cat sat on the mat and the dog sat on the log " * 20
    return save_tokenizer(path, 277, "<|endoftext|>", text)
