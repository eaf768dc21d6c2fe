"""Meshes lie as on the devices that libtpu makes for these machines."""

import numpy as np
import pytest

from meshdsl.machine import find_target
from meshdsl.machine.network import device_coordinates
from tests.machine.processes import told_by_libtpu

CASES = [
    ("v4:2x2x2", 1, {"a": 2, "b": 4}),
    ("v5e:2x2", 1, {"data": 2, "model": 2}),
    ("v5e:2x4", 1, {"data": 2, "model": 4}),
    ("v5e:4x4", 1, {"data": 16}),
    ("v5e:8x16", 1, {"data": 16, "model": 8}),
    ("v6e:16x16", 1, {"data": 64, "model": 4}),
    ("v5p:2x2x2", 1, {"model": 8}),
    ("v5p:4x4x4", 1, {"data": 16, "model": 4}),
    ("v5p:4x4x4", 1, {"data": 8, "model": 8}),
    ("v5p:4x4x8", 1, {"replica": 2, "data": 8, "model": 8}),
    ("v5p:8x8x16", 1, {"data": 128, "model": 8}),
    ("tpu7x:2x2x1", 1, {"data": 2, "model": 4}),
    ("tpu7x:2x2x2", 1, {"data": 4, "model": 4}),
    ("tpu7x:4x4x4", 1, {"data": 16, "model": 8}),
    ("v5e:4x4", 2, {"data": 8, "model": 4}),
    ("v5p:2x2x4", 4, {"replica": 2, "data": 8, "model": 4}),
    ("v5e:1x1", 1, {}),
]


@pytest.fixture(scope="module")
def real():
    return told_by_libtpu("tests.machine.real", CASES)


@pytest.mark.parametrize(
    "case",
    range(len(CASES)),
    ids=[f"{n}-{t}-{'x'.join(map(str, s.values()))}" for t, n, s in CASES],
)
def test_meshes_lie_where_they_lie_on_the_real_topology(real, case):
    text, slices, sizes = CASES[case]
    target = find_target(text, slices=slices)
    assert real[case]["kind"] == target.chip.device_kind
    assert device_coordinates(target, sizes).reshape(-1, 5).tolist() == real[case]["places"]


def test_meshes_are_those_of_jax_where_it_makes_them(real):
    same = [found["same"] for found in real]
    assert False not in same and same.count(True) >= 8


def test_thousands_of_devices_each_have_a_place():
    found = device_coordinates(find_target("v5p:16x16x32"), {"replica": 4, "data": 256, "model": 8})
    assert len(np.unique(found.reshape(-1, 5), axis=0)) == 8192
