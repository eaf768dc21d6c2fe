"""Prints where `make_mesh` puts the devices of real TPU topologies, and the compiler's rings.

test_coordinates.py runs it in a process of its own.
"""

import json
import re
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.machine import find_target
from meshdsl.predict.compiler.topology import compile_only


def as_jax(sizes, devices, mesh):
    """Whether `jax.make_mesh` makes the same `mesh`.

    None where it makes none, because it would have to split a dim of the torus.
    """
    try:
        made = jax.make_mesh(tuple(sizes.values()), tuple(sizes), devices=devices)
        return bool((made.devices == mesh).all())
    except NotImplementedError:
        return None


def place(text, slices, sizes):
    target = find_target(text, slices=slices)
    devices = topologies.get_topology_desc(**target.topology).devices
    mesh = md.make_mesh(sizes, devices).devices
    return {
        "kind": devices[0].device_kind,
        "places": [
            [getattr(d, "slice_index", None) or 0, *d.coords, d.core_on_chip] for d in mesh.flat
        ],
        "same": as_jax(sizes, devices, mesh) if sizes and slices == 1 else None,
    }


def rings(text, sizes, axis):
    """The dims of the torus in each ring of a sum and a scatter over `axis`: `["4 4"]`."""
    mesh = md.make_mesh(sizes, topologies.get_topology_desc(**find_target(text).topology).devices)
    x = jax.ShapeDtypeStruct(
        (4096, 2048), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec())
    )
    found = {}
    for name, collective, out in (
        ("psum", jax.lax.psum, PartitionSpec()),
        (
            "psum_scatter",
            lambda x, axis: jax.lax.psum_scatter(x, axis, tiled=True),
            PartitionSpec(axis),
        ),
    ):
        f = jax.shard_map(
            lambda x, c=collective: c(x, axis),
            mesh=mesh,
            in_specs=PartitionSpec(),
            out_specs=out,
            check_vma=False,
        )
        compiled = jax.jit(f).lower(x).compile().as_text()
        found[name] = sorted(
            set(re.findall(r"Strategy\w*\{colors:\d+ phases:\d+ cores:\{([\d ]+)\}", compiled))
        )
    return found


def main():
    compile_only()
    jax.config.update("jax_disable_most_optimizations", False)
    asked = json.load(sys.stdin)
    json.dump(
        {
            "places": [place(*case) for case in asked["places"]],
            "rings": [rings(*case) for case in asked["rings"]],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
