"""What is timed on a machine: products, layers, passes over memory, tiny kernels and collectives.

Arrays of accelerators are larger than those of virtual devices, so that they keep the device busy.
A turn of a loop has many tiny kernels there, because the host begins each turn. Layers and fresh
memory are timed on virtual devices alone: an accelerator's memory is a pool that is there already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.calibration.timing import Subject
from meshdsl.lowering import collectives

OPERATIONS = ("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute")
# Rows, contracted dim and columns of products, and bytes of an array that is passed over.
_PRODUCTS = {"cpu": ((256, 256, 256), (512, 256, 1024), (1024, 128, 512))}
_LARGE_PRODUCTS = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 4096, 4096))
# Rows, width, heads and their width of layers.
_LAYERS = 4
_LAYER = (256, 256, 8, 64)
_PASSED = {"cpu": 2**21}
_LARGE_PASSED = 2**28
# Tiny kernels in a turn of a loop.
_KERNELS = {"cpu": 1}
_MANY_KERNELS = 32
# Bytes of memory that is taken anew: more than an allocator keeps from call to call.
_FRESH = 2**26
# Bytes of collectives, from small to large.
_LEAST, _MOST, SIZES = 2**10, 2**24, 12


def computations(kind: str) -> Iterator[Subject]:
    """Products, layers, passes over memory and a tiny kernel, for devices of a `kind`."""
    for dtype in (jnp.float32, jnp.bfloat16):
        for m, k, n in _PRODUCTS.get(kind, _LARGE_PRODUCTS):
            yield Subject(
                "product",
                jnp.dtype(dtype).name,
                _two_products,
                ((m, k), (k, n), (n, k)),
                dtype,
                size=4.0 * m * k * n,
            )
    count = _PASSED.get(kind, _LARGE_PASSED) // 4
    for name, body, arrays, width in _PASSES:
        shapes = ((count,),) * arrays
        yield Subject("pass", name, body, shapes, size=width * count, elements=count)
    kernels = _KERNELS.get(kind, _MANY_KERNELS)
    tiny = partial(_scaled_often, times=kernels)
    yield Subject("kernel", "2,048 elements", tiny, ((2048,),), size=kernels)
    if kind == "cpu":
        yield from _with_fresh_memory()


def _with_fresh_memory() -> Iterator[Subject]:
    """Layers that keep more or less for their gradients, and a call whose result is a copy."""
    rows, model, heads, inside = _LAYER
    hidden = heads * inside
    moved = rows * model + model * hidden + rows * hidden  # by a product of a layer
    # Two products of a layer forward, three for its gradients, and one that is done again.
    for name, products, kept, again in (
        ("kept", 5, rows * (model + hidden), False),
        ("recomputed", 6, rows * model, True),
    ):
        yield Subject(
            "layers",
            name,
            partial(_trained, again=again),
            (
                (_LAYERS, model, heads, inside),
                (_LAYERS, heads, inside, model),
                (8, rows // 8, model),
            ),
            size=2.0 * products * _LAYERS * rows * model * hidden,
            elements=products * _LAYERS * moved,
            kept=4 * _LAYERS * kept,
        )
    yield Subject("fresh", "a copy", _scaled, ((_FRESH // 4,),), size=_FRESH)


def _two_products(x: Any, up: Any, down: Any) -> Any:
    return jnp.dot(jnp.dot(x, up), down)


def _trained(up: Any, down: Any, x: Any, again: bool) -> Any:
    """Weights of layers in a stack, after a step of gradient descent through all of them.

    Args:
      again: whether the backward pass computes again what is inside of a layer.
    """

    def loss(up: Any) -> Any:
        def layer(x: Any, weights: Any) -> tuple[Any, None]:
            hidden = jnp.einsum("bld,dhk->bhlk", x, weights[0])
            return x + jnp.einsum("bhlk,hkd->bld", jax.nn.relu(hidden), weights[1]), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(layer) if again else layer, x, (up, down))[0])

    return up - 1e-6 * jax.grad(loss)(up)


def _scaled(x: Any) -> Any:
    return x * 0.999 + 0.001


def _scaled_often(x: Any, times: int) -> Any:
    """What so many kernels make of `x`, which the compiler does not fuse."""
    for _ in range(times):
        x = jax.lax.optimization_barrier(_scaled(x))
    return x


def _updated(x: Any, first: Any, second: Any, gradient: Any) -> Any:
    """What Adam makes of a parameter."""
    mean, square = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient * gradient
    return x - 0.001 * mean / (jnp.sqrt(square) + 1e-8)


# Element-wise programs: the arrays that they read, and the bytes of an element that they move.
_PASSES = (
    ("scale", _scaled, 1, 8),
    ("add", lambda x, y: 0.5 * x + y, 2, 12),
    ("tanh", jnp.tanh, 1, 8),
    ("exp", lambda x: jnp.exp(-x), 1, 8),
    ("adam", _updated, 4, 20),
)


def meshes(devices: int, nodes: int) -> dict[str, dict[str, int]]:
    """For each form of a group, `8` or `4x2`, a mesh of which the axes `n` and `i` make groups."""
    inside = devices // nodes
    found = {}
    for across in (a for a in range(1, nodes + 1) if nodes % a == 0):
        for within in (b for b in range(1, inside + 1) if inside % b == 0):
            if across * within > 1:
                form = f"{within}x{across}" if across > 1 else str(within)
                found[form] = {
                    "o": nodes // across,
                    "n": across,
                    "p": inside // within,
                    "i": within,
                }
    return found


def sizes() -> list[int]:
    """Bytes of collectives in the order of their worth: far apart first, then what lies between.

    Where a network is slow, the smaller ones tell which larger ones would take too long.
    """
    step = math.log2(_MOST / _LEAST) / (SIZES - 1)
    every = [round(_LEAST * 2 ** (step * i)) for i in range(SIZES)]
    first = [0, SIZES // 2, SIZES - 1, SIZES // 4, 3 * SIZES // 4]
    return [every[i] for i in (*first, *(i for i in range(SIZES) if i not in first))]


def collective(operation: str, form: str, mesh: dict[str, int], bytes: int) -> Subject:
    """A collective in groups of a form; `bytes` are the larger of operand and result."""
    axes = tuple(axis for axis in ("n", "i") if mesh[axis] > 1)
    size = math.prod(mesh[axis] for axis in axes)
    count = max(bytes // (4 * size), 1)  # elements of a part
    body = partial(_BODIES[operation], axes=axes, size=size, count=count)
    local = count if operation == "all_gather" else count * size
    return Subject(operation, form, body, ((local,),), mesh=mesh, size=4 * count * size)


def _summed(x: Any, axes: tuple[str, ...], size: int, count: int) -> Any:
    return collectives.vary(collectives.psum(x, axes) * (1 / size), axes)


def _gathered(x: Any, axes: tuple[str, ...], size: int, count: int) -> Any:
    found = collectives.all_gather(x, axes, 0, varies=True)
    # The whole is made, and a part of it is the operand of the next turn.
    return jax.lax.dynamic_slice(jax.lax.optimization_barrier(found), (0,), (count,))


def _scattered(x: Any, axes: tuple[str, ...], size: int, count: int) -> Any:
    found = collectives.psum_scatter(x, axes, 0)
    return jax.lax.dynamic_update_slice(x, found * (1 / size), (0,))


def _exchanged(x: Any, axes: tuple[str, ...], size: int, count: int) -> Any:
    return collectives.all_to_all(x.reshape(size, count), axes, 0, 0).ravel()


def _passed_on(x: Any, axes: tuple[str, ...], size: int, count: int) -> Any:
    return collectives.ppermute(x, axes, [(i, (i + 1) % size) for i in range(size)])


_BODIES = {
    "psum": _summed,
    "all_gather": _gathered,
    "psum_scatter": _scattered,
    "all_to_all": _exchanged,
    "ppermute": _passed_on,
}


def ordered(devices: Sequence[Any]) -> list[Any]:
    """The devices, those of each process together."""
    return sorted(devices, key=lambda device: (device.process_index, device.id))
