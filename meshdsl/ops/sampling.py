"""Random choices: an index by its logits, with top-k and top-p sampling, and random orders.

Top-k and top-p sampling keep the most likely entries of a distribution, then draw from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops import bitwise, component, threefry
from meshdsl.ops.comparison import check_real, check_some
from meshdsl.ops.declare import Case, Draw, along_a, op
from meshdsl.ops.distributions import gumbel
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.reduce import argmax
from meshdsl.ops.selection import by_digits, nth_largest
from meshdsl.tensor import Tensor


def _categorical_example(categorical: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    k = draw.integer(1, max(1, a.size))
    cut = draw.pick({"top_p": 0.8}, {}, {"top_k": k}, {"temperature": 0.7})
    logits = draw.tensor(a, b, low=-3.0, high=3.0)
    return Case(lambda x: categorical(jax.random.key(5), x, a, **cut), (logits,), (a,))


@op(
    names=("random.categorical",),
    computes="the largest of logits and draws; of top_p, masses above bounds, which close in",
    moves=("all_gather",),
    mesh_tensorflow="RandomOperation (`sample_with_temperature`); no top_k or top_p",
    example=_categorical_example,
    gradients=False,
)
def categorical(
    key,
    logits: Tensor,
    dim: Dim | str,
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """A random index (int32) along `dim`, one for each element of the other dims.

    An index is drawn with probability `softmax(logits / temperature)`, as that of the largest of
    `logits + gumbel`. So it is found as any `argmax` is, and a split `dim` is never gathered. It is
    the index that `jax.random.categorical` draws when its `axis` is where `logits` have `dim`.

    Args:
      temperature: a number, or a Tensor of some of the dims. At the number 0 the likeliest index is
        taken.
      top_k: only the `top_k` likeliest indices, and those as likely as the last of them, can be
        drawn.
      top_p: after that, only the likeliest indices that have a probability of `top_p` together can
        be drawn (nucleus sampling, Holtzman et al., 2020). The last one that is needed is among
        them, and so are those as likely as it.

    Raises:
      MeshDSLError: a temperature below 0, a `top_k` that is not between 1 and the size of `dim`, or
        a `top_p` that is not above 0 and at most 1.
    """
    dim = dim_algebra.find("categorical", logits.dims, dim)
    check_some("categorical", logits, (dim,))
    check_real("categorical", logits)
    if not isinstance(temperature, Tensor) and not temperature >= 0:
        raise MeshDSLError(f"categorical: the temperature is at least 0, not {quote(temperature)}")
    if top_k is not None and not 1 <= top_k <= dim.size:
        raise MeshDSLError(
            f"categorical: top_k is between 1 and the size of {dim}, not {quote(top_k)}"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise MeshDSLError(f"categorical: top_p is above 0 and at most 1, not {quote(top_p)}")
    if not isinstance(temperature, Tensor) and temperature == 0:
        return argmax(logits, dim)
    logits = _colder(component.cast(logits, jnp.float32), temperature)
    if top_k is not None and top_k < dim.size:
        logits = FUNCTIONS["where"](logits >= nth_largest(logits, dim, top_k), logits, -jnp.inf)
    if top_p is not None and top_p < 1:
        logits = _nucleus(logits, dim, top_p)
    return argmax(logits + gumbel(key, logits.dims, like=logits), dim)


def _colder(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """`logits / temperature`, rounded before anything is added to it."""
    if isinstance(temperature, Tensor):
        return component.map(
            lambda a, t: bitwise.apart(a / t),
            logits,
            component.cast(temperature, jnp.float32),
            name="divide",
        )
    if temperature == 1:
        return logits
    return component.map(lambda a: bitwise.apart(a * (1 / temperature)), logits, name="multiply")


def _nucleus(logits: Tensor, dim: Dim, mass: float) -> Tensor:
    """`logits` with -inf for all but the likeliest that have the probability `mass` together.

    The smallest probability among these is found digit by digit. Each round sums, over the
    devices, how much lies above each of a few candidates. These are sums of whole numbers, so
    that the result does not depend on how they are split.
    """
    at = logits.dims.index(dim)
    # Bits of each half of a probability, such that no sum of halves overflows.
    word = min(15, 31 - max(dim.size - 1, 1).bit_length())

    def local(loop: DeviceLoop, a):
        a = jnp.moveaxis(a, at, -1)
        top = loop.pmax(jnp.max(a, -1), dim)
        # 1 for the likeliest.
        likelihood = bitwise.exp(a - jnp.where(jnp.isfinite(top), top, 0)[..., None])
        parts = jnp.round(likelihood * 2.0 ** (2 * word)).astype(jnp.uint32)
        halves = jnp.stack([parts >> word, parts & (2**word - 1)])
        # The bits of numbers that are not negative are in the order of the numbers.
        ordered = lax.bitcast_convert_type(likelihood, jnp.uint32)

        def above(bounds):
            """The sum of all `likelihood`s of at least each of the bounds."""
            counted = jnp.where(
                ordered[..., None, :] >= bounds[..., None], halves[:, ..., None, :], 0
            )
            high, low = loop.psum(jnp.sum(counted, -1, dtype=jnp.uint32), dim).astype(jnp.float32)
            return high * 2.0**word + low

        zeros = jnp.zeros(a.shape[:-1], jnp.uint32)
        needed = above(zeros[..., None]) * jnp.float32(mass)
        found = by_digits(zeros, lambda candidates: above(candidates) >= needed)
        return jnp.moveaxis(jnp.where(ordered >= found[..., None], a, -jnp.inf), -1, at)

    return component.apply_alike("nucleus", local, logits, in_order=(), fill=-jnp.inf)


@op(
    names=("random.permutation",),
    computes="the whole order",
    example=along_a(lambda permutation, x, a, b: permutation(jax.random.key(5), a, like=x)),
    gradients=False,
)
def permutation(key, dim: Dim | str, *, like: Tensor | None = None) -> Tensor:
    """The indices (int32) of `dim` in a random order: `jax.random.permutation`, exactly.

    Every device finds the whole order, without communication, and keeps its part where `dim` is
    split.
    """
    data = threefry.key_data(key)
    dim = dim_algebra.resolve_one("permutation", like.dims if like is not None else (), dim)
    return apply_op(
        "random.permutation",
        lambda _: _order(data, dim),
        (),
        loop=(dim,),
        out=(dim,),
        unsplit=(dim,),
        in_order=(),
        like=like,
    )


@op(
    names=("random.permute",),
    computes="its part of the other dims; the dim is whole",
    moves=("all_gather", "all_to_all"),
    example=along_a(lambda permute, x, a, b: permute(jax.random.key(5), x, a)),
    result="same",
)
def permute(key, x: Tensor, dim: Dim | str) -> Tensor:
    """`x` with the elements of `dim` in a random order.

    That is `jax.random.permutation` along the position of `dim`, exactly. A split `dim` is
    gathered.
    """
    dim, data = dim_algebra.find("permute", x.dims, dim), threefry.key_data(key)
    at = x.dims.index(dim)
    local = lambda _, a: jnp.take(a, _order(data, dim), at, unique_indices=True, mode="clip")
    return component.apply_alike(
        "random.permute", local, x, unsplit=(dim,), in_order=(), linear=True
    )


def _order(key, dim: Dim) -> jax.Array:
    """The indices of a dim that is not split, in a random order.

    They are sorted by random bits, as often as it takes to make ties unlikely.
    """
    whole, indices = DeviceLoop({dim: ()}), jnp.arange(dim.size, dtype=jnp.int32)
    for _ in range(math.ceil(3 * math.log(max(1, dim.size)) / math.log(2**32 - 1))):
        key, now = threefry.two_keys(key)
        _, indices = lax.sort_key_val(threefry.bits(whole, now, (dim,)), indices)
    return indices
