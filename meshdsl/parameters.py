"""Parameters to begin with: drawn at random, or of one value.

    w = md.normal(key, (d_model, d_ff), ins="d_model")   # a matrix
    b = md.zeros(d_ff)                                   # a bias
    s = md.ones(d_model)                                 # a scale

Functions of this file make *parameters*: Tensors that are trained, which the layout splits at rest
by its `parameters` too. `md.random.normal` and the like draw values.

`ins` are the dims that a parameter contracts where it is used. `md.dot` reads them, and optimizers
that treat matrices apart. They also give the standard deviation of draws by default, n ** -0.5 for
`ins` of n elements in all: then the elements of `dot(x, w)` are about as large as those of `x`
(LeCun, Bottou, Orr and Müller, 1998, Efficient BackProp, section 4.6). What sums over nothing keeps
the size without that, so a parameter without `ins` has a standard deviation of 1. Before a ReLU,
which halves the mean square, `std=(2 / n) ** 0.5` makes up for it (He, Zhang, Ren and Sun, 2015,
Delving Deep into Rectifiers, section 2.2). What is added to a residual stream by many layers starts
smaller (Radford et al., 2019, section 2.3), or as zeros.

Draws are those of `jax.random` for the shape of the dims. A number depends on the key and on its
index in the whole tensor alone, so parameters that are born split, on many devices, are those that
one device draws. They are drawn in float32 whatever the dtype, and rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.tensor import Tensor, parameter

Ins = Dim | str | Iterable[Dim | str]

# What is left of the standard deviation of a normal distribution between -2 and 2.
_TRUNCATED = 0.87962566103423978


def normal(
    key,
    dims: Dim | Iterable[Dim],
    *,
    ins: Ins = (),
    std: float | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Tensor:
    """A parameter of normally distributed numbers with mean 0.

        md.normal(key, (d_model, heads, head_dim), ins="d_model")

    Args:
      key: a JAX PRNG key.
      ins: the dims, or their names, that the parameter contracts where it is used; none for one
        that is added or scales.
      std: the standard deviation; by default `n ** -0.5` for `ins` of `n` elements, and 1 without.

    Raises:
      MeshDSLError: the key is none, `ins` has a dim that `dims` lack, `std` is negative or the
        dtype has no fractions.
    """
    return _drawn("normal", jax.random.normal, key, dims, ins, std, dtype)


def truncated_normal(
    key,
    dims: Dim | Iterable[Dim],
    *,
    ins: Ins = (),
    std: float | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Tensor:
    """A parameter as `normal` makes it, but without numbers far from 0.

    What lies beyond two standard deviations of the normal distribution is drawn again, and the rest
    scaled so that its standard deviation is `std`. So no number is larger than 2.28 times `std`.

    Args:
      key, ins, std: as for `normal`.

    Raises:
      MeshDSLError: as `normal`.
    """
    draw = lambda key, *of: jax.random.truncated_normal(key, -2.0, 2.0, *of) / _TRUNCATED
    return _drawn("truncated_normal", draw, key, dims, ins, std, dtype)


def uniform(
    key,
    dims: Dim | Iterable[Dim],
    *,
    ins: Ins = (),
    std: float | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Tensor:
    """A parameter of uniformly distributed numbers with mean 0.

    They lie between `-sqrt(3) * std` and `sqrt(3) * std`, which makes their standard deviation
    `std`.

    Args:
      key, ins, std: as for `normal`.

    Raises:
      MeshDSLError: as `normal`.
    """
    draw = lambda key, *of: jax.random.uniform(key, *of, minval=-(3**0.5), maxval=3**0.5)
    return _drawn("uniform", draw, key, dims, ins, std, dtype)


def zeros(dims: Dim | Iterable[Dim], *, ins: Ins = (), dtype: DTypeLike = jnp.float32) -> Tensor:
    """A parameter of zeros: a bias, or a matrix that adds nothing at first.

    Args:
      ins: as for `normal`.
    """
    return _filled("zeros", dims, 0, ins, dtype)


def ones(dims: Dim | Iterable[Dim], *, ins: Ins = (), dtype: DTypeLike = jnp.float32) -> Tensor:
    """A parameter of ones: a scale.

    Args:
      ins: as for `normal`.
    """
    return _filled("ones", dims, 1, ins, dtype)


def full(
    dims: Dim | Iterable[Dim], value: float, *, ins: Ins = (), dtype: DTypeLike = jnp.float32
) -> Tensor:
    """A parameter whose elements are all `value`.

    Args:
      ins: as for `normal`.
    """
    return _filled("full", dims, value, ins, dtype)


def _filled(name: str, dims, value: float, ins, dtype) -> Tensor:
    dims = dim_algebra.distinct(dims, name)
    ins = dim_algebra.find_all(f"{name}, ins", dims, ins)
    return parameter(jnp.full([d.size for d in dims], value, dtype), dims, ins=ins)


def _drawn(name: str, draw: Callable, key, dims, ins, std: float | None, dtype) -> Tensor:
    """A parameter of the numbers that `draw(key, shape, dtype)` gives, scaled by `std`."""
    dims = dim_algebra.distinct(dims, name)
    ins = dim_algebra.find_all(f"{name}, ins", dims, ins)
    if std is None:
        std = max(dim_algebra.size(ins), 1) ** -0.5  # without elements there is nothing to scale
    elif std < 0:
        raise MeshDSLError(f"{name}: a standard deviation is at least 0, not {quote(std)}")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise MeshDSLError(f"{name}: numbers with fractions are drawn, not {jnp.dtype(dtype)}")
    numbers = draw(_key(name, key), [d.size for d in dims], jnp.float32) * std
    return parameter(numbers.astype(dtype), dims, ins=ins)


def _key(name: str, key):
    """`key` as `jax.random` takes it."""
    key = key.array if isinstance(key, Tensor) else key
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (typed and shape == ()) and not (dtype == jnp.uint32 and len(shape or ()) == 1):
        got = quote(key) if dtype is None else f"an array of {dtype} {shape}"
        raise MeshDSLError(f"{name}: the key is one jax.random.key(...), not {got}")
    return key
