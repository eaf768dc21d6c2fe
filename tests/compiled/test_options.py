"""The options that training and compiling share."""

import jax
import pytest

import meshdsl as md
from meshdsl.compiled.options import default_options, parse_options
from meshdsl.mesh import abstract_mesh


def test_cpus_and_meshes_without_devices_get_none():
    assert default_options(md.make_mesh({"data": 8}, jax.devices())) == {}
    assert default_options(abstract_mesh({"data": 8})) == {}


def test_options_are_given_as_key_and_value():
    assert parse_options(["xla_a=true", "xla_b=a=b"]) == {"xla_a": "True", "xla_b": "a=b"}
    with pytest.raises(md.MeshDSLError, match="option `xla_a`: expected KEY=VALUE, for example"):
        parse_options(["xla_a"])
