"""Prints where `make_mesh` puts the devices of real TPU topologies.

test_coordinates.py runs it in a process of its own.
"""

import json
import sys

import jax
from jax.experimental import topologies

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


def main():
    compile_only()
    asked = json.load(sys.stdin)
    json.dump([place(*case) for case in asked], sys.stdout)


if __name__ == "__main__":
    main()
