"""Conversations: what is trained on is what the assistant says, as the template writes it."""

import json

import numpy as np
import pytest
import tokenizers

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.conversations import Conversations
from meshdsl.train.data.files import find_files
from meshdsl.train.data.sequences import CHAT, END, NO_TOKEN, SAID
from meshdsl.train.data.tasks import open_data
from meshdsl.train.data.tokenizer import load_tokenizer
from tests.train.data.common import CHATML, ROWS, TALK, folder_with, reads, refused, write_table

pytest.importorskip("jinja2")

# Thoughts are written in the last turn only, as Qwen3's template does.
THOUGHTFUL = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>{% endif %}{{ m.content }}",
)


@pytest.fixture
def folder(tmp_path):
    return folder_with(tmp_path / "tokenizer")


def written(folder, path, field="messages"):
    """The documents of each conversation in a file."""
    [file] = find_files([str(path)], "chat")
    return [docs for _, docs in Conversations(load_tokenizer(folder)).documents(file, field)]


def said_and_all(folder, document):
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    decode = lambda ids: tokenizer.decode((ids & (END - 1)).tolist(), skip_special_tokens=False)
    return decode(document[document & SAID != 0]), decode(document)


def test_what_the_assistant_says_is_trained_on(folder, tmp_path):
    [[document]] = written(folder, write_table(tmp_path / "a.jsonl", messages=[TALK]))
    said, text = said_and_all(folder, document)
    assert said == "yes 1<|im_end|>\nyes 2<|im_end|>\n"
    assert text.startswith("<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\none?")
    assert (document & CHAT).all() and [bool(raw & END) for raw in document[-2:]] == [False, True]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_has_the_conversations_of_lines(folder, tmp_path, ending):
    talks = [TALK, [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "no"}]]
    expected = written(folder, write_table(tmp_path / "a.jsonl", messages=talks))
    other = [[{**each, "name": None} for each in talk] for talk in talks]
    path = write_table(tmp_path / f"a.{ending}", messages=other, number=[1, 2])
    for ours, theirs in zip(written(folder, path), expected, strict=True):
        assert [each.tolist() for each in ours] == [each.tolist() for each in theirs]
    with pytest.raises(MeshDSLError, match="no column `talks`"):
        written(folder, path, "talks")


def test_turns_that_are_written_otherwise_later_are_documents_of_their_own(tmp_path):
    folder = folder_with(tmp_path / "a", THOUGHTFUL)
    [documents] = written(folder, write_table(tmp_path / "a.jsonl", messages=[TALK]))
    found = [said_and_all(folder, document) for document in documents]
    assert [said for said, _ in found] == [
        "<think>\n\n</think>yes 1<|im_end|>\n",
        "<think>\n\n</think>yes 2<|im_end|>\n",
    ]
    assert "yes 1<|im_end|>" in found[1][1] and "<think>\n\n</think>yes 1" not in found[1][1]


def test_other_names_of_roles_are_known(folder, tmp_path):
    talk = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    [[document]] = written(folder, write_table(tmp_path / "a.jsonl", messages=[talk]))
    assert said_and_all(folder, document)[0] == "ho<|im_end|>\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"message": TALK}, "no field `messages`; did you mean `message`?"),
        ([], "expected an object with a field `messages`"),
        ({"messages": "hi"}, "the field `messages` is no list of messages"),
        ({"messages": []}, "the field `messages` is no list of messages"),
        ({"messages": ["hi"]}, "a message is an object with a `role` and `content`"),
        ({"messages": [{"role": "user"}]}, "a message is an object with a `role` and `content`"),
        ({"messages": TALK[:2]}, "no message is of the role `assistant`, so none is trained on"),
    ],
)
def test_what_is_no_conversation_is_one_error(folder, tmp_path, line, said):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps({'messages': TALK})}\n{json.dumps(line)}\n")
    with pytest.raises(MeshDSLError) as error:
        written(folder, path)
    assert str(error.value) == f"`{path}` line 2: {said}"


def test_a_tokenizer_without_a_template_is_one_error():
    with pytest.raises(MeshDSLError, match="^format=chat: data.tokenizer=bytes has no chat"):
        Conversations(load_tokenizer("bytes"))


def test_a_run_reads_conversations_beside_text(folder, tmp_path):
    path = write_table(tmp_path / "talks.jsonl", messages=[TALK] * 40, id=range(40))
    (tmp_path / "text.txt").write_text("some text " * 200)
    settings = {
        "data__tokenizer": folder,
        "data__cache": str(tmp_path / "cache"),
        "data__sources__a__format": "chat",
        "data__validation": 0.25,
        "data__sources__text__paths": [str(tmp_path / "text.txt")],
        "model__vocab": 300,
        "model__length": 200,
    }
    with refused("format=chat: needs data.separate=true"):
        open_data(reads(path, **settings))
    data = open_data(reads(path, data__separate=True, **settings))
    batch = next(data.train(ROWS))
    targets = batch["targets"]
    assert targets.max() < 300 and batch["tokens"].max() < 300
    opens = load_tokenizer(folder).vocab - 2
    rows = [row for row, read in zip(targets, batch["tokens"], strict=True) if opens in read]
    # Conversations of 90 tokens or so: two in a row, each with two answers of seven tokens.
    assert rows and all((row != NO_TOKEN).sum() == 28 for row in rows)
    assert set(data.validation(np.arange(4))) == {"a", "text"}
