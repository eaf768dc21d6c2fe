"""einsum over names: contracts every dim that `out` does not have.

Each device contracts what it has, three operands or more in the order that `opt_einsum` finds best for the sizes that the device has.
A dim that is split and contracted leaves a pending sum.
"""

from __future__ import annotations

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.lowering.run import run, sums_alike
from meshdsl.tensor import Tensor


def einsum(*tensors: Tensor, out, precision=None, preferred_element_type=None) -> Tensor:
    """The product of the tensors, summed over every dim that is not in `out`.

    Any number of tensors, the same one more than once, and tensors without dims, which scale the result.
    Of bools it is whether any of the products is true, and sums of integers wrap around, as in
    `jnp.einsum`.

    Args:
      out: dims of the result, a tuple of Dims. `...` in it stands for the dims of the first tensor that no other
        tensor has and `out` does not name.
      precision, preferred_element_type: as in `jnp.einsum`.

    Raises:
      MeshDSLError: one name has two sizes, or `out` has a dim that no tensor has.
    """
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise MeshDSLError(f"einsum: the operands are Tensors, not [{', '.join(type(t).__name__ for t in tensors)}]")
    loop = dim_algebra.union("einsum", [t.dims for t in tensors])
    out = _out_dims(tensors, out, loop)
    number = {d: i for i, d in enumerate(loop)}
    terms = [[number[d] for d in t.dims] for t in tensors]

    def local(_, *arrays):
        operands = [item for pair in zip(arrays, terms, strict=True) for item in pair]
        return jnp.einsum(*operands, [number[d] for d in out], precision=precision, preferred_element_type=preferred_element_type)

    made = preferred_element_type or tensors[0].dtype
    linear = len(tensors) == 1 and sums_alike(tensors[0].dtype, made)
    return run("einsum", local, tensors, loop=loop, out=out, linear=linear)


def _out_dims(tensors, out, loop: Dims) -> Dims:
    out = (out,) if isinstance(out, Dim) else tuple(out)
    if ... in out:
        named = {d for d in out if d is not ...}
        others = {d for t in tensors[1:] for d in t.dims}
        rest = tuple(d for d in tensors[0].dims if d not in others and d not in named)
        at = out.index(...)
        out = out[:at] + rest + out[at + 1 :]
    out = dim_algebra.distinct(out, "einsum")
    for d in out:
        if d not in loop:
            shown = ", ".join(dim_algebra.show(t.dims) for t in tensors)
            raise MeshDSLError(f"einsum: out has {d}, which is in none of {shown}{nearest(d.name, [e.name for e in loop])}")
    return out
