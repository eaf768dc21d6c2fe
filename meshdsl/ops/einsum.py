"""einsum over names, which contracts every dim that `out` does not have; and dot, by a weight.

Each device contracts its parts of the operands. Three operands or more are contracted in the order
that `opt_einsum` finds best for the sizes of these parts. A dim that is split and contracted leaves
a pending sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.lowering import ring_products
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.lowering.moves.move import ByParts
from meshdsl.lowering.pending_sums import sums_alike
from meshdsl.ops.component import cast
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.tensor import Parameter, Tensor


def _einsum_example(einsum: Callable, draw: Draw) -> Case:
    a, b, c, d = draw.dims("a", "b", "c", "d")
    x, y = draw.tensor(a, b), draw.tensor(b, c)
    two = Tensor(jnp.asarray(2.0), ())
    return draw.pick(
        Case(lambda x, y: einsum(x, y, out=(a, c)), (x, y), (b,)),
        Case(lambda x, y, z: einsum(x, y, z, two, out=(d, a)), (x, y, draw.tensor(c, d)), (b, c)),
        Case(lambda x, y: einsum(x, y, y, out=(b, a)), (x, y), (c,)),
        Case(lambda x: einsum(x, out=b), (x,), (a,)),
    )


@op(
    computes="contracts what it has, in the best order for what it has",
    mesh_tensorflow="EinsumOperation; one dtype, and each dim in two of operands and result",
    example=_einsum_example,
)
def einsum(
    *tensors: Tensor, out, contract=None, precision=None, preferred_element_type=None
) -> Tensor:
    """The product of the tensors, summed over every dim that is not in `out`.

    Any number of tensors, the same one more than once, and tensors without dims, which scale the
    result. Of bools it is whether any of the products is true, and sums of integers wrap around, as
    in `jnp.einsum`. `...` in `out` saves naming dims, in two ways:

        einsum(x, up, out=(..., d_ff))                               # a linear map of x
        einsum(q, k, out=(..., length, memory), contract=head_dim)   # all but head_dim is kept

    With `contract`, `...` stands for every dim that neither `contract` nor `out` names, in the
    order in which they first appear. Without it, `...` stands for the dims that only the first
    tensor has, and what is contracted must be plain: either tensors share one dim that `out` does
    not name, and beside `...` `out` names dims of the other tensors only; or all such dims are
    `ins` of parameters among the tensors. Anything else could be meant in two ways: an error.

    Args:
      out: dims of the result (or names), with or without `...`.
      contract: the dims (or names) that are summed over, and no others are.
      precision, preferred_element_type: as in `jnp.einsum`.

    Raises:
      MeshDSLError: one name has two sizes, `out` or `contract` has a dim that no tensor has, a dim
        is in both or, where `contract` is given, in neither, or `...` could be meant in two ways.
    """
    loop, out = einsum_dims(tensors, out, contract)
    number = {d: i for i, d in enumerate(loop)}
    terms = [[number[d] for d in t.dims] for t in tensors]

    # `jnp.einsum` would look for a path, and trace a function of its own, for each product.
    of_two = _is_of_two(tensors, out, loop)

    def product(*arrays):
        if of_two and _are_alike(arrays[0], arrays[1], preferred_element_type):
            dims = (terms[0], terms[1], [number[d] for d in out])
            return _product_of_two(arrays[0], arrays[1], *dims, precision)
        operands = [item for pair in zip(arrays, terms, strict=True) for item in pair]
        return jnp.einsum(
            *operands,
            [number[d] for d in out],
            precision=precision,
            preferred_element_type=preferred_element_type,
        )

    in_parts = _in_parts(tensors, out)

    def local(at: DeviceLoop, *arrays):
        for dim, number in in_parts.items():
            if at.in_parts(dim) or at.result_in_parts(dim):
                return _by_parts(at, product, tensors, out, dim, number, arrays)
        return product(*arrays)

    dtype = preferred_element_type or tensors[0].dtype
    return apply_op(
        "einsum",
        local,
        tensors,
        loop=loop,
        out=out,
        in_order=(),
        linear=len(tensors) == 1 and sums_alike(tensors[0].dtype, dtype),
        by_parts=tuple([ByParts(d, (tensors[i].dims,), terms=True) for d, i in in_parts.items()]),
    )


def _is_of_two(tensors: Sequence[Tensor], out: Dims, loop: Dims) -> bool:
    """Whether there are two operands, and every dim that is summed over is in both."""
    if len(tensors) != 2 or len(loop) > 26:  # beyond 26 `jnp.einsum` takes dims in another order
        return False
    one, other = (set(t.dims) for t in tensors)
    return (one ^ other) <= set(out)


def _are_alike(x, y, preferred) -> bool:
    """Whether two arrays are traced and have one dtype, which their product has too."""
    if not (isinstance(x, Tracer) and isinstance(y, Tracer)):
        return False
    of_x: Any = x.aval
    of_y: Any = y.aval
    alike = x.dtype == y.dtype and (preferred is None or preferred == x.dtype)
    return alike and not (of_x.weak_type or of_y.weak_type)


def _product_of_two(x, y, x_dims: list, y_dims: list, out: list, precision) -> jax.Array:
    """The product of two arrays, by the same primitives as `jnp.einsum`.

    Args:
      x_dims, y_dims, out: the dims of the arrays and of the result, as numbers.
    """
    batch = [d for d in out if d in x_dims and d in y_dims]
    summed = sorted(d for d in x_dims if d not in out)
    x_rest, y_rest = ([d for d in dims if d in out and d not in batch] for dims in (x_dims, y_dims))
    order = [*batch, *x_rest, *y_rest]
    if order != out:
        order = [*batch, *y_rest, *x_rest]
        x, y, x_dims, y_dims = y, x, y_dims, x_dims
    at = lambda found: tuple([tuple([dims.index(d) for d in found]) for dims in (x_dims, y_dims)])
    numbers: Any = (at(summed), at(batch))
    array = lax.dot_general(x, y, numbers, precision=precision, preferred_element_type=x.dtype)
    return array if order == out else lax.transpose(array, [order.index(d) for d in out])


def _by_parts(
    at: DeviceLoop, product: Callable, tensors, out: Dims, dim: Dim, number: int, arrays
) -> jax.Array:
    """The product of `arrays`, computed part by part along `dim`.

    Args:
      number: the number of the one operand that has `dim`.
    """
    others = arrays[:number] + arrays[number + 1 :]
    of_one = lambda x, *others: product(*others[:number], x, *others[number:])
    positions = tensors[number].dims.index(dim), out.index(dim)
    if (parts := at.in_parts(dim)) is not None:
        return ring_products.of_arriving(of_one, parts, arrays[number], others, *positions)
    parts = at.result_in_parts(dim)
    return ring_products.summed(of_one, parts, arrays[number], others, *positions)


def _in_parts(tensors, out: Dims) -> dict[Dim, int]:
    """The dims that may come part by part, each with the number of the operand that has it.

    Only one operand may have such a dim: the parts of two operands would arrive at other times.
    """
    scope = next((t.placement.scope for t in tensors if t.placement is not None), None)
    if scope is None or not scope.layout.by_parts:
        return {}
    if not all(t.size and jnp.issubdtype(t.dtype, jnp.inexact) for t in tensors):
        return {}
    found = {}
    for d in out:
        having = [i for i, t in enumerate(tensors) if d in t.dims]
        if d.name in scope.layout.by_parts and len(having) == 1 < len(tensors):
            found[d] = having[0]
    return found


def einsum_dims(tensors: Sequence[Tensor], out, contract=None) -> tuple[Dims, Dims]:
    """All dims of an einsum, and those of its result, after the checks; see `einsum`."""
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise MeshDSLError(
            "einsum: the operands are Tensors, not "
            f"[{', '.join(type(t).__name__ for t in tensors)}]"
        )
    loop = dim_algebra.union("einsum", [t.dims for t in tensors])
    out = dim_algebra.resolve("einsum, out", loop, out, new=False)
    if contract is not None:
        contract = dim_algebra.find_all("einsum, contract", loop, contract)
    if any(d is ... for d in out):
        named = [d for d in out if d is not ...]
        if contract is None:
            _check_rest(tensors, named, loop)
            rest = _own(tensors[0], tensors[1:])
        else:
            rest = dim_algebra.without(loop, contract)
        out = filled(out, rest)
    out = dim_algebra.distinct(out, "einsum")
    for d in out:
        if d not in loop:
            known = nearest(d.name, [e.name for e in loop])
            raise MeshDSLError(f"einsum: out has {d}, which is in none of {_shown(tensors)}{known}")
    if contract is not None:
        _check_contract(tensors, out, contract, loop)
    return loop, out


def filled(out: tuple, rest: Iterable[Dim]) -> tuple:
    """`out`, with the dims of `rest` that it does not name in the place of `...`."""
    if ... not in out:
        return out
    at = out.index(...)
    return (*out[:at], *[d for d in rest if d not in out], *out[at + 1 :])


def _own(tensor, others) -> Dims:
    """The dims that `tensor` has and none of `others`."""
    return dim_algebra.without(tensor.dims, [d for t in others for d in t.dims])


def _check_rest(tensors, named: list[Dim], loop: Dims) -> None:
    """Raise a MeshDSLError if `...`, without `contract`, leaves open which dims are contracted."""
    dims = [d for t in tensors for d in t.dims]
    shared = [d for d in loop if dims.count(d) > 1 and d not in named]
    ins = {name for t in tensors if t.role for name in t.role.ins}
    if not shared or all(d.name in ins for d in shared):
        return
    kept = [d for d in _own(tensors[0], tensors[1:]) if d in named]
    if len(shared) == 1 and not kept:
        return
    names = ", ".join(d.name for d in shared)
    raise MeshDSLError(
        f"einsum: {_shown(tensors)} share {dim_algebra.show(shared)}, which `out` does not name, "
        "and its `...` does not say whether to keep or to contract that. Write "
        f"contract={names if len(shared) == 1 else f'({names})'}, less what is to be kept: then "
        "`...` stands for all other dims. Or write the dims of `out` one by one, without `...`"
    )


def _check_contract(tensors, out: Dims, contract: Dims, loop: Dims) -> None:
    if both := [d for d in contract if d in out]:
        raise MeshDSLError(f"einsum: {dim_algebra.show(both)} cannot be in `out` and in `contract`")
    if neither := dim_algebra.without(loop, (*out, *contract)):
        raise MeshDSLError(
            f"einsum: {dim_algebra.show(neither)} of {_shown(tensors)} is neither in `out` nor in "
            "`contract`; name it in one of them, or write `...` in `out` to keep it"
        )


def _shown(tensors) -> str:
    return ", ".join(dim_algebra.show(t.dims) for t in tensors)


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
    return einsum(
        x,
        cast(weight, x.dtype),
        out=dot_dims("dot", x, weight),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def dot_dims(name: str, x: Tensor, weight: Tensor) -> Dims:
    """The dims of `x` times a weight, after the checks of an op `name` of the two; see `dot`."""
    ins = weight.role.ins if weight.role else ()
    if not ins:
        raise MeshDSLError(
            f"{name}: the second operand {dim_algebra.show(weight.dims)} does not say which dims "
            "it contracts; make it with `ins`, by md.normal(key, dims, ins=...) or "
            "md.parameter(array, dims, ins=...), or write md.einsum(x, w, out=(...))"
        )
    loop = dim_algebra.union(name, [x.dims, weight.dims])
    names = [d.name for d in x.dims]
    for each in ins:
        if each not in names:
            raise MeshDSLError(
                f"{name}: the weight {dim_algebra.show(weight.dims)} contracts "
                f"{weight.dim(each)}, which {dim_algebra.show(x.dims)} lacks{nearest(each, names)}"
            )
    if jnp.issubdtype(weight.dtype, jnp.inexact) and not jnp.issubdtype(x.dtype, jnp.inexact):
        raise MeshDSLError(
            f"{name}: {dim_algebra.show(x.dims)} is {x.dtype}, in which a weight of {weight.dtype} "
            "would lose its fractions; md.cast it first, or look indices up with md.take"
        )
    return tuple([d for d in loop if d.name not in ins])
