"""The component-wise functions that have a name: that of `jax.numpy`, `jax.nn` or `jax.lax`.

Each is a row of a table, and `map` of JAX's function of that name.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.checked import checked
from meshdsl.errors import MeshDSLError
from meshdsl.ops.component import map
from meshdsl.tensor import Tensor

NUMPY = (
    "abs add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_not bitwise_or bitwise_xor cbrt "
    "ceil clip conj cos cosh deg2rad divide equal exp exp2 expm1 float_power floor floor_divide fmax fmin fmod greater "
    "greater_equal heaviside hypot imag isfinite isinf isnan less less_equal log log10 log1p log2 logaddexp logaddexp2 "
    "logical_and logical_not logical_or logical_xor maximum minimum mod multiply nan_to_num negative not_equal positive "
    "power rad2deg real reciprocal remainder rint round sign signbit sin sinh sqrt square subtract tan tanh trunc "
    "where"
).split()
NN = (
    "celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid mish relu relu6 selu sigmoid silu soft_sign "
    "softplus sparse_plus squareplus swish"
).split()
LAX = "erf erf_inv rsqrt digamma lgamma".split()

LINEAR = {"add", "subtract", "negative", "positive"}


@jax.custom_jvp
def erf(x):
    return jax.lax.erf(x)


# The derivative that jax 0.12 has for erf fails inside shard_map: its coefficients do not vary and `x` does.
erf.defjvps(lambda tangent, _, x: tangent * (2 / math.sqrt(math.pi)) * jnp.exp(-jnp.square(x)))


def gelu(x, approximate: bool = True):
    return jax.nn.gelu(x) if approximate else x * (erf(x * math.sqrt(0.5)) + 1) / 2


OURS = {"erf": erf, "gelu": gelu}  # in place of JAX's


def _named(fn: Callable, name: str, module: str) -> Callable:
    linear = name in LINEAR

    def op(*operands, **options) -> Tensor:
        try:
            return map(fn, *operands, name=name, linear=linear, **options)
        except MeshDSLError:
            raise
        except (TypeError, ValueError) as why:
            raise _refused(name, operands, why) from None

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Component-wise `{module}.{name}`; operands broadcast by name, see `map`."
    return checked(op)


def _refused(name: str, operands, why: Exception) -> Exception:
    """The error for operands of a dtype that JAX's function does not take.

    It is `why` itself where all operands are real floating-point numbers, which all functions take.
    """
    tensors = [t for t in operands if isinstance(t, Tensor)]
    odd = [t for t in tensors if not jnp.issubdtype(t.dtype, jnp.floating)]
    if not odd:
        return why
    shown = " and ".join(f"{dim_algebra.show(t.dims)} of {t.dtype}" for t in odd)
    advice = "md.cast"
    if any(jnp.issubdtype(t.dtype, jnp.complexfloating) for t in odd):
        advice = "md.real, md.imag or md.abs"
    reason = str(why).splitlines()[0]
    return MeshDSLError(f"{name}: is not defined for {shown} ({reason}); use {advice} of it")


FUNCTIONS = {
    name: _named(OURS.get(name) or getattr(module, name), name, module.__name__)
    for module, names in ((jnp, NUMPY), (jax.nn, NN), (jax.lax, LAX))
    for name in names
}
