"""Rows go where the law puts them, in one process and in several."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshdsl as md
from meshdsl.train.data.device_batches import put_on_devices, rows_here

SPECS = {
    "batch": P(None, "data"),
    "length": P(None, None, "model"),
    "both": P(None, "data", "model"),
    "batch twice": P(None, ("data", "model")),
    "minor first": P(None, ("model", "data")),
    "microbatch": P("data", "model"),
    "copies": P(),
}
# Of 144 rows, so many are read by each of two processes with three devices, by the mesh's (data,
# model), in the order of SPECS.
READ = {(2, 3): (72, 144, 72, 72, 72, 72, 144), (3, 2): (96, 144, 96, 72, 72, 72, 144)}
_PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def like(spec, mesh, shape):
    dims = [
        md.Dim(name, size)
        for name, size in zip(("microbatch", "batch", "length"), shape, strict=True)
    ]
    return md.tensor(
        jax.ShapeDtypeStruct(shape, np.int32, sharding=NamedSharding(mesh, spec)), dims
    )


def check(spec, mesh, shape=(6, 8 * 3, 12)):
    """Every device holds its part of the whole, from the rows that its process is told to read."""
    abstract = like(spec, mesh, shape)
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    rows = rows_here(abstract)
    batch = put_on_devices({"tokens": whole.reshape(-1, shape[-1])[rows]}, {"tokens": abstract})[
        "tokens"
    ]
    assert batch.dims == abstract.dims and batch.array.sharding == abstract.array.sharding
    for shard in batch.array.addressable_shards:
        np.testing.assert_array_equal(shard.data, whole[shard.index])
    return rows


@pytest.mark.parametrize("name", SPECS)
def test_every_device_of_one_process_holds_its_part(name):
    rows = check(SPECS[name], Mesh(np.reshape(jax.devices()[:6], (2, 3)), ("data", "model")))
    np.testing.assert_array_equal(rows, np.arange(144))


@given(
    sizes=st.permutations([2, 2, 2]),
    split=st.permutations(["a", "b", "c"]),
    at=st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_any_split_of_a_batch_is_placed(sizes, split, at):
    parts = [
        tuple(axis for axis, where in zip(split, at, strict=True) if where == dim) or None
        for dim in range(3)
    ]
    check(P(*parts), Mesh(np.reshape(jax.devices(), sizes), ("a", "b", "c")), (8, 8, 8))


def check_fields(mesh):
    """Fields that are split in several ways, and of several ranks, each get the rows they need."""
    specs = {"label": P(("data", "model")), "image": P("data", "model", None), "mask": P(None)}
    sizes, types = (12, 6, 5), {"label": np.int32, "image": np.float32, "mask": np.bool_}
    fields, whole = {}, {}
    for name, rank in {"label": 1, "image": 3, "mask": 2}.items():
        dims = [md.Dim(*each) for each in zip(("batch", "height", "width"), sizes, strict=True)]
        shape, sharding = sizes[:rank], NamedSharding(mesh, specs[name])
        array = jax.ShapeDtypeStruct(shape, types[name], sharding=sharding)
        fields[name] = md.tensor(array, dims[:rank])
        whole[name] = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(types[name])
    counts = []
    for names in (["label"], ["image"], ["label", "image"], list(fields)):
        like = {name: fields[name] for name in names}
        rows = rows_here(like)
        placed = put_on_devices({name: whole[name][rows] for name in names}, like)
        for name in names:
            for shard in placed[name].array.addressable_shards:
                np.testing.assert_array_equal(shard.data, whole[name][shard.index])
        counts.append(len(rows))
    return counts


def test_fields_that_are_split_in_several_ways_each_get_their_rows():
    assert check_fields(Mesh(np.reshape(jax.devices()[:6], (2, 3)), ("data", "model"))) == [12] * 4


def _one_of_two(coordinator, process):
    """One of two processes with three devices each.

    Prints how many rows each layout makes it read.
    """
    jax.config.update("jax_num_cpu_devices", 3)
    jax.distributed.initialize(coordinator, 2, process)
    devices = np.asarray(jax.devices())
    # In (3, 2) the second row of the mesh has a device of each process, so both need what it holds.
    print(
        *(
            len(check(spec, Mesh(devices.reshape(shape), ("data", "model"))))
            for shape in READ
            for spec in SPECS.values()
        ),
        *check_fields(Mesh(devices.reshape(3, 2), ("data", "model"))),
    )


def test_processes_read_only_the_rows_that_their_devices_need():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    code = (
        "from tests.train.data.test_device_batches import _one_of_two; "
        f"_one_of_two({coordinator!r}, {{}})"
    )
    start = lambda process: subprocess.Popen(
        [sys.executable, "-c", code.format(process)], env=dict(os.environ, XLA_FLAGS=""), **_PIPES
    )
    processes = [start(process) for process in (0, 1)]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    found = [list(map(int, answer[0].split())) for answer in answers]
    # Of 12 rows labels need half, images two thirds, and masks all.
    assert found == [[*READ[2, 3], *READ[3, 2], 6, 8, 8, 12]] * 2
