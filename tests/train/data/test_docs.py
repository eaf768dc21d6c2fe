"""The example in docs/data.md is one."""

import re
from pathlib import Path

from meshdsl.train import settings
from meshdsl.train.config import Config

DOCS = Path(__file__).parents[3] / "docs" / "data.md"


def test_the_example_holds_settings_and_says_how_they_are_spelled(tmp_path):
    text = DOCS.read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    config = settings.read(tmp_path / "config.toml", Config())
    assert list(config.data.sources) == ["web", "code", "books"] and config.data.separate
    words = re.search(r"`meshdsl train (data[^`]*)`", text)[1].split()
    assert settings.override(Config(), words).data.sources["web"].weight == 3.0


def test_every_token_that_may_end_a_document_is_listed():
    from meshdsl.train.data.tokenizer import ENDS

    assert ", ".join(f"`{token}`" for token in ENDS) in DOCS.read_text(encoding="utf-8").replace(
        "\n", " "
    )
