"""What the tests of data share: small files, and configurations that read them."""

import json

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from meshdsl.train.config import Config
from meshdsl.train.settings import override


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


def write_jsonl(path, texts, field="text"):
    path.write_text(
        "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts))
    )
    return path


def write_tokens(path, tokens, dtype="uint16"):
    np.asarray(tokens, dtype).tofile(path)
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


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def assert_batches(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key], key)
