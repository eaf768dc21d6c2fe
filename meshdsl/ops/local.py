"""`local`: the way out of the language, for any JAX function of local arrays."""

from __future__ import annotations

from collections.abc import Callable

from meshdsl import dims as dim_algebra
from meshdsl.lowering.run import run
from meshdsl.tensor import Tensor


def local(fn: Callable, *tensors: Tensor, out, whole=(), name: str | None = None) -> Tensor:
    """Run a JAX function (a Pallas kernel, say) on what each device has.

    Args:
      fn: takes the local array of each tensor, its dims in the tensor's order, and returns the local array of the
        result. It must treat alike, and separately, the parts of every dim that is not whole.
      out: dims of the result.
      whole: dims that must not be split while `fn` runs. Dims that the result lacks are always whole.

    Raises:
      MeshDSLError: one name has two sizes, or the result of `fn` has another shape than a part of `out`.
    """
    out = dim_algebra.distinct(out, "local")
    loop = dim_algebra.union("local", [*(t.dims for t in tensors), out])
    named = dim_algebra.find_all("local", loop, whole)
    new = {d for d in out if not any(d in t.dims for t in tensors)}
    unsplit = tuple(d for d in loop if d in named or d not in out or d in new)
    name = name or getattr(fn, "__name__", "local")
    return run(name, lambda at, *arrays: at.fitting(fn(*arrays), out, name), tensors, loop=loop, out=out, whole=unsplit)
