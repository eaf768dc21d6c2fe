"""No damage to any file of a checkpoint goes unseen, and none costs more than that checkpoint."""

import random
import re

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import folders, manifest
from meshdsl.train.checkpoints.manifest import FILE
from meshdsl.train.checkpoints.saved_arrays import verify
from tests.train.checkpoints.states import FSDP, TENSOR, assert_equal, make_state, opened, saved
from tests.train.common import contents

STAMPS = ("_CHECKPOINT_METADATA", "commit_success.txt")  # orbax leaves them, nothing reads them


def flipped(data, seed=0):
    place = random.Random(seed).randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << seed % 8]) + data[place + 1 :]


DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped": flipped,
    "missing": None,
}


def damage(path, how):
    data = path.read_bytes()
    if DAMAGES[how] is None:
        path.unlink()
    else:
        path.write_bytes(DAMAGES[how](data))
    return data


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    saved(folder, {1: make_state(FSDP, seed=1), 2: make_state(FSDP, seed=2)})
    return folder


def kinds(folder):
    """One file of each kind in the checkpoint `folder`, the largest."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in STAMPS]
    kind = lambda path: path.parent / (path.name if path.parent.name != "d" else "data")
    return {kind(path): path for path in sorted(files, key=lambda path: path.stat().st_size)}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_of_any_kind_is_named_and_the_checkpoint_before_is_used(run, how):
    for kind, path in kinds(run / "checkpoints" / "2").items():
        whole = damage(path, how)
        before = contents(run)
        said = []
        checkpoints = opened(run, said.append)
        found, _, data = checkpoints.restore(make_state(TENSOR))
        checkpoints.close()
        # Orbax leaves copies that nothing points to.
        unread = how == "flipped" and "data" in kind.name and not said
        if not unread:
            assert len(said) == 1, kind
            assert re.fullmatch("the checkpoint of step 2 is damaged: .*; using step 1", said[0])
            assert kind.name == "data" or kind.name in said[0]
        step = 2 if unread else 1
        assert_equal(found, make_state(FSDP, seed=step))
        assert data == {"next_index": step}
        assert bool(verify(run / "checkpoints" / "2")) != unread
        assert contents(run) == before
        path.write_bytes(whole)
    assert not verify(run / "checkpoints" / "2")


def test_every_flipped_bit_that_changes_a_value_is_seen(run):
    """Any bit of the data may flip: where nothing is said, what comes back is what was saved."""
    path = max((run / "checkpoints" / "2" / "d").iterdir(), key=lambda path: path.stat().st_size)
    like, expected, whole, seen = make_state(FSDP), make_state(FSDP, seed=2), path.read_bytes(), 0
    for seed in range(8):
        path.write_bytes(flipped(whole, seed))
        said = []
        found, _, _ = opened(run, said.append).restore(like)
        assert_equal(found, make_state(FSDP, seed=1) if said else expected)
        seen += bool(said)
    path.write_bytes(whole)
    assert seen >= 4


def test_wrong_values_in_healthy_files_are_seen_by_their_digest(run, monkeypatch):
    """Memory lied while it was saved: files are as written, and one array is not what it was."""
    read = manifest.read

    def other(folder):
        found = read(folder)
        if folder.name == "2":
            found["state"]["params.up"]["digest"] ^= 1
        return found

    monkeypatch.setattr(manifest, "read", other)
    said = []
    opened(run, said.append).restore(make_state(TENSOR))
    assert said == [
        "the checkpoint of step 2 is damaged: `params.up` is not what was saved; using step 1"
    ]
    assert verify(run / "checkpoints" / "2") == "`params.up` is not what was saved"


def test_a_check_gives_the_step_of_the_newest_good_record_and_tells_of_others_once(tmp_path):
    saved(tmp_path, {2: make_state(FSDP, seed=2), 4: make_state(FSDP, seed=4)})
    assert opened(tmp_path).check(make_state(FSDP)) == 4
    damage(tmp_path / "checkpoints" / "4" / FILE, "truncated")
    said = []
    checkpoints = opened(tmp_path, said.append)
    assert (checkpoints.latest, checkpoints.kept) == (4, 2)
    assert checkpoints.check(make_state(FSDP)) == 2
    assert checkpoints.kept == 1
    assert_equal(checkpoints.restore(make_state(FSDP))[0], make_state(FSDP, seed=2))
    assert said == [
        "the checkpoint of step 4 is damaged: meshdsl.json is not what was written; using step 2"
    ]


def test_where_none_is_good_there_is_one_error_and_nothing_is_deleted(tmp_path):
    saved(tmp_path, {1: make_state(FSDP), 2: make_state(FSDP)})
    damage(tmp_path / "checkpoints" / "2" / FILE, "flipped")
    damage(tmp_path / "checkpoints" / "1" / "manifest.ocdbt", "missing")
    before = contents(tmp_path)
    for refuse in (opened(tmp_path).check, opened(tmp_path).restore):
        with pytest.raises(MeshDSLError) as error:
            refuse(make_state(FSDP))
        assert str(error.value) == (
            f"{tmp_path}/checkpoints: there is no good checkpoint; the checkpoint of step 2 is "
            "damaged: meshdsl.json is not what was written; the checkpoint of step 1 is damaged: "
            "manifest.ocdbt is missing"
        )
    assert contents(tmp_path) == before


def test_a_run_goes_on_from_an_older_one_and_sets_the_damaged_aside(tmp_path):
    saved(tmp_path, {2: make_state(FSDP, seed=2), 4: make_state(FSDP, seed=4)})
    damage(tmp_path / "checkpoints" / "4" / FILE, "missing")
    checkpoints = opened(tmp_path, lambda line: None, keep=1)
    state, _, _ = checkpoints.restore(make_state(FSDP))
    checkpoints.save(3, state, {})
    checkpoints.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4.damaged"]
    assert opened(tmp_path).latest == 3


def test_the_newest_two_that_were_set_aside_stay(tmp_path):
    for step in (900, 20, 100, 3):  # a run may go back, and fail at an earlier step
        (tmp_path / str(step)).mkdir()
        folders.set_aside(tmp_path, [step])
    (tmp_path / "3").mkdir()
    folders.set_aside(tmp_path, [3])
    found = [path.name for path in folders.damaged(tmp_path)]
    assert found == ["3.damaged", "3.damaged-2"]
