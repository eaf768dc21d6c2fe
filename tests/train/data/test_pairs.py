"""Pairs of texts, as an encoder and a decoder want them, and as two towers do."""

import numpy as np
import pytest

from tests.train.data.common import ROWS, refused, take, whole, write_table
from tests.train.data.families import Towers, Translator, configured, opened, source

PAIRS = [(f"q{i}" + "?" * (i % 3), f"a{i}"[: 2 + i % 2]) for i in range(20)]


def write_pairs(path, pairs=PAIRS, names=("source", "target")):
    return write_table(path, **{names[i]: [pair[i] for pair in pairs] for i in (1, 0)})


def reads(path, family=None, **values):
    return configured(family or Translator(), **{source("paths"): [str(path)], **values})


def text(ids):
    return bytes(int(each) for each in ids).decode().rstrip("\0")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_decoder_reads_what_it_has_predicted(tmp_path, ending):
    data = opened(reads(write_pairs(tmp_path / f"a.{ending}")))
    assert data.describe() == (
        "data, pairs by the tokenizer bytes of 256 tokens:\n  a: 20 pairs; held out 0"
    )
    found = whole(take(data.train(ROWS), 5))
    assert {name: (array.shape, array.dtype.name) for name, array in found.items()} == {
        "source": ((20, 6), "int32"),
        "tokens": ((20, 5), "int32"),
        "targets": ((20, 5), "int32"),
        "source_length": ((20,), "int32"),
    }
    rows = [{name: array[i] for name, array in found.items()} for i in range(20)]
    assert sorted((text(row["source"]), text(row["tokens"][1:])) for row in rows) == sorted(PAIRS)
    for row in rows:
        size = len(text(row["tokens"][1:]))
        assert row["tokens"][0] == 0 and row["targets"][size] == 0, "the separator"
        np.testing.assert_array_equal(row["targets"][:size], row["tokens"][1 : 1 + size])
        assert (row["targets"][size + 1 :] == -1).all()
        assert row["source_length"] == len(text(row["source"]))


def test_two_towers_get_both_texts_alike(tmp_path):
    found = whole(take(opened(reads(write_pairs(tmp_path / "a.jsonl"), Towers())).train(ROWS), 5))
    assert list(found) == ["source", "target", "source_length", "target_length"]
    texts = zip(map(text, found["source"]), map(text, found["target"]), strict=True)
    assert sorted(texts) == sorted(PAIRS)
    assert found["target_length"].tolist() == [len(text(row)) for row in found["target"]]


def test_texts_that_are_too_long_are_cut_and_counted(tmp_path):
    pairs = [("x" * 7, "ok"), ("ok", "12345"), ("123456", "1234"), ("", "gone"), ("gone", "")]
    data = opened(reads(write_pairs(tmp_path / "a.jsonl", pairs), batch=2))
    assert data.describe().endswith("a: 3 pairs; held out 0; 2 of them are cut")
    found = whole(take(data.train(np.arange(2)), 3))
    columns = (found[name] for name in ("source", "targets", "source_length"))
    rows = {text(one): (two.tolist(), size) for one, two, size in zip(*columns, strict=True)}
    assert rows["ok"] == ([*b"12345"], 2), "without an end"
    assert rows["123456"] == ([*b"1234", 0], 6) and rows["xxxxxx"][1] == 6


def test_names_and_a_tokenizer_are_settings(tmp_path, tokenizer_file):
    path = write_pairs(tmp_path / "a.jsonl", [("the cat", "the dog")] * 8, ("question", "answer"))
    settings = {source("field"): "question", source("label"): "answer"}
    settings["data__tokenizer"] = str(tokenizer_file)
    found = next(opened(reads(path, Translator(vocab=300), **settings)).train(ROWS))
    assert found["source"].max() > 255 and found["tokens"][0, 0] == 0


def test_pairs_are_held_out_by_their_texts_and_fill_up_a_batch(tmp_path):
    data = opened(reads(write_pairs(tmp_path / "a.jsonl"), data__validation=0.4))
    held_out = whole(data.validation(ROWS)["a"])
    real = (held_out["targets"] >= 0).any(axis=1)
    seen = {text(row) for row in held_out["source"][real]}
    trained = {text(row) for row in whole(take(data.train(ROWS), 10))["source"]}
    assert seen and not seen & trained and len(seen | trained) == 20
    assert len(real) % 4 == 0 and (held_out["targets"][~real] == -1).all()
    more = write_pairs(tmp_path / "b.jsonl", [*PAIRS, *PAIRS, ("one", "more")])
    again = whole(opened(reads(more, data__validation=0.4)).validation(ROWS)["a"])
    assert seen <= {text(row) for row in again["source"]} <= seen | {"one", ""}


def test_a_run_does_not_go_on_with_other_pairs(tmp_path):
    state = opened(reads(write_pairs(tmp_path / "a.jsonl"))).train(ROWS).get_state()
    opened(reads(write_pairs(tmp_path / "a.parquet"))).train(ROWS).set_state(state)
    other = write_pairs(tmp_path / "b.jsonl", [*PAIRS[:-1], ("another", "one")])
    with refused("this run began with other data: a was 20 of 20 pairs"):
        opened(reads(other)).train(ROWS).set_state(state)


WHERE = "data.sources.a: "
MISTAKES = {
    "no target": (
        "a.jsonl",
        {"names": ("source", "targets")},
        f"{WHERE}`{{path}}` line 1: no field `target`; did you mean `targets`?",
    ),
    "empty": ("a.jsonl", {"pairs": [("", "x")]}, f"{WHERE}nothing to read in `{{path}}`"),
    "text": (
        "a.arrow",
        {},
        f"{WHERE}`{{path}}`: pairs are read from JSONL (.jsonl) and parquet (.parquet); say which",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_pairs_that_cannot_be_used_are_refused(tmp_path, name):
    file, how, said = MISTAKES[name]
    path = write_pairs(tmp_path / file, **how)
    with refused(said.format(path=path)):
        opened(reads(path))
