"""dot: a tensor times a weight, which knows the dims that it contracts."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.ops.component import cast
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.einsum import einsum
from meshdsl.tensor import Parameter, Tensor


def _dot_example(dot: Callable, draw: Draw) -> Case:
    a, b, c, d = draw.dims("a", "b", "c", "d")
    x = draw.tensor(a, b, d)
    some = lambda *ins: lambda x, w: dot(x, w.replace(role=Parameter(ins)))
    return draw.pick(
        Case(some("b"), (x, draw.tensor(b, c)), (b,)),
        Case(some("b", "d"), (x, draw.tensor(b, d, c)), (b, d)),
        Case(some("b"), (x, draw.tensor(c, b, d)), (b,)),
    )


@op(
    computes="contracts what it has",
    mesh_tensorflow="EinsumOperation (`layers.dense`)",
    example=_dot_example,
)
def dot(x: Tensor, weight: Tensor, *, precision=None, preferred_element_type=None) -> Tensor:
    """`x` times a weight: contracted over the dims that the weight names as its `ins`.

        up = md.normal(key, (d_model, d_ff), ins="d_model")
        md.dot(x, up)   # [batch, length, d_model] -> [batch, length, d_ff]

    The result has the other dims of `x`, then the other dims of the weight. A dim that both have
    and that is none of the `ins` is kept once, and what it numbers is multiplied pair by pair:

        up = md.normal(key, (experts, d_model, d_ff), ins="d_model")
        md.dot(x, up)   # [batch, d_model]          -> [batch, experts, d_ff]
        md.dot(y, up)   # [batch, experts, d_model] -> [batch, experts, d_ff]: each its own matrix

    The weight is used in the dtype of `x`. It is recorded as the einsum that it is.

    Args:
      weight: a parameter with `ins`, as `md.normal` and `md.parameter` make it.
      precision, preferred_element_type: as in `jnp.einsum`.

    Raises:
      MeshDSLError: the weight has no `ins`, `x` lacks one of them, one name has two sizes, or `x`
        has whole numbers and the weight fractions.
    """
    ins = weight.role.ins if weight.role else ()
    if not ins:
        raise MeshDSLError(
            f"dot: the second operand {dim_algebra.show(weight.dims)} does not say which dims it "
            "contracts; make it with `ins`, by md.normal(key, dims, ins=...) or "
            "md.parameter(array, dims, ins=...), or write md.einsum(x, w, out=(...))"
        )
    dim_algebra.union("dot", [x.dims, weight.dims])
    names = [d.name for d in x.dims]
    for name in ins:
        if name not in names:
            raise MeshDSLError(
                f"dot: the weight {dim_algebra.show(weight.dims)} contracts {weight.dim(name)}, "
                f"which {dim_algebra.show(x.dims)} lacks{nearest(name, names)}"
            )
    if jnp.issubdtype(weight.dtype, jnp.inexact) and not jnp.issubdtype(x.dtype, jnp.inexact):
        raise MeshDSLError(
            f"dot: {dim_algebra.show(x.dims)} is {x.dtype}, in which a weight of {weight.dtype} "
            "would lose its fractions; md.cast it first, or look indices up with md.take"
        )
    return einsum(
        x,
        cast(weight, x.dtype),
        out=(...,),
        contract=ins,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
