"""What the tests of data share: small files, and configurations that read them."""

import json
from contextlib import contextmanager

import numpy as np
import pyarrow
import pytest
import tokenizers
from pyarrow import parquet
from tokenizers import decoders, models, pre_tokenizers, trainers

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.settings import override

ROWS = np.arange(4)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "yes 1"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "yes 2"},
]


def config(**values):
    """A configuration of four rows of eight tokens.

    Underscores twice stand for dots: `data__separate=True`.
    """
    values = {key.replace("__", "."): value for key, value in values.items()}
    return override(Config(), **{"model.length": 8, "batch": 4, **values})


def reads(path, **values):
    """The same, of one dataset `a` in `path`."""
    return config(**{"data__sources__a__paths": [str(path)], **values})


def write_texts(folder, documents):
    folder.mkdir(exist_ok=True)
    for i, document in enumerate(documents):
        (folder / f"{i:04}.txt").write_bytes(document)
    return folder


def write_bytes(path, content=b"x" * 99):
    path.write_bytes(content)
    return path


def write_tokens(path, tokens, dtype="uint16"):
    np.asarray(tokens, dtype).tofile(path)
    return path


def write_table(path, **columns):
    """Rows with some columns, in the format that the ending of `path` says."""
    if path.suffix == ".jsonl":
        rows = zip(*columns.values(), strict=True)
        lines = (json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        path.write_text("".join(lines))
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    else:
        table = pyarrow.table(columns)
        with pyarrow.ipc.new_stream(str(path), table.schema) as out:
            out.write_table(table, max_chunksize=7)
    return path


def save_tokenizer(path, size, end, text):
    """A byte-level BPE of so many tokens, learned from `text`, as a `tokenizer.json`."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(path))
    return path


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


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def whole(batches):
    """Batches as one, field by field."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def of_rows(batches, rows):
    """Some rows of batches."""
    return [{name: each[rows] for name, each in batch.items()} for batch in batches]


def assert_batches(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key], key)


@contextmanager
def refused(*said):
    """What is done here is refused by one error, which names a setting and has these texts."""
    with pytest.raises(MeshDSLError) as error:
        yield
    text = str(error.value)
    assert text.startswith("data") and all(each in text for each in said), text
