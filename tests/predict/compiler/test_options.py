"""The options that training and compiling share."""

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import meshdsl as md
from meshdsl.machine import chips
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.compiler.options import default_options, parse_options


def test_cpus_and_meshes_without_devices_get_none():
    assert default_options(md.make_mesh({"data": 8}, jax.devices())) == {}
    assert default_options(abstract_mesh({"data": 8})) == {}


@dataclass(frozen=True)
class Device:
    """As much of a device as is read."""

    id: int
    slice_index: int
    device_kind: str = "TPU v5"
    platform: str = "tpu"
    process_index: int = 0


@pytest.mark.parametrize(
    "shape, slices, scatters",
    [((8,), 1, False), ((2, 4), 1, True), ((2, 4), 2, False), ((2, 2, 2), 2, True), ((), 1, False)],
)
def test_on_v5p_scatters_have_an_option_unless_an_axis_is_a_whole_slice(shape, slices, scatters):
    count = int(np.prod(shape))
    devices = np.array([Device(i, i * slices // count) for i in range(count)], dtype=object)
    names = ("a", "b", "c")[: len(shape)]
    options = default_options(Mesh(devices.reshape(shape), names))
    assert "xla_tpu_prefer_async_allgather_to_allreduce" in options
    scattering = "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter"
    assert (scattering in options) == scatters


def test_a_chip_of_ones_own_has_options_of_its_own():
    mesh = md.make_mesh({"data": 8}, jax.devices())
    assert default_options(mesh, replace(chips()["v4"], options={"xla_a": "1"})) == {"xla_a": "1"}


def test_options_are_given_as_key_and_value():
    assert parse_options(["xla_a=true", "xla_b=a=b"]) == {"xla_a": "True", "xla_b": "a=b"}
    with pytest.raises(md.MeshDSLError, match="option `xla_a`: expected KEY=VALUE, for example"):
        parse_options(["xla_a"])
