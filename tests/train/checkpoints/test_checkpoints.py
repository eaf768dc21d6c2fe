"""What is saved comes back, under any layout, and never into another model."""

import asyncio
import errno
import gc
import itertools
import logging
import os

import jax
import pytest
import tensorstore

from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import folders, manifest, writer
from tests.train.checkpoints.states import (
    FSDP,
    ONE,
    TENSOR,
    assert_equal,
    make_state,
    opened,
    saved,
)
from tests.train.common import contents


@pytest.mark.parametrize(
    ("optimizer", "other"), [("adamw", TENSOR), ("adafactor", ONE), ("muon", TENSOR)]
)
def test_a_state_comes_back_under_another_layout_and_number_of_devices(tmp_path, optimizer, other):
    state = make_state(FSDP, optimizer=optimizer, seed=3)
    saved(tmp_path, {1: state})
    like = make_state(other, optimizer=optimizer)
    described = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    found, _, data = opened(tmp_path).restore(jax.tree.map(described, like))
    assert_equal(found, state)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
        assert x.sharding == y.sharding
    assert data == {"next_index": 1}


def test_a_step_that_overwrites_the_arrays_does_not_reach_the_checkpoint(tmp_path):
    state = make_state(FSDP, seed=3)
    mine = state._replace(params=jax.tree.map(lambda x: x.copy(), state.params))
    twice = jax.jit(lambda params: jax.tree.map(lambda x: x * 2, params), donate_argnums=0)
    checkpoints = opened(tmp_path)
    checkpoints.save(1, mine, {})
    twice(mine.params)
    checkpoints.close()
    assert_equal(opened(tmp_path).restore(make_state(FSDP))[0], state)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({"keep": 1}, [5]), ({"keep": 1, "keep_every": 2}, [2, 4, 5])],
)
def test_the_newest_are_kept_and_those_that_are_kept_for_good(tmp_path, settings, kept):
    saved(tmp_path, dict.fromkeys(range(1, 6), make_state(FSDP)), **settings)
    assert folders.saved_steps(tmp_path / "checkpoints") == kept
    assert opened(tmp_path).latest == 5


def test_leftovers_of_killed_processes_are_not_seen_and_go_with_the_next_save(tmp_path):
    state = make_state(FSDP)
    saved(tmp_path, {1: state})
    for name in ("7.orbax-checkpoint-tmp", "2.orbax-checkpoint-tmp-1795", "3.leaving"):
        (tmp_path / "checkpoints" / name / "d").mkdir(parents=True)
    before = contents(tmp_path)
    assert opened(tmp_path).latest == 1
    opened(tmp_path).restore(state)
    assert contents(tmp_path) == before
    saved(tmp_path, {7: state})
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["1", "7"]


def test_a_folder_without_checkpoints_has_no_latest_and_is_not_made(tmp_path):
    checkpoints = opened(tmp_path)
    assert checkpoints.latest is None
    assert checkpoints.check(make_state(FSDP)) is None
    with pytest.raises(MeshDSLError, match="there is no checkpoint"):
        checkpoints.restore(make_state(FSDP))
    checkpoints.close()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            {"d_ff": 32},
            "`params.up` is [d_model=8, d_ff=16] float32 there and [d_model=8, d_ff=32]",
        ),
        ({"optimizer": "lion"}, "`opt_state.0.nu.scale` is [d_model=8] bfloat16 there and absent"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with(tmp_path, other, text):
    saved(tmp_path, {1: make_state(FSDP)})
    before = contents(tmp_path)
    checkpoints = opened(tmp_path)
    for refuse in (checkpoints.check, checkpoints.restore):
        with pytest.raises(MeshDSLError) as error:
            refuse(make_state(FSDP, **other))
        assert f"a checkpoint of another model or optimizer: {text}" in str(error.value)
    assert contents(tmp_path) == before


def test_what_cannot_be_written_is_an_error_at_the_next_look(tmp_path, monkeypatch):
    def full(*args, **how):
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints = opened(tmp_path, every=1)
    checkpoints.save(1, make_state(FSDP), {})
    assert checkpoints.latest == 1
    monkeypatch.setattr(manifest, "write", full)
    checkpoints.save(2, make_state(FSDP), {})
    said = (
        "the checkpoint of step 2 could not be written: No space left on device; the newest "
        "whole one, of step 1, is still there"
    )
    with pytest.raises(MeshDSLError, match=said):
        checkpoints.close()
    assert folders.saved_steps(tmp_path / "checkpoints") == [1]


def test_what_cannot_be_begun_is_an_error_that_names_what_is_still_there(tmp_path, monkeypatch):
    def full(*args):
        raise ValueError("No space left on device [source locations='x']")

    saved(tmp_path, {1: make_state(FSDP)})
    monkeypatch.setattr(writer.Writer, "start", full)
    monkeypatch.setattr(writer.Writer, "close", full)
    checkpoints = opened(tmp_path)
    with pytest.raises(MeshDSLError) as refused:
        checkpoints.save(2, make_state(FSDP), {})
    checkpoints.close()
    assert str(refused.value) == (
        f"{tmp_path}/checkpoints: the checkpoint of step 2 could not be written: No "
        "space left on device; the newest whole one, of step 1, is still there"
    )


def test_many_writes_that_fail_are_one_error_and_print_nothing(tmp_path, monkeypatch, caplog):
    """Those that fail one after the other, the last when nobody waits for them any more."""
    turns = itertools.count()

    async def full(*args, **how):
        for _ in range(next(turns)):
            await asyncio.sleep(0)
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    saved(tmp_path, {1: make_state(FSDP)})
    checkpoints = opened(tmp_path)
    monkeypatch.setattr(tensorstore, "open", full)
    checkpoints.save(2, make_state(FSDP), {})
    with pytest.raises(MeshDSLError, match="step 2 could not be written: .*No space left") as seen:
        checkpoints.close()
    del checkpoints, seen  # They hold the writes, which would print when they are freed.
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"keep": 2}, 2),
        ({"keep": 9}, 5),
        ({"keep": 9, "keep_every": 2}, 3),
        ({"keep": 1, "keep_every": 1}, 0),
    ],
)
def test_kept_are_those_that_give_their_room_to_newer_ones(tmp_path, settings, kept):
    assert opened(tmp_path, **settings).kept == 0
    for step in range(1, 6):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    assert opened(tmp_path, **settings).kept == kept


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    said = "the checkpoint of step 1 could not be written: File exists; there is none before it"
    with pytest.raises(MeshDSLError, match=said):
        opened(tmp_path).save(1, make_state(FSDP), {})
