"""A device that computes or keeps other bits than it should is named (`guard.repeat`)."""

from pathlib import Path

import jax
import numpy as np
import pytest

from meshdsl import MeshDSLError
from meshdsl.train.repeated import Repeated, _other_than_replicas
from tests.train.common import SHORT, records, tiny_job, train


@pytest.fixture(scope="module")
def data():
    """A job whose devices all have the same, a state, a batch, and what compares."""
    job = tiny_job("data")
    state = job.step.init(jax.random.key(0))
    batch = job.place(
        {name: np.ones(x.array.shape, x.array.dtype) for name, x in job.batch.items()}
    )
    return job, state, batch, Repeated(job, Path("runs/a"))


def flipped(array, devices, bit=7):
    """The array with one bit of what some devices have of it flipped."""
    parts = []
    for shard in array.addressable_shards:
        part = np.array(shard.data)
        if shard.device.id in devices:
            part.reshape(-1).view(np.uint32)[0] ^= 1 << bit
        parts.append(jax.device_put(part, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def with_norm(state, devices):
    """The state with a bit flipped in what some devices have of a parameter that all have."""
    norm = state.params.norm
    scale = norm.scale.replace(array=flipped(norm.scale.array, devices))
    return state.replace(params=state.params.replace(norm=norm.replace(scale=scale)))


def test_good_devices_agree(data):
    _, state, batch, repeated = data
    repeated.check(state, batch, 1)


def test_a_device_with_a_flipped_bit_is_named(data):
    _, state, batch, repeated = data
    with pytest.raises(MeshDSLError) as error:
        repeated.check(with_norm(state, {3}), batch, 40)
    assert str(error.value) == (
        "step 40: device 3 has other bits of `params.norm.scale` than other replicas "
        "(guard.repeat); a device computes or keeps wrong numbers; leave it out, and go on from a "
        "checkpoint of before: meshdsl train --resume --out runs/a"
    )


def test_a_device_that_computes_something_else_the_second_time_is_named(data, monkeypatch):
    _, state, batch, repeated = data
    compiled, calls = repeated._compiled, []

    def faulty(state, batch):
        calls.append(1)
        found = np.array(compiled(state, batch))
        found[5, -1] ^= len(calls) == 2
        return found

    monkeypatch.setattr(repeated, "_compiled", faulty)
    with pytest.raises(MeshDSLError, match=r"step 7: device 5 came to other bits of the gradient"):
        repeated.check(state, batch, 7)


def test_of_two_replicas_both_are_named_and_of_parts_those_of_one_place():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    digests = np.array([1, 1, 2, 2, 3, 9, 4, 4], np.uint32)
    assert _other_than_replicas(digests, sharding) == [4, 5]
    assert (
        _other_than_replicas(digests, jax.NamedSharding(mesh, jax.P(None, ("model", "data")))) == []
    )
    three = jax.NamedSharding(mesh, jax.P("model"))
    assert _other_than_replicas(np.array([1, 5, 1, 5, 1, 7, 2, 5], np.uint32), three) == [5, 6]


@pytest.mark.slow
def test_a_run_that_repeats_has_the_losses_of_one_that_does_not(tmp_path):
    losses = []
    for repeat in (0, 2):
        words = (*SHORT, "--layout", "fsdp", "steps=5", "microbatches=2", "batch=16")
        code, found = train(tmp_path / str(repeat), *words, f"guard.repeat={repeat}")
        assert code == 0
        losses.append(found)
    assert losses[0] == losses[1]
    assert sum(line.get("repeat_seconds", 0) > 0 for line in records(tmp_path / "2")) == 2
