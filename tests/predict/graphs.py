"""Graphs of small functions, for the tests of this folder."""

import jax
import jax.numpy as jnp

from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.kernels.kernels import Graph
from meshdsl.program.program import Program
from tests.helpers import layout

KIB = 1024


def array(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def kib(n: int) -> jax.ShapeDtypeStruct:
    """A float32 array of `n` KiB."""
    return array(n, 256)


def graph(function, *args, donated=(), mesh=None, **how) -> Graph:
    """The kernels of a JAX function that was not made by `lower`; `how` is of `kernel_graph`."""
    traced = jax.jit(function).trace(*args)
    sizes = dict(mesh.shape) if mesh else {"data": 1}
    program = Program([], traced.jaxpr, layout(mesh=sizes), sizes, args, donated)
    return kernel_graph(program, **how)


def names(graph_or_kernels) -> list[str]:
    """What begins each kernel."""
    return [k.primitive for k in getattr(graph_or_kernels, "kernels", graph_or_kernels)]
