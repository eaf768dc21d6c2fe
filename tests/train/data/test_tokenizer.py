"""Text to tokens and back, and tokenizers made from text."""

import numpy as np
import pytest

from meshdsl.commands.tokenizer import train_tokenizer
from meshdsl.errors import MeshDSLError
from meshdsl.train.data import load_tokenizer
from meshdsl_cli.parser import parse

TEXT = "the cat sat on a 猫 — 🐈‍⬛ naïve\n\t<|endoftext|> {}"


@pytest.fixture(params=["bytes", "file"])
def tokenizer(request, tokenizer_file):
    return load_tokenizer("bytes" if request.param == "bytes" else str(tokenizer_file))


def test_text_comes_back_whole(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert ids.max() < tokenizer.vocab and tokenizer.separator not in ids
    (blocks,) = tokenizer.encode_blocks([TEXT.encode()])
    np.testing.assert_array_equal(blocks, ids)


def test_text_comes_token_by_token_as_soon_as_its_characters_are_whole(tokenizer):
    stream = tokenizer.stream()
    parts = [stream(int(token)) for token in tokenizer.encode(TEXT)]
    assert "".join(parts) + stream.rest() == TEXT
    assert parts[0] and not any("\ufffd" in part for part in parts)


def test_a_stream_ends_as_the_whole_text_does(tokenizer):
    ids = [int(token) for token in tokenizer.encode("the 猫")]
    for end in range(len(ids) + 1):
        stream = tokenizer.stream()
        assert "".join(map(stream, ids[:end])) + stream.rest() == tokenizer.decode(ids[:end])
        assert stream.rest() == ""


def test_bytes_that_are_no_text_are_marked():
    assert load_tokenizer("bytes").decode([65, 0xFF, 66, 300, 0xE7]) == "A\ufffdB\ufffd\ufffd"


def run(*words):
    return train_tokenizer(parse(["tokenizer", "train", *map(str, words)]).arguments)


def test_a_tokenizer_is_made_from_jsonl(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"body": "the cat sat on the mat"}\n' * 9)
    out = tmp_path / "t.json"
    assert run(tmp_path / "a.jsonl", "--field", "body", "--vocab", 262, "--out", out) == 0
    tokenizer = load_tokenizer(str(out))
    assert tokenizer.vocab == 262 and tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert len(tokenizer.encode("the cat")) < len("the cat")
    said = capsys.readouterr().out
    assert "262 tokens" in said and f"data.tokenizer={out} model.vocab=262" in said
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.jsonl", "t.json"]


def test_a_text_with_few_pairs_gives_fewer_tokens(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("aab")
    assert run(tmp_path / "a.txt", "--vocab", 500, "--out", tmp_path / "t.json") == 0
    assert "the text has no pairs for more; --vocab asked for 500" in capsys.readouterr().out


MISTAKES = [
    ("a.txt", 256, "t.json", "--vocab 256: must be at least 257"),
    ("b.txt", 300, "t.json", "no file or folder `{folder}/b.txt`"),
    ("a.bin", 300, "t.json", "`{folder}/a.bin`: holds tokens; a tokenizer is made from text"),
    ("empty", 300, "t.json", "nothing to read in `{folder}/empty`"),
    ("a.txt", 300, "a.txt", "--out {folder}/a.txt: exists; choose another file"),
    ("a.txt", 300, "no/t.json", "{folder}/no/t.json: No such file or directory"),
    ("a.txt", 300, "x" * 300, "File name too long"),
    ("a.txt", 300, "/proc/x.json", "/proc/x.json: No such file or directory"),
]


@pytest.mark.parametrize(("file", "vocab", "out", "text"), MISTAKES)
def test_no_tokenizer_is_made_and_the_error_says(tmp_path, file, vocab, out, text):
    for name, content in {"a.txt": "text", "a.bin": "text", "empty": ""}.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(MeshDSLError) as error:
        run(tmp_path / file, "--vocab", vocab, "--out", tmp_path / out)
    assert text.format(folder=tmp_path) in str(error.value)
    assert not (tmp_path / "t.json").exists()
