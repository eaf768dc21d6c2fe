"""Targets by name, and the meshes that fit them."""

import math

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.machine import find_target, fit_mesh, propose_meshes
from meshdsl.machine.target import abstract_mesh_on
from meshdsl.mesh import device_kind_of, platform_of

KINDS = {"v5p:2x2x1": "TPU v5", "v5e:2x2": "TPU v5 lite", "h100:4": "NVIDIA H100 80GB HBM3"}

LEGAL_V5P = (
    "3 dims, all multiples of 4 where one is above it, x and y even, at most 8,960 chips, "
    "such as `v5p:2x2x1`; or one chip, `v5p:1x1x1`"
)


def test_devices_over_all_slices():
    devices = {
        "v5p:4x4x4": 64,
        "v5p:16x16x32": 8192,
        "v5p:1x1x1": 1,
        "v4:4x4x4": 64,
        "tpu7x:2x2x2": 16,
        "v5e:16x16": 256,
        "h100:8": 8,
        "h100:2": 2,
        "h100:8x4": 32,
        "cpu:8": 8,
    }
    assert {text: find_target(text).devices for text in devices} == devices
    assert find_target("v5p:4x4x4", slices=4).devices == 256
    assert find_target("tpu7x:2x2x2", slices=2).devices == 32


def test_a_mesh_without_devices_knows_whose_it_is():
    found = {text: device_kind_of(abstract_mesh_on(find_target(text), {"x": 4})) for text in KINDS}
    assert found == KINDS
    assert device_kind_of(abstract_mesh_on(None, {"x": 4})) == ""
    assert platform_of(abstract_mesh_on(find_target("v5p:2x2x1"), {"x": 4})) == "tpu"


@pytest.mark.parametrize(
    "text, wraps",
    [
        ("v5p:4x4x8", (True, True, True)),
        ("v5p:2x2x4", (False, False, False)),
        ("v6e:8x16", (False, True)),
        ("v6e:8x8", (False, False)),
    ],
)
def test_rings_need_whole_cubes_or_the_longest_dim(text, wraps):
    assert find_target(text).wraps == wraps


@pytest.mark.parametrize(
    "text, slices, message",
    [
        (
            "v9:2x2",
            1,
            (
                "target 'v9:2x2': unknown chip `v9`; known: `v4`, `v5e`, `v5p`, `v6e`, "
                "`tpu7x`, `a100`, `h100`, `h200`, `b200`, `cpu`"
            ),
        ),
        ("h10:8", 1, "target 'h10:8': unknown chip `h10`; did you mean `h100`?; known: `v4`,"),
        ("v5p", 1, f"target 'v5p': after the chip comes how many of them, {LEGAL_V5P}"),
        ("v5p:4x", 1, "target 'v5p:4x': after the chip comes"),
        ("v5p:4x4", 1, f"target 'v5p:4x4': v5p has no topology 4x4; legal are {LEGAL_V5P}"),
        ("v5p:3x4x4", 1, "v5p has no topology 3x4x4"),
        ("v5p:4x4x6", 1, "v5p has no topology 4x4x6"),
        ("v5p:16x32x32", 1, "v5p has no topology 16x32x32"),
        (
            "v6e:32x32",
            1,
            (
                "v6e has no topology 32x32; legal are 2 dims of at most 16, x and y even, at "
                "most 256 chips, such as `v6e:2x2`"
            ),
        ),
        (
            "h100:16",
            1,
            "legal are 1 to 8 in one node, `h100:8`, or whole nodes, `h100:8x4` for 4 of them",
        ),
        ("h100:4x2", 1, "h100 has no topology 4x2"),
        ("cpu:2x2", 1, "legal are 1 to 1,024 virtual devices, `cpu:8`"),
        (
            "h100:8",
            2,
            "target 'h100:8': 2 slices; TPUs have 1 or more, nodes of GPUs are written `h100:8x4`",
        ),
        ("v5p:4x4x4", 0, "target 'v5p:4x4x4': 0 slices; TPUs have 1 or more"),
    ],
)
def test_errors_say_what_is_legal(text, slices, message):
    with pytest.raises(MeshDSLError) as e:
        find_target(text, slices=slices)
    assert message in str(e.value)


def test_rest_is_what_the_target_leaves():
    assert fit_mesh(find_target("v5p:4x4x4"), {"data": "rest", "model": 4}) == {
        "data": 16,
        "model": 4,
    }
    assert fit_mesh(find_target("v5p:4x4x4", slices=2), {"data": "rest", "model": 4}) == {
        "data": 32,
        "model": 4,
    }
    assert fit_mesh(find_target("h100:8"), {"data": 2, "model": 4}) == {"data": 2, "model": 4}


@pytest.mark.parametrize(
    "text, sizes, is_of, use",
    [
        (
            "v5p:4x4x4",
            {"data": 8, "model": 4},
            "mesh data=8 model=4 is of 32 devices",
            "data=16 model=4, data=8 model=8 or data=4 model=16",
        ),
        (
            "v5p:4x4x4",
            {"data": "rest", "model": 3},
            "mesh data=rest model=3 is of a multiple of 3 devices",
            "data=16 model=4, data=32 model=2 or data=8 model=8",
        ),
        ("v5p:4x4x4", {"data": 128}, "mesh data=128 is of 128 devices", "data=64"),
        (
            "tpu7x:4x4x2",
            {"data": 32, "model": 1},
            "mesh data=32 model=1 is of 32 devices",
            "data=64 model=1, data=32 model=2 or data=16 model=4",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_told_which_do(text, sizes, is_of, use):
    with pytest.raises(MeshDSLError) as e:
        fit_mesh(find_target(text), sizes, "layout fsdp.toml")
    assert str(e.value) == f"layout fsdp.toml: {is_of} and {text} has 64; use {use}"


def test_a_layout_without_a_mesh_fits_one_device():
    assert fit_mesh(find_target("v5e:1x1"), {}) == {}
    with pytest.raises(
        MeshDSLError, match="^mesh: a mesh without axes is of 1 device and v5p:4x4x4 has 64$"
    ):
        fit_mesh(find_target("v5p:4x4x4"), {})


@pytest.mark.parametrize("devices", [1, 7, 64, 96, 8192])
def test_proposed_meshes_are_of_the_right_size(devices):
    proposed = propose_meshes({"replica": 1, "data": 8, "model": 4}, devices)
    assert proposed and all(math.prod(mesh.values()) == devices for mesh in proposed)
