"""Device meshes."""

import re
from contextlib import nullcontext

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl import MeshDSLError
from meshdsl.machine import find_target, fit_mesh
from meshdsl.machine.network import device_coordinates
from meshdsl.mesh import axis_sizes, check_slices

SIZES = {
    "all named": ({"data": 2, "model": 4}, 8, {"data": 2, "model": 4}),
    "rest": ({"data": "rest", "model": 2}, 8, {"data": 4, "model": 2}),
    "rest of one": ({"data": "rest", "model": 8}, 8, {"data": 1, "model": 8}),
    "rest alone": ({"data": "rest"}, 1, {"data": 1}),
    "no axes": ({}, 1, {}),
}


@pytest.mark.parametrize("sizes, devices, expected", SIZES.values(), ids=SIZES)
def test_rest_is_what_is_left(sizes, devices, expected):
    assert axis_sizes(sizes, devices) == expected


def test_a_mesh_takes_the_first_devices_that_it_needs():
    mesh = md.make_mesh({"data": 2, "model": 2})
    assert list(mesh.devices.flat) == jax.devices()[:4] and dict(mesh.shape) == {
        "data": 2,
        "model": 2,
    }
    assert md.make_mesh(md.Layout(mesh={"data": "rest"})).size == 8
    assert md.make_mesh({"data": "rest"}, jax.devices()[:3]).size == 3


def test_a_mesh_without_axes_is_one_device():
    mesh = md.make_mesh(md.Layout())
    assert mesh.size == 1
    x = md.tensor([1.0, 2.0], md.Dim("a", 2))
    assert md.sum(md.lower(lambda x: x * 2.0, md.Layout())(x)).item() == 6


SLICES = {
    "mesh": {"data": "rest", "model": 2, "dcn": {"replica": 2}},
    "layout": {"rules": ["batch -> replica, data"], "parameters": ["d_model -> data"]},
}


def test_axes_across_slices_are_the_most_major_ones_of_the_mesh():
    layout = md.Layout.from_dict(SLICES)
    assert dict(layout.mesh) == {"replica": 2, "data": "rest", "model": 2} and layout.dcn == (
        "replica",
    )
    assert layout.mesh_table == SLICES["mesh"]
    assert dict(md.make_mesh(layout).shape) == {
        "replica": 2,
        "data": 2,
        "model": 2,
    }  # one process: as if there were no slices
    assert layout.with_mesh({"replica": 4, "data": 2}).dcn == ("replica",)
    with pytest.raises(MeshDSLError, match="no axis `replica` in the mesh"):
        layout.with_mesh({"data": 8})


@pytest.mark.parametrize(
    "count, what, message",
    [
        (1, "slices", None),
        (2, "slices", None),
        (4, "processes", None),
        (4, "slices", "layout, mesh.dcn: replica=2 is of 2 slices, and there are 4 slices; use 4"),
        (
            3,
            "nodes",
            (
                "layout, mesh.dcn: replica=2 is of 2 slices, and there are 3 nodes; use a "
                "number that divides 3"
            ),
        ),
    ],
)
def test_the_axes_across_slices_are_as_many_as_the_slices(count, what, message):
    layout = md.Layout.from_dict(SLICES)
    with pytest.raises(MeshDSLError, match=re.escape(message)) if message else nullcontext():
        check_slices(layout, {"replica": 2, "data": 2, "model": 2}, count, what)


@pytest.mark.parametrize(
    "name, target, slices", [("slices of TPUs", "v5e:2x2", 2), ("nodes of GPUs", "h100:8x2", 1)]
)
def test_each_slice_holds_one_part_of_an_axis_across_them(name, target, slices):
    machine = find_target(target, slices=slices)
    at = device_coordinates(machine, fit_mesh(machine, md.Layout.from_dict(SLICES).mesh))
    assert [np.unique(at[i, ..., 0]).tolist() for i in range(2)] == [[0], [1]]
