"""Runs of version 0.1.0 go on with their data: which rows come when, and what is said of them.

`tests/golden/rows.json` has, for each kind of data, the state of a run's batches as its checkpoint
has it, and a hash of the first batches and of those held out. Version 0.1.0 wrote all of them.
`python -m tests.train.data.test_same_rows` prints those of this version.
"""

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.common import (
    ROWS,
    TALK,
    folder_with,
    reads,
    take,
    write_table,
    write_texts,
    write_tokens,
)
from tests.train.data.families import Classifier, Own, Translator, configured, opened, source
from tests.train.data.test_images import save
from tests.train.data.test_pairs import write_pairs

GOLDEN = Path(__file__).parents[2] / "golden" / "rows.json"
TEXTS = [f"document {i} says {i * i} and é\r\n" * (1 + i % 3) for i in range(40)]


def images(path, labels):
    """Images in a format by the ending of `path`; `labels` are names or numbers."""
    pixels = [np.full((4, 3), i, np.uint8) for i in range(40)]
    if path.suffix == ".npz":
        np.savez(path, image=np.stack(pixels), label=np.array(labels))
    elif path.suffix == ".parquet":
        write_table(path, image=[image.tolist() for image in pixels], label=list(labels))
    else:
        for i, image in enumerate(pixels):
            save(path / str(labels[i]) / f"{i}.npy", image)
    settings = {source("paths"): [str(path)], "data__validation": 0.3}
    return configured(Classifier(), **settings)


def text(path, **values):
    return reads(path, data__validation=0.2, **values)


def talk(path):
    talks = [[*TALK[:-1], {"role": "assistant", "content": f"yes {i}"}] for i in range(30)]
    settings = {"model__length": 64, "model__vocab": 300, "data__separate": True}
    chat = {"data__tokenizer": folder_with(path.parent / "tokenizer"), source("format"): "chat"}
    return text(write_table(path, messages=talks), **settings, **chat)


def pairs(path):
    values = {source("paths"): [str(write_pairs(path, PAIRS))], "data__validation": 0.3}
    return configured(Translator(), **values)


def mixture(folder):
    lines = str(write_table(folder / "b.jsonl", text=TEXTS[::-1]))
    more = {"data__sources__b__paths": [lines], "data__sources__b__weight": 2.5}
    return text(files(folder / "a"), seed=7, **more)


def files(path):
    return write_texts(path, [each.encode() for each in TEXTS])


NAMES = ["ant", "bee", "cat", "dog"] * 10
NUMBERS = [0, 1, 2, 3] * 10
PAIRS = [(f"q{i}" + "?" * (i % 3), f"a{i}") for i in range(30)]
KINDS = {
    "texts": lambda at: text(files(at / "a")),
    "separate": lambda at: text(write_table(at / "a.jsonl", text=TEXTS), data__separate=True),
    "parquet": lambda at: text(write_table(at / "a.parquet", text=TEXTS)),
    "arrow": lambda at: text(write_table(at / "a.arrow", text=TEXTS)),
    "tokens": lambda at: text(write_tokens(at / "a.bin", np.arange(999) % 250)),
    "mixture": mixture,
    "chat in lines": lambda at: talk(at / "a.jsonl"),
    "chat in a table": lambda at: talk(at / "a.parquet"),
    "pairs in lines": lambda at: pairs(at / "a.jsonl"),
    "pairs in a table": lambda at: pairs(at / "a.parquet"),
    "images in folders": lambda at: images(at / "a", NAMES),
    "images in arrays": lambda at: images(at / "a.npz", NUMBERS),
    "images in a table": lambda at: images(at / "a.parquet", NUMBERS),
    "named images in a table": lambda at: images(at / "a.parquet", NAMES),
    "a function": lambda at: configured(
        Own(), **{source("dataset"): "tests.train.data.user_data:both"}
    ),
}


def found(kind, folder):
    """What `rows.json` has of a kind of data."""
    data = opened(KINDS[kind](folder))
    batches = data.train(ROWS)
    first = take(batches, 12)
    held_out = [batch for each in data.validation(ROWS).values() for batch in each]
    state = batches.get_state()
    if "chat" in kind:
        del state["of"]["the tokenizer"]  # which a library writes, as its version does
    return {
        "state": state,
        "said": data.describe().partition("\n")[2],  # without the path of a tokenizer
        "train": digest(first),
        "held out": digest(held_out),
    }


def digest(batches):
    hashed = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            hashed.update(f"{name} {batch[name].dtype} {batch[name].shape} ".encode())
            hashed.update(batch[name].tobytes())
    return hashed.hexdigest()[:32]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_earlier_versions(kind, tmp_path):
    if "chat" in kind:
        pytest.importorskip("jinja2")
    assert found(kind, tmp_path) == json.loads(GOLDEN.read_text())[kind]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        parts = {kind: Path(folder, str(i)) for i, kind in enumerate(KINDS)}
        for part in parts.values():
            part.mkdir()
        rows = {kind: found(kind, part) for kind, part in parts.items()}
        print(json.dumps(rows, indent=1))
