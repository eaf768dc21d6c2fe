"""`local`: the way out of the language, for any JAX function of local arrays."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives, kernels
from meshdsl.lowering.law import apply_op
from meshdsl.ops.declare import of_x, op
from meshdsl.tensor import Tensor


@op(
    computes="any JAX function",
    mesh_tensorflow="SlicewiseOperation; gradients by hand",
    example=of_x(lambda local, x: local(jnp.sin, x, out=x.dims)),
)
def local(
    fn: Callable, *tensors: Tensor, out, whole=(), sums=(), starts=(), name: str | None = None
) -> Tensor:
    """Run a JAX function (a Pallas kernel, say) on what each device has.

    A function with a Pallas kernel needs no special care: it is called as on one device, and what
    it returns differs between devices wherever its operands do. Its derivative is of first order
    and in reverse mode: the one that it states by `jax.custom_vjp`, or one that Pallas finds.
    Backward kernels run under the same split as the forward one.

    What `fn` gets of a dim is a run of consecutive elements, whichever order the layout gives the
    parts.

    Args:
      fn: takes the local array of each tensor, its dims in the tensor's order, and returns the
        local array of the result. It must treat alike, and separately, the parts of every dim that
        may be split. It may be traced twice.
      out: dims of the result (or names of dims of the tensors).
      whole: dims that must not be split while `fn` runs. Those that the result lacks are gathered,
        but for `sums`.
      sums: dims that the result lacks and over which it is a sum: of a part of them `fn` gives a
        term, of the shape of the result, and the terms of all devices are added up. Where a dim is
        padded, its operands hold zeros there, of which `fn` must make nothing.
      starts: dims of which `fn` is also told where its part begins: after the arrays it is given
        the index of the first element for each, an int32 without dims.
      name: what errors and `explain` call the op; by default the function's name.

    Raises:
      MeshDSLError: one name has two sizes, `sums` has a dim of the result or one that is to be
        whole, or the result of `fn` has another shape than a part of `out`.
    """
    known = [d for t in tensors for d in t.dims]
    out = dim_algebra.distinct(dim_algebra.resolve("local, out", known, out), "local")
    loop = dim_algebra.union("local", [*(t.dims for t in tensors), out])
    named = dim_algebra.find_all("local", loop, whole)
    summed = dim_algebra.find_all("local, sums", loop, sums)
    begin = dim_algebra.find_all("local, starts", loop, starts)
    for d in summed:
        if d in out or d in named:
            there = "the result has it" if d in out else "it is to be whole"
            raise MeshDSLError(
                f"local, sums: no sum over {d}, because {there}; sums are over dims that the "
                "result lacks and that may be split"
            )
    new = {d for d in out if not any(d in t.dims for t in tensors)}
    kept = {*out, *summed} - {*named, *new}
    unsplit = tuple(d for d in loop if d not in kept)
    title = name or str(getattr(fn, "__name__", "local"))

    def on_device(at, *arrays):
        axes = collectives.varying_in(arrays)
        offsets = [jnp.asarray(at.offset(d), jnp.int32) for d in begin]
        arrays = (*arrays, *[collectives.vary(x, axes) for x in offsets])
        result = kernels.called(fn, arrays, title) if at.lowered and arrays else fn(*arrays)
        return at.fitting(result, out, title)

    return apply_op(title, on_device, tensors, loop=loop, out=out, unsplit=unsplit)
