"""What is read, what is held out, and in which order."""

import numpy as np
import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train import data

TOKENS = np.arange(2000, dtype=np.uint16).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    for i in range(60):
        (tmp_path / f"{i:02}.txt").write_bytes(b"%02d" % i)
    (tmp_path / ".hidden").write_bytes(b"secret")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"compiled")
    return tmp_path


def test_the_default_text_is_the_standard_library():
    files = data.find_files(())
    names = {path.name for path in files}
    assert {"argparse.py", "dataclasses.py"} <= names
    assert all(path.suffix == ".py" and "site-packages" not in path.parts for path in files)
    assert 20e6 < sum(path.stat().st_size for path in files) < 60e6


def test_files_are_split_by_their_content(folder):
    text = data.read_text([str(folder)], 0.2)
    train, held_out = (set(part.tobytes().split(b"\0")) for part in (text.train, text.validation))
    assert train | held_out == {b"%02d" % i for i in range(60)}
    assert not train & held_out
    assert text.files == (len(train), len(held_out))
    (folder / "new.txt").write_bytes(b"new")
    again = data.read_text([str(folder)], 0.2)
    assert held_out <= set(again.validation.tobytes().split(b"\0"))


def test_a_file_that_is_named_twice_is_read_once(folder):
    once = data.read_text([str(folder)], 0.2)
    twice = data.read_text([str(folder), str(folder / "03.txt")], 0.2)
    assert once.train.tobytes() == twice.train.tobytes()


def test_the_end_of_a_single_file_is_held_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 101)))
    text = data.read_text([str(tmp_path / "a.txt")], 0.1)
    assert text.train.tolist() == list(range(1, 91))
    assert text.validation.tolist() == list(range(91, 101))


def test_targets_are_the_next_tokens_and_every_token_is_a_target_once():
    windows = data.Windows(TOKENS, 10)
    targets = np.concatenate([windows[i][1:] for i in range(len(windows))])
    np.testing.assert_array_equal(targets, TOKENS[1 : 10 * len(windows) + 1])
    batch = next(data.train_batches(TOKENS, 10, 4, seed=0))
    assert batch["tokens"].shape == batch["targets"].shape == (4, 10)
    assert batch["tokens"].dtype == np.int32
    np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])


def test_batches_are_a_function_of_the_seed():
    first, same, other = (data.train_batches(TOKENS, 10, 4, seed) for seed in (1, 1, 2))
    for _ in range(5):
        one = next(first)["tokens"]
        np.testing.assert_array_equal(one, next(same)["tokens"])
        assert not np.array_equal(one, next(other)["tokens"])


def test_an_epoch_reads_every_window_once_and_the_next_in_another_order():
    tokens = np.repeat(np.arange(8, dtype=np.uint8), 10)
    batches = data.train_batches(tokens, 9, 4, seed=0)
    epochs = [[next(batches)["tokens"][:, 0].tolist() for _ in range(2)] for _ in range(2)]
    assert [sorted(sum(epoch, [])) for epoch in epochs] == [sorted(tokens[:72:9].tolist())] * 2
    assert epochs[0] != epochs[1]


def test_an_iterator_resumes_exactly():
    batches = data.train_batches(TOKENS, 10, 4, seed=0)
    for _ in range(3):
        next(batches)
    state = batches.get_state()
    expected = [next(batches)["tokens"] for _ in range(3)]
    resumed = data.train_batches(TOKENS, 10, 4, seed=0)
    resumed.set_state(state)
    np.testing.assert_array_equal(expected, [next(resumed)["tokens"] for _ in range(3)])


def test_validation_batches_are_fixed_and_spread_over_the_text():
    batches = data.validation_batches(TOKENS, 10, 4, 3)
    again = data.validation_batches(TOKENS, 10, 4, 3)
    np.testing.assert_array_equal([b["tokens"] for b in batches], [b["tokens"] for b in again])
    assert len(batches) == 3
    assert batches[0]["tokens"][0, 0] == TOKENS[0]
    assert batches[-1]["targets"][-1, -1] == TOKENS[1990]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "no file or folder `{path}`"),
        (b"", "nothing to read in `{path}`"),
    ],
)
def test_bad_paths_are_refused_with(tmp_path, content, text):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MeshDSLError) as error:
        data.read_text([str(path)], 0.1)
    assert text.format(path=path) in str(error.value)


@pytest.mark.parametrize("make", [data.train_batches, data.validation_batches])
def test_a_text_shorter_than_a_batch_is_refused(make):
    with pytest.raises(MeshDSLError, match="has 40 bytes, less than one batch=4 of length=10 .41 bytes.; give more data"):
        make(TOKENS[:40], 10, 4, 1)
    make(TOKENS[:41], 10, 4, 1)
