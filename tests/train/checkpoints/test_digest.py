"""Digests do not depend on where elements lie, and on nothing else do they fail to depend."""

import itertools
import math
import os
import re

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from meshdsl.mesh import make_mesh
from meshdsl.train.checkpoints import digest
from meshdsl.train.checkpoints.digest import chunk_digest, digests
from meshdsl.train.checkpoints.saved_arrays import chunk_indices

MESH = {"data": 4, "model": 2}


def bits(shape, dtype):
    """Random bits, and so NaNs of every kind.

    None in bfloat16 where loops are compiled another way.

    That way (see `tests/conftest.py`) does not keep the bits of a NaN in bfloat16.
    """
    draw = np.random.default_rng(0)
    if dtype == bool:
        return draw.integers(0, 2, shape).astype(bool)
    random = np.frombuffer(draw.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), np.uint8)
    if dtype == ml_dtypes.bfloat16 and "fusion_emitters=false" in os.environ.get("XLA_FLAGS", ""):
        random = (random.view(np.uint16) & 0xBFFF).view(np.uint8)
    return random.view(dtype).reshape(shape)


def device_digest(array, spec=()):
    placed = jax.device_put(array, NamedSharding(make_mesh(MESH), PartitionSpec(*spec)))
    return int(digests({"x": placed})[0])


def host_digest(array, chunk):
    return sum(
        chunk_digest(array[index], tuple(cut.start for cut in index), array.shape)
        for index in chunk_indices(array.shape, chunk)
    ) % (1 << 32)


DTYPES = ("float32", "int32", "uint32", "bfloat16", "float16", "int8", "bool", "float8_e4m3fn")
SPECS = [(), ("data", "model"), (("data", "model"),), (None, "model")]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_one_digest_on_devices_and_on_the_host(name):
    array = bits((8, 6), np.dtype(getattr(ml_dtypes, name, name)))
    found = {device_digest(array, spec) for spec in SPECS}
    assert found == {host_digest(array, chunk) for chunk in ((8, 6), (3, 4))}


def test_any_flipped_bit_and_any_two_elements_that_change_places_are_seen():
    array = bits((16,), np.float32)
    expected = host_digest(array, (16,))
    for place, bit in itertools.product(range(16), range(32)):
        other = array.copy()
        other.view(np.uint32)[place] ^= np.uint32(1 << bit)
        assert host_digest(other, (16,)) != expected
    for i, j in itertools.combinations(range(16), 2):
        other = array.copy()
        other[[i, j]] = other[[j, i]]
        assert host_digest(other, (16,)) != expected
    assert host_digest(np.roll(array, 1), (16,)) != expected


def test_an_index_beyond_32_bits_is_taken_modulo_2_to_the_32():
    part, shape = np.ones((1, 3), np.float32), (1 << 32, 8)
    assert chunk_digest(part, (1 << 31, 2), shape) == chunk_digest(part, (0, 2), shape)


@pytest.mark.parametrize("spec", [(), ("data",), (None, ("model", "data"))])
def test_each_device_sums_over_a_part_of_its_own_and_only_the_numbers_leave_it(spec):
    mesh = make_mesh(MESH)
    array = jax.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, PartitionSpec(*spec)))
    program = digest._program(NamedSharding(mesh, PartitionSpec()))
    lowered = program.lower([array] * 2, (digest._spread_sharding(array),) * 2)
    text = lowered.compile().as_text()
    assert "all-reduce" in text
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute"))
    shapes = re.findall(r"u32\[([\d,]+)\]", text)
    assert max(math.prod(map(int, shape.split(","))) for shape in shapes) == 64 * 64 / 8


def test_what_waits_in_the_memory_of_the_host_has_the_same_digest():
    array = bits((16, 6), np.float32)
    sharding = NamedSharding(make_mesh(MESH), PartitionSpec("data"))
    waiting = jax.device_put(array, sharding.with_memory_kind("pinned_host"))
    assert int(digests({"x": waiting})[0]) == host_digest(array, (16, 6))
