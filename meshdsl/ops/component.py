"""Component-wise ops, and Python's operators on Tensors.

All of them are one function, `map`, and three tables of names: what `jax.numpy` and `jax.nn` call a function is what
it is called here. Operands broadcast by name: the dims of each must be among those of the largest. Where neither
operand has all dims of the other, that is an error and not an outer product; say `broadcast` where one is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.checked import checked
from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.law import apply_op, sums_alike
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


def map(
    fn: Callable, *operands, name: str | None = None, linear: bool = False, **options
) -> Tensor:  # noqa: A001
    """Apply a component-wise function of arrays.

    Args:
      fn: takes one array for each operand, shaped to broadcast against each other, and `options`.
      operands: Tensors, or numbers. The dims of each are among those of the largest.
      linear: `fn` is linear in all operands taken together, so pending sums may keep waiting.

    Returns:
      A Tensor with the dims of the largest operand, in its order.

    Raises:
      MeshDSLError: a size differs, or no operand has the dims of all others.
    """
    name = name or getattr(fn, "__name__", "map")
    tensors = [as_tensor(x, name) for x in operands if not _is_number(x)]
    if not tensors:
        raise MeshDSLError(f"{name}: at least one operand is a Tensor")
    out = broadcast_dims(name, [t.dims for t in tensors])

    def local(loop, *arrays):
        aligned = iter([align(a, t.dims, out) for a, t in zip(arrays, tensors, strict=True)])
        return loop.fitting(
            fn(*[x if _is_number(x) else next(aligned) for x in operands], **options), out, name
        )

    # Padding of ones: a quotient or a logarithm of it is finite, and so is its part in the gradient of an operand without the dim.
    fill = None if linear else 1
    return apply_op(
        name,
        local,
        tensors,
        loop=out,
        out=out,
        linear=linear and len(tensors) == len(operands),
        fill=fill,
    )


def broadcast_dims(name: str, operands: list[Dims]) -> Dims:
    """The dims of the largest operand, which must have those of all others."""
    if len(operands) == 1 or all(dims == operands[0] for dims in operands):
        return operands[0]
    every = dim_algebra.union(name, operands)
    largest = max(operands, key=len)
    if len(largest) < len(every):
        shown = " and ".join(dim_algebra.show(dims) for dims in operands)
        absent = ", ".join(f"`{d.name}`" for d in dim_algebra.without(every, largest))
        raise MeshDSLError(
            f"{name}: of {shown} no operand has all dims ({dim_algebra.show(largest)} lacks {absent}); "
            "use `broadcast` where an outer product is meant, or `einsum`"
        )
    return largest


def align(array, dims: Dims, target: Dims):
    """An array with dims `dims` shaped to broadcast against one with dims `target`."""
    if dims == target or not dims:
        return array
    order = sorted(range(len(dims)), key=lambda i: target.index(dims[i]))
    if order != list(range(len(dims))):
        array = jnp.transpose(array, order)
    new = [i for i, d in enumerate(target) if d not in dims]
    return jnp.expand_dims(array, new) if new else array


def _is_number(x) -> bool:
    return isinstance(x, (int, float, complex, np.generic))


def as_tensor(x, name: str) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if getattr(x, "shape", None) == ():
        return Tensor(jnp.asarray(x), ())
    got = f"an array of shape {tuple(x.shape)}" if hasattr(x, "shape") else type(x).__name__
    has_elements = hasattr(x, "shape") or isinstance(x, (list, tuple))
    advice = "; give it dims with md.tensor" if has_elements else ""
    raise MeshDSLError(f"{name}: operands are Tensors and numbers, not {got}{advice}")


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


def scale(x: Tensor, factor, *, name: str = "multiply", inverse: bool = False) -> Tensor:
    """`x` times a number, or divided by it. Linear: a pending sum keeps waiting."""
    fn = (lambda _, a: a / factor) if inverse else (lambda _, a: a * factor)
    made = jnp.result_type(x.dtype, jnp.float32 if inverse else factor)
    return apply_op(
        name, fn, (x,), loop=x.dims, out=x.dims, linear=sums_alike(x.dtype, made), fill=None
    )


def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype. Between floating-point types a pending sum keeps waiting, and is taken in the new type."""
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    how = {"linear": sums_alike(x.dtype, dtype), "fill": None}
    return apply_op("cast", lambda _, a: a.astype(dtype), (x,), loop=x.dims, out=x.dims, **how)


def stop_gradient(x: Tensor) -> Tensor:
    """`x`, through which no gradient flows."""
    return apply_op(
        "stop_gradient",
        lambda _, a: jax.lax.stop_gradient(a),
        (x,),
        loop=x.dims,
        out=x.dims,
        linear=True,
        fill=None,
    )


def _binary(name: str, swapped: bool = False) -> Callable:
    op = FUNCTIONS[name]
    if name in ("multiply", "divide"):

        def method(self, other):
            if _is_number(other) and not (swapped and name == "divide"):
                return scale(self, other, name=name, inverse=name == "divide")
            return op(other, self) if swapped else op(self, other)

        method.__name__ = name
        method = checked(method)

    else:

        def method(self, other):
            return op(other, self) if swapped else op(self, other)

    return method


def _not_with_none(comparison: Callable) -> Callable:
    """Python itself compares with None: `t == None` is False."""

    def method(self, other):
        return NotImplemented if other is None else comparison(self, other)

    return method


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "mod", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_UNARY = {"neg": "negative", "abs": "abs", "invert": "bitwise_not"}

for _python, _name in _OPERATORS.items():
    setattr(Tensor, f"__{_python}__", _binary(_name))
    setattr(Tensor, f"__r{_python}__", _binary(_name, swapped=True))
for _python, _name in _COMPARISONS.items():
    setattr(Tensor, f"__{_python}__", _binary(_name))
for _python in ("eq", "ne"):
    setattr(Tensor, f"__{_python}__", _not_with_none(_binary(_COMPARISONS[_python])))
for _python, _name in _UNARY.items():
    setattr(Tensor, f"__{_python}__", FUNCTIONS[_name])
