"""Component-wise ops: `map` of any function of arrays, a cast, and a product with a number.

Operands broadcast by name: the dims of each must be among those of the largest. Where neither
operand has all dims of the other, that is an error and not an outer product; say `broadcast` where
one is meant. The functions that have names are in `functions.py`, Python's operators in
`operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.lowering.pending_sums import sums_alike
from meshdsl.ops.declare import of_x, op
from meshdsl.tensor import Tensor


@op(
    computes="the function, of the operands' own parts",
    mesh_tensorflow="SlicewiseOperation; gradients by hand",
    example=of_x(lambda map, x: map(lambda array: array * array, x)),
)
def map(
    fn: Callable,
    *operands,
    name: str | None = None,
    linear: bool | tuple[int, ...] = False,
    **options,
) -> Tensor:
    """Apply a component-wise function of arrays.

        md.map(lambda a, b: jnp.sin(a) * b, x, y, name="modulated")

    Args:
      fn: takes one array for each operand, shaped to broadcast against each other, and `options`.
      operands: Tensors, or numbers. The dims of each are among those of the largest.
      name: what errors and `explain` call the op; by default the function's name.
      linear: `fn` is linear in all operands taken together, so pending sums may keep waiting. Or
        the positions of operands in each of which alone it is linear, as a product is: then a sum
        over the microbatches of a pipeline may keep waiting.
      options: passed on to `fn`.

    Returns:
      A Tensor with the dims of the largest operand, in its order.

    Raises:
      MeshDSLError: a size differs, or no operand has the dims of all others.
    """
    title: str = name or getattr(fn, "__name__", "map")
    tensors = [as_tensor(x, title) for x in operands if not is_number(x)]
    if not tensors:
        raise MeshDSLError(f"{title}: at least one operand is a Tensor")
    out = broadcast_dims(title, [t.dims for t in tensors])

    def local(loop, *arrays):
        aligned = iter([align(a, t.dims, out) for a, t in zip(arrays, tensors, strict=True)])
        return loop.fitting(
            fn(*[x if is_number(x) else next(aligned) for x in operands], **options), out, title
        )

    # Padding holds ones: a quotient or a logarithm of it is finite, and so is what it adds to the
    # gradient of an operand that lacks the padded dim.
    fill = None if linear is True else 1
    if linear is True:
        # A number is added once to a sum over the turns of a loop, as a Tensor is.
        if len(tensors) < len(operands) and any(_waits_for_turns(t) for t in tensors):
            dtype = jnp.result_type(
                *[t.dtype for t in tensors], *[x for x in operands if is_number(x)]
            )
            every = [Tensor(jnp.asarray(x, dtype), ()) if is_number(x) else x for x in operands]
            return map(fn, *every, name=name, linear=True, **options)
        linear = len(tensors) == len(operands)
    elif linear:
        at = [i for i, x in enumerate(operands) if not is_number(x)]
        linear = tuple(at.index(i) for i in linear if i in at)
    return apply_op(
        title,
        local,
        tensors,
        loop=out,
        out=out,
        in_order=(),
        linear=linear,
        fill=fill,
    )


def _waits_for_turns(x: Tensor) -> bool:
    """Whether `x` is a sum over the turns of a loop, see `moves.turns`."""
    return x.placement is not None and any(a in x.placement.scope.turns for a in x.pending)


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
            f"{name}: of {shown} no operand has all dims ({dim_algebra.show(largest)} "
            f"lacks {absent}); use `broadcast` where an outer product is meant, or `einsum`"
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


def is_number(x) -> bool:
    """Whether `x` is a number of Python or NumPy: an operand without dims that needs no Tensor."""
    return isinstance(x, (int, float, complex, np.generic))


def as_tensor(x, name: str) -> Tensor:
    """An operand as a Tensor: it is one, or it is an array with a single element and no dims.

    Raises:
      MeshDSLError: it is neither. The message begins with `name`, that of the op.
    """
    if isinstance(x, Tensor):
        return x
    if getattr(x, "shape", None) == ():
        return Tensor(jnp.asarray(x), ())
    got = f"an array of shape {tuple(x.shape)}" if hasattr(x, "shape") else type(x).__name__
    has_elements = hasattr(x, "shape") or isinstance(x, (list, tuple))
    advice = "; give it dims with md.tensor" if has_elements else ""
    raise MeshDSLError(f"{name}: operands are Tensors and numbers, not {got}{advice}")


def apply_alike(name: str, local: Callable, x: Tensor, **options) -> Tensor:
    """An op of one operand, whose dims are those of the loop nest and of the result."""
    return apply_op(name, local, (x,), loop=x.dims, out=x.dims, **options)


def scale(x: Tensor, factor, *, name: str = "multiply", inverse: bool = False) -> Tensor:
    """`x` times a number, or divided by it. Linear: a pending sum keeps waiting."""
    fn = (lambda _, a: a / factor) if inverse else (lambda _, a: a * factor)
    dtype = jnp.result_type(x.dtype, jnp.float32 if inverse else factor)
    linear = sums_alike(x.dtype, dtype)
    return apply_alike(name, fn, x, in_order=(), linear=linear, fill=None)


@op(
    computes="the function, of the operands' own parts",
    mesh_tensorflow="SlicewiseOperation",
    example=of_x(lambda cast, x: cast(x, "bfloat16")),
    result="same",
    gradients=False,
)
def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype.

    Between floating-point types a pending sum keeps waiting, and is taken in the new type.
    """
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    linear, local = sums_alike(x.dtype, dtype), lambda _, a: a.astype(dtype)
    return apply_alike("cast", local, x, in_order=(), linear=linear, fill=None)


@op(
    computes="the function, of the operands' own parts",
    mesh_tensorflow="StopGradient",
    example=of_x(),
    result="same",
)
def stop_gradient(x: Tensor) -> Tensor:
    """`x`, through which no gradient flows."""
    local = lambda _, a: jax.lax.stop_gradient(a)
    return apply_alike("stop_gradient", local, x, in_order=(), linear=True, fill=None)


@op(
    computes="the function, of the operands' own parts",
    example=of_x(),
    result="same",
)
def materialize(x: Tensor) -> Tensor:
    """`x`, of which the compiler makes an array before it goes on, and so with its gradient.

        md.dot(md.materialize(md.silu(gate) * up), down)

    What is computed element by element is otherwise often made a part of the matrix product that
    follows, and computed for each block of it anew, which can take longer than to write it once.

    On TPUs both arrays lie in memory in the order of their dims. Left to itself, the compiler may
    order a gradient as the products that follow like it best, and then copies everything else that
    is computed with it into that order: what was kept of the forward pass, in each layer.
    """
    return apply_alike("materialize", _written, x, in_order=(), linear=True, fill=None)


def _written(at: DeviceLoop, array) -> jax.Array:
    """`array` behind a barrier, and on TPUs in the order of its dims, in both passes."""
    if at.lowered and at.platform == "tpu":
        array = with_layout_constraint(array, Layout(tuple(range(array.ndim))))
    return jax.lax.optimization_barrier(array)
