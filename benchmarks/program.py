"""One step of an implementation, in the form that the benchmarks measure."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Program:
    """One step of one implementation, which computes loss and gradients.

    Attributes:
      make: returns the step as a jitted function that was never traced, so that tracing can be
        measured again.
      arguments: makes the step's arguments from plain parameters and inputs, arrays or shapes.
      plain: makes plain loss and gradients from what the step returns.
    """

    make: Callable
    arguments: Callable
    plain: Callable = lambda loss, gradients: (loss, gradients)


def put(value, sharding: NamedSharding):
    """The value on the devices of a sharding; of a shape, one with that sharding."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    return jax.device_put(value, sharding)


def place(mesh: Mesh, specs: Mapping[str, PartitionSpec], input_spec: PartitionSpec) -> Callable:
    """A function that puts plain parameters and inputs on a mesh, for `Program.arguments`."""

    def arguments(parameters, x):
        placed = {
            name: put(value, NamedSharding(mesh, specs[name])) for name, value in parameters.items()
        }
        return placed, put(x, NamedSharding(mesh, input_spec))

    return arguments
