"""Samples that are chosen rather than drawn: a category by its logits, and the order of a dim."""

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
from meshdsl.ops.sorting import nth_largest
from meshdsl.tensor import Tensor

_DIGIT = 4  # bits of a threshold that one round finds


def _categorical_example(categorical: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    k = draw.integer(1, max(1, a.size))
    how = draw.pick({"top_p": 0.8}, {}, {"top_k": k}, {"temperature": 0.7})
    logits = draw.tensor(a, b, low=-3.0, high=3.0)
    return Case(lambda x: categorical(jax.random.key(5), x, a, **how), (logits,), (a,))


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
    """An index (int32) along `dim` for each of the other dims, drawn with probability `softmax(logits / temperature)`.

    The draw takes no communication: the largest of `logits + gumbel` is found as any `argmax` is. It is
    that of `jax.random.categorical` when `dim` lies where its `axis` does. A split `dim` is never gathered.

    Args:
      temperature: a number, or a Tensor of some of the dims; at the number 0 the likeliest index is taken.
      top_k: only the `top_k` likeliest indices, and those as likely as the last of them, can be drawn.
      top_p: after that, only the likeliest indices that have a probability of `top_p` together can be
        drawn (nucleus sampling, Holtzman et al., 2020): the last one that is needed, and those as likely as it, are among them.

    Raises:
      MeshDSLError: a temperature below 0, a `top_k` that is not between 1 and the size of `dim`, or a `top_p` that is not above 0 and at most 1.
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
    """`logits / temperature`, rounded before anything is added."""
    if isinstance(temperature, Tensor):
        return component.map(
            lambda a, t: bitwise.apart(a / t),
            logits,
            component.cast(temperature, jnp.float32),
            name="divide",
        )
    return (
        component.map(lambda a: bitwise.apart(a * (1 / temperature)), logits, name="multiply")
        if temperature != 1
        else logits
    )


def _nucleus(logits: Tensor, dim: Dim, mass: float) -> Tensor:
    """`logits`, those beyond the likeliest that have the probability `mass` together replaced by -inf.

    The smallest probability among these is found digit by digit. Each round sums, over the devices, how much lies above each of a few
    candidates; these are sums of whole numbers, so that the result does not depend on how they are split.
    """
    at = logits.dims.index(dim)
    word = min(
        15, 31 - max(dim.size - 1, 1).bit_length()
    )  # bits of each half of a probability, so that no sum overflows

    def local(loop: DeviceLoop, a):
        a = jnp.moveaxis(a, at, -1)
        top = loop.pmax(jnp.max(a, -1), dim)
        likelihood = bitwise.exp(
            a - jnp.where(jnp.isfinite(top), top, 0)[..., None]
        )  # 1 for the likeliest
        parts = jnp.round(likelihood * 2.0 ** (2 * word)).astype(jnp.uint32)
        halves = jnp.stack([parts >> word, parts & (2**word - 1)])
        ordered = lax.bitcast_convert_type(
            likelihood, jnp.uint32
        )  # of numbers that are not negative, the bits order as they do

        def above(bounds):
            """The sum of all `likelihood`s of at least each of the bounds."""
            counted = jnp.where(
                ordered[..., None, :] >= bounds[..., None], halves[:, ..., None, :], 0
            )
            high, low = loop.psum(jnp.sum(counted, -1, dtype=jnp.uint32), dim).astype(jnp.float32)
            return high * 2.0**word + low

        found = jnp.zeros(a.shape[:-1], jnp.uint32)
        needed = above(found[..., None]) * jnp.float32(mass)
        for shift in range(32 - _DIGIT, -1, -_DIGIT):
            candidates = found[..., None] | (jnp.arange(1, 2**_DIGIT, dtype=jnp.uint32) << shift)
            digit = jnp.sum(above(candidates) >= needed, -1).astype(
                jnp.uint32
            )  # the sums fall as the candidates rise
            found = found | (digit << shift)
        return jnp.moveaxis(jnp.where(ordered >= found[..., None], a, -jnp.inf), -1, at)

    return apply_op("nucleus", local, (logits,), loop=logits.dims, out=logits.dims, fill=-jnp.inf)


@op(
    names=("random.permutation",),
    computes="the whole order",
    example=along_a(lambda permutation, x, a, b: permutation(jax.random.key(5), a, like=x)),
    gradients=False,
)
def permutation(key, dim: Dim, *, like: Tensor | None = None) -> Tensor:
    """The indices (int32) of `dim` in a random order: `jax.random.permutation`, exactly.

    Every device finds the whole order, without communication; it is then cut where `dim` is split.
    """
    data = threefry.key_data(key)
    (dim,) = dim_algebra.distinct(dim, "random")
    return apply_op(
        "random.permutation",
        lambda _: _order(data, dim),
        (),
        loop=(dim,),
        out=(dim,),
        unsplit=(dim,),
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
    """`x` with the elements of `dim` in a random order: `jax.random.permutation` along an axis, exactly. A split `dim` is gathered."""
    dim, data = dim_algebra.find("permute", x.dims, dim), threefry.key_data(key)
    at = x.dims.index(dim)
    local = lambda _, a: jnp.take(a, _order(data, dim), at, unique_indices=True, mode="clip")  # noqa: E731
    return apply_op(
        "random.permute", local, (x,), loop=x.dims, out=x.dims, unsplit=(dim,), linear=True
    )


def _order(key, dim: Dim) -> jax.Array:
    """A random order of the indices of a whole dim, sorted by random bits as often as makes ties unlikely."""
    whole, indices = DeviceLoop({dim: ()}), jnp.arange(dim.size, dtype=jnp.int32)
    for _ in range(math.ceil(3 * math.log(max(1, dim.size)) / math.log(2**32 - 1))):
        key, now = threefry.split(key)
        _, indices = lax.sort_key_val(threefry.bits(whole, now, (dim,)), indices)
    return indices
