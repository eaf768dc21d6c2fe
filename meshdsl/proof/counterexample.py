"""Where a program that could not be proved computes something else than one device, in numbers.

Both programs are run, on random arguments, on one CPU. Of each axis of the mesh there are two
devices; and where results differ, two along one axis and one along all others, if these differ too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.mesh import abstract_mesh
from meshdsl.program.program import Program
from meshdsl.proof.simulated import evaluated

_LARGEST = 1 << 23  # numbers in all arguments
_SAME = 1e-3  # of the largest number of a result: as much as rounding may make of it
_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

Orders = Callable[[Program, Program], Sequence[Sequence[int] | None]]


def difference(on: Callable[[Any], Any], sizes: Mapping[str, int], orders: Orders) -> str:
    """Where a program and that of one device differ in numbers, in words.

    The words are empty if they cannot be run: they are too large, or have kernels.

    Args:
      on: gives the program on a mesh without devices.
      sizes: of the mesh axes.
      orders: for each result its dims in the order of those of one device; None for the same.
    """
    live = [axis for axis, size in sizes.items() if size > 1]
    two = lambda axes: {axis: 2 if axis in axes else 1 for axis in sizes}
    reference = on(abstract_mesh(sizes, "cpu")).reference()
    if sum(math.prod(aval.shape) for aval in reference.jaxpr.in_avals) > _LARGEST:
        return ""
    args = [_drawn(aval, i) for i, aval in enumerate(reference.jaxpr.in_avals)]
    found, wanted = "", _run(reference, args)
    if wanted is None:
        return found
    for few in (two(live), *(two([axis]) for axis in live if len(live) > 1)):
        try:
            program = on(abstract_mesh(few, "cpu")).program()
            results = _run(program, args)
        except MeshDSLError:
            continue  # the layout may not fit so few devices
        if results is None:
            break
        where = " ".join(f"{axis}={size}" for axis, size in few.items())
        words = _worst(program, orders(reference, program), wanted, results)
        if words:
            found = f"on {where}, with random arguments, {words}"
        elif not found:
            return f"with random arguments all results are the same on {where}"
    return found


def _run(program: Program, args: Sequence[Any]) -> list[Any] | None:
    """The results; None for a program that cannot be run so, such as one with a kernel."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        try:
            lowered = jax.jit(partial(evaluated, program.jaxpr)).lower(args)
            return lowered.compile(_FAST)(args)
        except Exception:  # whatever it is: what is proved does not depend on it
            return None


def _worst(
    program: Program,
    orders: Sequence[Sequence[int] | None],
    wanted: Sequence[Any],
    found: Sequence[Any],
) -> str:
    """The result that differs most, with its numbers; empty if none does."""
    most, words = _SAME, ""
    for result, order, a, b in zip(program.results, orders, wanted, found, strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.extended) or not a.size:
            continue
        a = np.asarray(a, float)
        b = np.asarray(b, float).transpose(order or range(a.ndim))
        a, b = (np.where(np.isnan(x), 0, x) for x in (a, b)) if _nans(a, b) else (a, b)
        apart = np.abs(a - b) / max(float(np.abs(a).max()), 1e-30)
        if not apart.max() <= most:  # a NaN in one of them is a difference too
            most = apart.max()
            at = np.unravel_index(int(apart.argmax()), apart.shape)
            place = f"[{', '.join(map(str, at))}]" if at else ""
            words = f"`{result.name}`{place} is {b[at]:.6g}, and {a[at]:.6g} on one device"
    return words


def _nans(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether NaNs are in the same places: an optimizer takes roots, of random numbers here."""
    return bool((np.isnan(a) == np.isnan(b)).all())


def _drawn(aval: Any, number: int) -> Any:
    """A random argument, small and of either sign, so that no softmax is all but decided by it."""
    random = np.random.default_rng(number)
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return jax.random.wrap_key_data(jax.random.key_data(jax.random.key(number)))
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        return jnp.asarray(random.normal(0, 0.3, aval.shape), aval.dtype)
    return jnp.asarray(random.integers(0, 2, aval.shape), aval.dtype)
