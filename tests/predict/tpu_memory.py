"""Compiles small programs for a TPU and prints, as JSON, what libtpu says of their memory.

A process of its own, for libtpu wants its environment early.
"""

import json

import jax
import jax.numpy as jnp
from jax.experimental import topologies

import meshdsl as md
from tests.predict.steps import RULES, shapes, step


def memory(function, *args):
    analysis = function.lower(*args).compile().memory_analysis()
    return {"arguments": analysis.argument_size_in_bytes, "peak": analysis.peak_memory_in_bytes}


def main():
    jax.config.update("jax_disable_most_optimizations", False)
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5p:2x2x1").devices
    made, args = step(md.make_mesh(RULES.mesh, devices))
    found = {"step": memory(made, *args)}
    alone = jax.sharding.SingleDeviceSharding(devices[0])
    arrays = [jax.ShapeDtypeStruct(shape, dtype, sharding=alone) for shape, dtype in shapes()]
    found["arrays"] = memory(jax.jit(lambda *x: jnp.ravel(x[0])[0], keep_unused=True), *arrays)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
