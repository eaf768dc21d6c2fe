"""What one device has of arrays that are global: those outside of a `shard_map`.

Each dim of a global array is divided into as many parts as the shardings say. They are known for
arguments, results of a `shard_map` and `sharding_constraint`s, and passed on from operands to
results as XLA would. Padding counts: a dim that does not divide is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from meshdsl.predict.kernels.equations import Value, view


def device_value(aval, parts: tuple[int, ...] | None) -> Value:
    """What one device has of an array.

    Args:
      aval: the array's type in the jaxpr.
      parts: into how many parts each of its dims is divided; None if it is local already.
    """
    shape = tuple(aval.shape) if parts is None else part_shape(aval.shape, parts)
    size = math.prod(shape)
    host = getattr(aval, "memory_space", None) == jax.memory.Space.Host
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # random keys, of several words each
        words = aval.dtype.itemsize // 4
        return Value((*shape, words), "uint32", size * aval.dtype.itemsize, parts)
    return Value(shape, aval.dtype.name, size * aval.dtype.itemsize, parts, host=host)


def part_shape(shape: Sequence[int], parts: Sequence[int]) -> tuple[int, ...]:
    """The shape of one part of an array whose dims are divided into so many `parts`."""
    return tuple(-(-n // p) for n, p in zip(shape, parts, strict=True))


def as_local(value: Value, aval) -> Value:
    """A global value as an input of a `shard_map`, where its type is `aval`."""
    return view(value, device_value(aval, None))


def as_global(value: Value, local, aval) -> Value:
    """A local value as a result of a `shard_map`.

    Its type is `local` inside, where the value may have other dims (see `flat_jaxpr`), and `aval`
    outside.
    """
    parts = tuple(-(-n // m) if m else 1 for n, m in zip(aval.shape, local.shape, strict=True))
    return view(value, device_value(aval, parts))


def one_part(aval) -> tuple[int, ...]:
    """The parts of an array of which every device has the whole."""
    return (1,) * len(aval.shape)


def result_parts(eqn, inputs: Sequence[Value | None], out) -> tuple[int, ...]:
    """Into how many parts each dim of a global result is divided, as the operands tell.

    Args:
      eqn: the equation of the jaxpr.
      inputs: its operands; None for a literal.
      out: the type of the result.
    """
    name = eqn.primitive.name
    divided = [
        (v.aval.shape, i.parts)
        for v, i in zip(eqn.invars, inputs, strict=True)
        if i is not None and i.parts is not None
    ]
    same = [parts for shape, parts in divided if shape == out.shape]
    if same and name not in ("transpose", "dot_general"):
        return max(same, key=math.prod)
    if not divided:
        return one_part(out)
    (shape, parts), *_ = divided
    if name == "transpose":
        return tuple(parts[i] for i in eqn.params["permutation"])
    if name == "broadcast_in_dim":
        found = dict(zip(eqn.params["broadcast_dimensions"], parts, strict=True))
        return tuple(found.get(i, 1) if out.shape[i] > 1 else 1 for i in range(len(out.shape)))
    if name.startswith(("reduce_", "squeeze", "argm")):
        gone = eqn.params.get("axes", eqn.params.get("dimensions", ()))
        gone = {position % len(shape) for position in gone}
        return tuple(p for i, p in enumerate(parts) if i not in gone)
    if name == "dot_general" and len(divided) == 2:
        (contracted_left, contracted_right), (batch_left, batch_right) = eqn.params[
            "dimension_numbers"
        ]
        (_, left), (_, right) = divided
        return (
            *(left[i] for i in batch_left),
            *(p for i, p in enumerate(left) if i not in (*contracted_left, *batch_left)),
            *(p for i, p in enumerate(right) if i not in (*contracted_right, *batch_right)),
        )
    return one_part(out)
