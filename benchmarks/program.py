"""What the runners need of an implementation."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Program:
    """One step of one implementation, which gives loss and gradients.

    make: returns the step as a jitted function that was never traced, so that tracing can be measured again.
    arguments: makes the step's arguments of the plain parameters and inputs: arrays or shapes.
    plain: makes a plain loss and plain parameters of what the step returns.
    """

    make: Callable
    arguments: Callable
    plain: Callable = lambda loss, gradients: (loss, gradients)


def put(value, sharding: NamedSharding):
    """An array on its devices, or the shape of one there."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    return jax.device_put(value, sharding)


def place(mesh: Mesh, specs: Mapping[str, PartitionSpec], input_spec: PartitionSpec) -> Callable:
    """Makes arguments of plain parameters and inputs by putting them on a mesh."""

    def arguments(parameters, x):
        placed = {
            name: put(value, NamedSharding(mesh, specs[name])) for name, value in parameters.items()
        }
        return placed, put(x, NamedSharding(mesh, input_spec))

    return arguments
