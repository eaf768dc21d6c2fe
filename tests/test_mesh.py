"""Device meshes."""

import jax
import pytest

import meshdsl as md
from meshdsl.mesh import axis_sizes

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
    assert list(mesh.devices.flat) == jax.devices()[:4] and dict(mesh.shape) == {"data": 2, "model": 2}
    assert md.make_mesh(md.Layout(mesh={"data": "rest"})).size == 8
    assert md.make_mesh({"data": "rest"}, jax.devices()[:3]).size == 3


def test_a_mesh_without_axes_is_one_device():
    mesh = md.make_mesh(md.Layout())
    assert mesh.size == 1
    x = md.tensor([1.0, 2.0], md.Dim("a", 2))
    assert md.sum(md.lower(lambda x: x * 2.0, md.Layout())(x)).item() == 6
