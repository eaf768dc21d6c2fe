"""The examples in docs/data.md and docs/tasks.md are some."""

import re
from pathlib import Path

from meshdsl.train import settings
from meshdsl.train.config import Config
from meshdsl.train.data.examples import open_function
from meshdsl.train.data.images import FORMATS
from meshdsl.train.data.tasks import TASKS

DOCS = Path(__file__).parents[3] / "docs" / "data.md"
TASKS_PAGE = DOCS.with_name("tasks.md")


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


def test_the_page_of_tasks_names_every_task_field_and_format():
    text = TASKS_PAGE.read_text(encoding="utf-8")
    for name in (*TASKS, *FORMATS):
        assert f"`{name}`" in text
    for name in ("source", "target", "source_length", "target_length", "tokens", "targets"):
        assert f"`{name}`" in text


def test_the_settings_and_the_function_of_the_page_of_tasks_work(tmp_path):
    text = TASKS_PAGE.read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    source = settings.read(tmp_path / "config.toml", Config()).data.sources["questions"]
    assert (source.field, source.label) == ("question", "answer")
    (tmp_path / "my_data.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    train, held_out = open_function(f"{tmp_path / 'my_data.py'}:corners", "here")
    assert len(train) == len(held_out) == 512 and train[0]["vector"].shape == (16,)
