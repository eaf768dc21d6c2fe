"""The component-wise functions that have a name: that of `jax.numpy`, `jax.nn` or `jax.lax`.

Each is a row of a table, and `map` of JAX's function of that name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from meshdsl.checked import checked, described
from meshdsl.errors import MeshDSLError
from meshdsl.ops.component import map
from meshdsl.ops.declare import Case, Draw, Example, of_x, op
from meshdsl.tensor import Tensor

NUMPY = """
    abs add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_not
    bitwise_or bitwise_xor cbrt ceil clip conj cos cosh deg2rad divide equal exp exp2 expm1
    float_power floor floor_divide fmax fmin fmod greater greater_equal heaviside hypot imag
    isfinite isinf isnan less less_equal log log10 log1p log2 logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor maximum minimum mod multiply nan_to_num
    negative not_equal positive power rad2deg real reciprocal remainder rint round sign
    signbit sin sinh sqrt square subtract tan tanh trunc where
""".split()
NN = """
    celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid mish relu relu6
    selu sigmoid silu soft_sign softplus sparse_plus squareplus swish
""".split()
LAX = "erf erf_inv rsqrt digamma lgamma".split()

_TUNED = """
    celu clip elu gelu leaky_relu nan_to_num round rsqrt squareplus
""".split()
_BINARY = """
    add arctan2 bitwise_and bitwise_or bitwise_xor divide equal float_power floor_divide
    fmax fmin fmod greater greater_equal heaviside hypot less less_equal logaddexp
    logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply not_equal
    power remainder subtract
""".split()
KIND = {**dict.fromkeys(_TUNED, "Tuned"), **dict.fromkeys(_BINARY, "Binary"), "where": "Ternary"}
"""What a function takes, where it is not one operand alone: a name of `stubs/declarations.pyi`.

A tuned function takes one operand and settings, such as the `decimals` of `round`.
"""

# Functions that are linear, as for `map`: in all operands taken together, so that a pending sum
# keeps waiting, or in each of some operands alone.
LINEAR = {
    **dict.fromkeys(("add", "subtract", "negative", "positive"), True),
    "multiply": (0, 1),
    "divide": (0,),
}


@jax.custom_jvp
def erf(x):
    """The error function of an array, with a derivative that works inside shard_map."""
    return jax.lax.erf(x)


# That of jax 0.12 fails inside shard_map: its coefficients do not vary over axes, and `x` does.
erf.defjvps(lambda tangent, _, x: tangent * (2 / math.sqrt(math.pi)) * jnp.exp(-jnp.square(x)))


def gelu(x, approximate: bool = True):
    """`jax.nn.gelu` of an array, by the `erf` of this file where it is not approximate."""
    return jax.nn.gelu(x) if approximate else x * (erf(x * math.sqrt(0.5)) + 1) / 2


OURS = {"erf": erf, "gelu": gelu}  # in place of JAX's


def _named(fn: Callable, name: str, module: str) -> Callable:
    """The function of Tensors called `name`, of JAX's `fn`."""
    linear = LINEAR.get(name, False)

    def function(*operands, **options) -> Tensor:
        return map(fn, *operands, name=name, linear=linear, **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Component-wise `{module}.{name}`; operands broadcast by name, see `map`."
    return checked(function, explain=_not_for_the_dtype)


def _not_for_the_dtype(name: str, why: Exception, arguments: tuple) -> None:
    """Raise an error that names the operands of a dtype that JAX's function does not take.

    All functions take real floating-point numbers: where all operands are that, the reason is
    another, and this returns.
    """
    tensors = [t for t in arguments if isinstance(t, Tensor)]
    odd = [t for t in tensors if not jnp.issubdtype(t.dtype, jnp.floating)]
    if not odd or not isinstance(why, (TypeError, ValueError)):
        return
    advice = "md.cast"
    if any(jnp.issubdtype(t.dtype, jnp.complexfloating) for t in odd):
        advice = "md.real, md.imag or md.abs"
    reason = str(why).splitlines()[0]
    raise MeshDSLError(
        f"{name}: is not defined for {described(odd)} ({reason}); use {advice} of it"
    ) from None


FUNCTIONS = {
    name: _named(OURS.get(name) or getattr(module, name), name, module.__name__)
    for module, names in ((jnp, NUMPY), (jax.nn, NN), (jax.lax, LAX))
    for name in names
}


def _unary(fn: Callable, draw: Draw, low: float = 0.1, high: float = 0.9) -> Case:
    return Case(fn, (draw.tensor(*draw.dims("a", "b"), low=low, high=high),))


def _binary(fn: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    x, y = draw.tensor(a, b, low=0.1, high=0.9), draw.tensor(b, low=0.1, high=0.9)
    swapped, with_a_number = lambda x, y: fn(y, x), lambda x: fn(x, 0.5)
    return Case(*draw.pick((fn, (x, y)), (swapped, (x, y)), (with_a_number, (x,))))


def _dividing(fn: Callable, draw: Draw) -> Case:
    """Operands whose quotient is not whole: there the function jumps."""
    a, b = draw.dims("a", "b")
    return Case(fn, (draw.tensor(a, b, low=2.1, high=2.9), draw.tensor(b, low=0.95, high=1.0)))


def _not(fn: Callable, draw: Draw) -> Case:
    return Case(fn, (draw.integers(*draw.dims("a", "b"), below=9),))


def _bits(fn: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    return Case(fn, (draw.integers(a, b, below=9), draw.integers(b, below=9)))


def _where(where: Callable, draw: Draw) -> Case:
    a, b = draw.dims("a", "b")
    return Case(lambda x, y: where(x > 0.1, x, y), (draw.tensor(a, b), draw.tensor(a)))


_EXAMPLES: dict[str, Example] = {
    "arccosh": partial(_unary, low=1.1, high=2.0),
    "clip": of_x(lambda clip, x: clip(x, -0.5, 0.5)),
    "where": _where,
    **dict.fromkeys(("floor_divide", "fmod", "mod", "remainder"), _dividing),
    **dict.fromkeys(("bitwise_not", "logical_not"), _not),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), _bits),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), _bits),
}
_MESH_TENSORFLOW = {
    "add": "AddOperation, ScalarAddOperation; never pending",
    "subtract": "BinaryOpWithBroadcasting",
    "multiply": "EinsumOperation, ScalarMultiplyOperation",
    "minimum": "MinMaxOperation",
    "maximum": "MinMaxOperation",
    "where": "SlicewiseOperation; whole operands only",
}
_ELSE = "GenericGradOperation, BinaryOpWithBroadcasting or SlicewiseOperation"

for _name, _function in FUNCTIONS.items():
    op(
        computes="the function, of the operands' own parts",
        mesh_tensorflow=_MESH_TENSORFLOW.get(_name, _ELSE),
        example=_EXAMPLES.get(_name) or (_binary if KIND.get(_name) == "Binary" else _unary),
        result=KIND.get(_name, "Unary"),
        module=__name__,
        held=True,
    )(_function)
