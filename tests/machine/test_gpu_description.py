"""The description of GPUs for XLA's compiler."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.machine import chips, find_target
from meshdsl.machine.gpu_description import gpu_target_config

GPUS = ["a100", "h100", "h200", "b200"]


def test_what_the_compiler_is_told():
    text = gpu_target_config(chips()["h100"])
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in text
    assert (
        "cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }"
        in text
    )
    for field in (
        "core_count: 132",
        "clock_rate_ghz: 1.98",
        "memory_bandwidth: 3352000000000",
        "shared_memory_per_block_optin: 232448",
    ):
        assert f"  {field}\n" in text
    assert "source" not in text


@pytest.mark.parametrize(
    "text, topology", [("h100:8", "1x1x8"), ("h100:8x4", "1x4x8"), ("b200:2", "1x1x2")]
)
def test_nodes_are_processes(text, topology):
    assert find_target(text).topology["topology"] == topology


def test_a_gpu_without_a_description_says_what_to_add():
    h100 = chips()["h100"]
    with pytest.raises(MeshDSLError) as e:
        gpu_target_config(replace(h100, name="mine", compiler={"active_links": 18}))
    assert "chip `mine`: cannot be compiled for; add `[mine.compiler]` with `compute_cap" in str(e)
    wrong = h100.compiler | {"compute_capability": 9}
    with pytest.raises(MeshDSLError, match=r'is a text such as "9.0a", not 9'):
        gpu_target_config(replace(h100, compiler=wrong))


PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec as P
import meshdsl as md
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.machine import find_target
for name in json.load(sys.stdin):
    target = find_target(f"{name}:8")
    mesh = md.make_mesh({"data": 8}, topologies.get_topology_desc(**target.topology).devices)
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    f = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    text = jax.jit(f).lower(x).compile().as_text()
    print(name, *[(c.operation, c.axes, c.bytes) for c in from_hlo(text, mesh.shape)])
"""


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="jax[cuda13] is not installed"
)
def test_a_sum_over_eight_gpus_compiles():
    env = os.environ | {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, input=json.dumps(GPUS), env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} ('psum', ('data',), 256)" for name in GPUS]
