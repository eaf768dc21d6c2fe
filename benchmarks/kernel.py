"""Causal attention by the kernel of `md.attention`, for programs that meshdsl does not lower.

So what the benchmarks compare is how programs are split, and not which kernel attends.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from meshdsl.ops.attention import parts, splash
from meshdsl.ops.attention.blocks import Options, Sides
from meshdsl.ops.attention.kernels import Place, Runs, kernel_of


def attend(q, k, v, platform: str = "cpu", *, mapped: bool = False):
    """Attention of arrays that one device has.

    Args:
      q: (batch, length, heads, head_dim), or with a group of queries for each head of keys
        (batch, length, heads, group, head_dim).
      k, v: (batch, length, heads, head_dim).
      platform: "tpu" for splash attention; blocks of plain JAX otherwise.
      mapped: whether this is inside of a `jax.shard_map`.

    Returns:
      An array of the shape of `q`.
    """
    options = Options(shared=2, causal=True, window=None, softcap=None, scale=q.shape[-1] ** -0.5)
    q, k, v = jnp.moveaxis(q, 1, -2), jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    way, every = parts.whole(options), Runs(((0,),), q.shape[-2])
    if platform == "tpu":
        place = Place(
            part=None,
            parts=1,
            padded=False,
            counted=True,
            platform="tpu",
            lowered=mapped,
            whole=True,
            rows=every,
            columns=every,
            aligned=False,
        )
        way = way._replace(kernel=kernel_of(splash, options, place))
        found = parts.attend(way, q, k, v, Sides())
    else:
        positions = jnp.arange(q.shape[-2])
        ones = (1,) * (q.ndim - 2)
        sides = Sides(rows=positions.reshape(*ones, -1, 1), columns=positions.reshape(*ones, 1, -1))
        found = parts.attend(way, q, k, v, sides)
    return jnp.moveaxis(found, -2, 1)


def attend_on(mesh: Mesh, queries: PartitionSpec, keys: PartitionSpec) -> Callable:
    """`attend` of global arrays, each device with its own rows and heads, as `jit` needs it.

    Args:
      queries, keys: how they are split; each device has whole sequences.
    """
    platform = mesh.devices.flat[0].platform

    def local(q, k, v):
        return attend(q, k, v, platform, mapped=True)

    return jax.shard_map(local, mesh=mesh, in_specs=(queries, keys, keys), out_specs=queries)
