"""Conversations: what is trained on is what the assistant says, as the template writes it."""

import json

import numpy as np
import pyarrow
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.data.conversations import Conversations
from meshdsl.train.data.files import File, find_files
from meshdsl.train.data.sequences import (
    CHAT,
    END,
    NO_TOKEN,
    SAID,
    PackedConversations,
    TokenRange,
    Tokens,
    batch_of,
)
from meshdsl.train.data.tasks import open_data
from meshdsl.train.data.tokenizer import load_tokenizer
from meshdsl.train.settings import override

pytest.importorskip("jinja2")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Thoughts are written in the last turn only, as Qwen3's template does.
THOUGHTFUL = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>{% endif %}{{ m.content }}",
)
TALK = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "yes 1"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "yes 2"},
]


def folder_with(path, template=CHATML):
    """A folder with a tokenizer of bytes, and three tokens of its own."""
    path.mkdir()
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return str(path)


def written(folder, tmp_path, *lines):
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer = load_tokenizer(folder)
    file = File(path, "chat", path.stat().st_size, 0)
    found = Conversations(tokenizer).documents(file, "messages")
    return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json"), [docs for _, docs in found]


def said_and_all(tokenizer, document):
    ids = (document & (END - 1)).tolist()
    said = [i for i, raw in zip(ids, document, strict=True) if raw & SAID]
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
    return decode(said), decode(ids)


def test_what_the_assistant_says_is_trained_on(tmp_path):
    tokenizer, found = written(folder_with(tmp_path / "a"), tmp_path, {"messages": TALK})
    [[document]] = found
    said, text = said_and_all(tokenizer, document)
    assert said == "yes 1<|im_end|>\nyes 2<|im_end|>\n"
    assert text.startswith("<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\none?")
    assert (document & CHAT).all() and [bool(raw & END) for raw in document[-2:]] == [False, True]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_has_the_conversations_of_lines(tmp_path, ending):
    folder = folder_with(tmp_path / "a")
    talks = [TALK, [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "no"}]]
    _, expected = written(folder, tmp_path, *({"messages": talk} for talk in talks))
    other = [[{**each, "name": None} for each in talk] for talk in talks]
    table, path = pyarrow.table({"messages": other, "number": [1, 2]}), tmp_path / f"talk.{ending}"
    if ending == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_stream(str(path), table.schema) as out:
            out.write_table(table)
    [file] = find_files([str(path)], "chat")
    conversations = Conversations(load_tokenizer(folder))
    found = [documents for _, documents in conversations.documents(file, "messages")]
    for ours, theirs in zip(found, expected, strict=True):
        assert [each.tolist() for each in ours] == [each.tolist() for each in theirs]
    with pytest.raises(MeshDSLError, match="no column `talks`"):
        list(conversations.documents(file, "talks"))


def test_turns_that_are_written_otherwise_later_are_documents_of_their_own(tmp_path):
    folder = folder_with(tmp_path / "a", THOUGHTFUL)
    tokenizer, [documents] = written(folder, tmp_path, {"messages": TALK})
    found = [said_and_all(tokenizer, document) for document in documents]
    assert [said for said, _ in found] == [
        "<think>\n\n</think>yes 1<|im_end|>\n",
        "<think>\n\n</think>yes 2<|im_end|>\n",
    ]
    assert "yes 1<|im_end|>" in found[1][1] and "<think>\n\n</think>yes 1" not in found[1][1]


def test_other_names_of_roles_are_known(tmp_path):
    talk = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    tokenizer, [[document]] = written(folder_with(tmp_path / "a"), tmp_path, {"messages": talk})
    assert said_and_all(tokenizer, document)[0] == "ho<|im_end|>\n"


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
def test_what_is_no_conversation_is_one_error(tmp_path, line, said):
    with pytest.raises(MeshDSLError) as error:
        written(folder_with(tmp_path / "a"), tmp_path, {"messages": TALK}, line)
    assert str(error.value) == f"`{tmp_path / 'talk.jsonl'}` line 2: {said}"


def test_a_tokenizer_without_a_template_is_one_error():
    with pytest.raises(MeshDSLError, match="^format=chat: data.tokenizer=bytes has no chat"):
        Conversations(load_tokenizer("bytes"))


def test_rows_hold_whole_conversations(tmp_path):
    raw = np.arange(31, dtype=np.uint32) + 1
    raw[[2, 4, 8, 29, 30]] |= END
    raw.tofile(tmp_path / "a.bin")
    rows = PackedConversations(Tokens([TokenRange(tmp_path / "a.bin", "uint32", 0, 31)]), 5)
    numbers = [[token & (END - 1) for token in row.tolist() if token >= 0] for row in rows]
    assert numbers == [[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14, 15], [31]]
    assert len(PackedConversations(Tokens([]), 5)) == 0


def test_batches_of_text_and_of_conversations():
    row = np.array([5, 7, 6, 7, 8], np.int32)  # 7 ends a document of text
    talk = np.array([5, 7, 6 | SAID, 7 | SAID | END, 8], np.int32) | CHAT
    short = np.array([5 | CHAT, 6 | CHAT | SAID | END, NO_TOKEN, NO_TOKEN, NO_TOKEN], np.int32)
    batch = batch_of(np.stack([row, talk, short]), 7)
    assert batch["tokens"].tolist() == [[5, 7, 6, 7], [5, 7, 6, 7], [5, 6, 0, 0]]
    assert batch["targets"].tolist() == [[7, -1, 7, -1], [-1, 6, 7, -1], [6, -1, -1, -1]]
    assert batch["segments"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1]]
    plain = batch_of(np.stack([row, talk, short]), None)
    assert plain["targets"].tolist() == [[7, 6, 7, 8], [-1, 6, 7, -1], [6, -1, -1, -1]]


def test_a_run_reads_conversations_beside_text(tmp_path):
    folder = folder_with(tmp_path / "a")
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps({"messages": TALK, "id": i}) + "\n" for i in range(40)))
    (tmp_path / "text.txt").write_text("some text " * 200)
    settings = [
        f"data.tokenizer={folder}",
        f"data.cache={tmp_path / 'cache'}",
        f"data.sources.talks.paths={path}",
        "data.sources.talks.format=chat",
        f"data.sources.text.paths={tmp_path / 'text.txt'}",
        *("model.vocab=300", "model.length=200", "batch=4", "data.validation=0.25"),
    ]
    with pytest.raises(MeshDSLError, match="format=chat: needs data.separate=true"):
        open_data(override(Config(), settings))
    data = open_data(override(Config(), [*settings, "data.separate=true"]))
    batch = next(data.train(np.arange(4)))
    targets = batch["targets"]
    assert targets.max() < 300 and batch["tokens"].max() < 300
    opens = load_tokenizer(folder).vocab - 2
    rows = [row for row, read in zip(targets, batch["tokens"], strict=True) if opens in read]
    # Conversations of 90 tokens or so: two in a row, each with two answers of seven tokens.
    assert rows and all((row != NO_TOKEN).sum() == 28 for row in rows)
    assert set(data.validation(np.arange(4))) == {"talks", "text"}
