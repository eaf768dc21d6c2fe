"""Compiles small programs for a TPU and prints, as JSON, what libtpu says of their memory."""

import json

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.machine import find_target
from meshdsl.predict.compiler.topology import compile_only, target_devices
from tests.predict.steps import RULES, shapes, step


def memory(function, *args):
    analysis = function.lower(*args).compile().memory_analysis()
    return {"arguments": analysis.argument_size_in_bytes, "peak": analysis.peak_memory_in_bytes}


def main():
    compile_only()
    jax.config.update("jax_disable_most_optimizations", False)
    devices = target_devices(find_target("v5p:2x2x1"))
    made, args = step(md.make_mesh(RULES.mesh, devices))
    found = {"step": memory(made, *args)}
    alone = jax.sharding.SingleDeviceSharding(devices[0])
    arrays = [jax.ShapeDtypeStruct(shape, dtype, sharding=alone) for shape, dtype in shapes()]
    found["arrays"] = memory(jax.jit(lambda *x: jnp.ravel(x[0])[0], keep_unused=True), *arrays)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
