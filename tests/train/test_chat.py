"""What a published model's folder says of its texts."""

import json
import re

import pytest

import meshdsl as md
from meshdsl.train.chat import published_texts

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {%- generation %}[{{ message.role }}]{{ message['content'] | trim }}{% endgeneration %}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    words = ["<s>", "</s>", "[user]", "[assistant]", "why", "sea"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="sea")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(words[:4])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    said = {"bos_token": {"content": "<s>"}, "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    return tmp_path


def test_a_text_begins_and_a_question_is_asked_as_the_folder_says(folder):
    texts = published_texts(str(folder / "tokenizer.json"))
    assert texts is not None
    assert texts.tokens("why") == [0, 4]
    assert texts.chat(" why sea\n") == [0, 2, 4, 5, 3]
    assert texts.ends == (1,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 3]}))
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "why"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    texts = published_texts(str(folder))
    assert texts is not None
    assert (texts.ends, texts.chat("sea")) == ((1, 3), [4])
    (folder / "chat_template.jinja").write_text("sea")
    assert texts.chat("why") == [5]


def test_what_is_wrong_with_the_files_is_said(folder):
    texts = published_texts(str(folder))
    assert texts is not None
    refusing = folder / "chat_template.jinja"
    refusing.write_text("{{ raise_exception('no questions') }}")
    with pytest.raises(md.MeshDSLError, match="the chat template fails: no questions"):
        texts.chat("why")
    refusing.write_text("{% if %}")
    with pytest.raises(md.MeshDSLError, match="the chat template fails"):
        texts.chat("why")
    refusing.unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(md.MeshDSLError, match=re.escape("has no chat template")):
        texts.chat("why")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "end"}))
    with pytest.raises(
        md.MeshDSLError,
        match='eos_token_id="end": expected a whole number of at least -1, or a list',
    ):
        published_texts(str(folder))
    (folder / "generation_config.json").write_text("[1]")
    with pytest.raises(md.MeshDSLError, match="is no JSON object"):
        published_texts(str(folder))


WRONG = (None, "x", True, -3, 1.5, [], [None], [["a"]], {}, {"a": {"b": []}}, [{"name": []}])


@pytest.mark.parametrize("file", ["tokenizer_config.json", "generation_config.json", "config.json"])
def test_a_malformed_file_is_one_line_that_names_the_setting(folder, file):
    keys = ("bos_token", "eos_token", "pad_token", "chat_template", "eos_token_id", "text_config")
    refused = set()
    for key in keys:
        for value in WRONG:
            (folder / file).write_text(json.dumps({key: value}))
            try:
                texts = published_texts(str(folder))
                assert texts is not None and isinstance(texts.ends, tuple)
                texts.chat("why")
            except md.MeshDSLError as error:
                refused.add((key, str(error)))
    assert not [error for _, error in refused if "\n" in error]
    named = [error for key, error in refused if f"{folder / file}: {key}=" in error]
    assert len(named) > 8


def test_other_tokenizers_say_nothing(tmp_path):
    assert published_texts("bytes") is None
    assert published_texts(str(tmp_path / "tokenizer.json")) is None
