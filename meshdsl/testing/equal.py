"""Whether two Tensors, arrays or trees of them are equal, up to the order of sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl import transpose
from meshdsl.tensor import is_tensor

TOLERANCE = 1e-5


def check(holds: bool, why: str) -> None:
    """Raise an AssertionError that says why, unless something holds.

    To an `assert` of ours pytest would add our own code, where it knows us as a plugin.
    """
    if not holds:
        raise AssertionError(why)


def assert_equal(
    found, expected, what: str = "result", tolerance: float = TOLERANCE, floor: float = 1e-3
) -> None:
    """Two pytrees of Tensors and arrays have the same dims, as sets, the same dtypes and values.

    Args:
      what: what an error calls the tree.
      tolerance, floor: as in `difference`.

    Raises:
      AssertionError: the trees or two of their leaves differ; it names the first.
    """
    for name, a, b in pairs(found, expected, what):
        why = difference(a, b, tolerance, floor)
        check(not why, f"{name} {why}")


def difference(found, expected, tolerance: float = TOLERANCE, floor: float = 1e-3) -> str:
    """In what two Tensors or arrays differ: dims, as sets, dtype or values; empty where in nothing.

    Args:
      tolerance: by how much floating-point numbers may differ, as `distance` measures it.
      floor: of `distance`.
    """
    if is_tensor(found) != is_tensor(expected):
        a, b = ("a Tensor" if is_tensor(x) else "an array" for x in (found, expected))
        return f"is {a} instead of {b}"
    if is_tensor(expected):
        if set(found.dims) != set(expected.dims):
            return f"has the dims {found.dims} instead of {expected.dims}"
        found, expected = transpose(found, expected.dims).array, expected.array
    a, b = jnp.result_type(found), jnp.result_type(expected)
    if a != b:
        return f"is of {a} instead of {b}"
    if jnp.issubdtype(b, jax.dtypes.prng_key):
        found, expected = jax.random.key_data(found), jax.random.key_data(expected)
    if jnp.issubdtype(b, jnp.inexact):
        gap = distance(found, expected, floor)
        return "" if gap <= tolerance else f"differs by {gap:.2g}, more than {tolerance:.2g}"
    return "" if np.array_equal(found, expected) else "differs"


def distance(found, expected, floor: float = 1e-3) -> float:
    """Norm of the difference over the norm of `expected`, or over `floor` where that is larger.

    Infinite where elements that are not finite differ.
    """
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    found, expected = (np.asarray(x).astype(wide) for x in (found, expected))
    if found.shape != expected.shape:
        return np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return np.inf
    gap, norm = np.linalg.norm(found[finite] - expected[finite]), np.linalg.norm(expected[finite])
    return float(gap / max(norm, floor))


def pairs(found, expected, what: str) -> Iterator[tuple[str, Any, Any]]:
    """The leaves of two trees that are built alike, each pair with a name: `result['loss']`."""
    named, tree = jax.tree_util.tree_flatten_with_path(expected, is_leaf=is_tensor)
    others, other_tree = jax.tree.flatten(found, is_leaf=is_tensor)
    check(len(named) == len(others), f"{what}: {other_tree} instead of {tree}")
    for a, (path, b) in zip(others, named, strict=True):
        yield what + jax.tree_util.keystr(path), a, b
