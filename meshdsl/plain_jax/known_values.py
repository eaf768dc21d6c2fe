"""The results of equations whose operands are known while names are inferred, by NumPy.

JAX would compile each primitive of them by itself, which takes longer than the trace of a model.
Only what NumPy computes to the last bit as JAX does is left to it; all else JAX computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshdsl.plain_jax.evaluate import bind_arrays
from meshdsl.plain_jax.program import Equation

_FUNCTIONS: dict[str, Callable] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "copy": np.asarray,
    "copy_p": np.asarray,
    "eq": np.equal,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "stop_gradient": np.asarray,
    "sub": np.subtract,
}
_KINDS = "biuf"  # dtypes that NumPy has itself


def known_result(e: Equation, operands: Sequence[Any]) -> Any:
    """The array that an equation with one result makes of known operands.

    Of an elementwise one the operands may be numbers, which stand for arrays.
    """
    values = (*e.ins, e.outs[0])
    if all(not v.is_key and np.dtype(v.dtype).kind in _KINDS for v in values):
        with np.errstate(all="ignore"):  # as JAX is silent about what overflows
            made = _by_numpy(e, [np.asarray(x) for x in operands])
        if made is not None:
            return np.asarray(made, e.outs[0].dtype)
    with jax.ensure_compile_time_eval():
        return bind_arrays(e.primitive, e.params, operands)[0]


def _by_numpy(e: Equation, xs: list[np.ndarray]) -> Any:
    """The result by NumPy; None where it might be another than that of JAX."""
    name, params, shape = e.name, e.params, tuple(e.outs[0].shape)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*xs)
    if name == "iota" and not xs:
        along = [1] * len(shape)
        along[params["dimension"]] = -1
        numbers = np.arange(shape[params["dimension"]]).astype(e.outs[0].dtype)
        return np.broadcast_to(numbers.reshape(along), shape)
    if name == "broadcast_in_dim" and len(xs) == 1:
        at = dict(zip(params["broadcast_dimensions"], xs[0].shape, strict=True))
        return np.broadcast_to(xs[0].reshape([at.get(i, 1) for i in range(len(shape))]), shape)
    if name in ("squeeze", "expand_dims") or (name == "reshape" and not params.get("dimensions")):
        return xs[0].reshape(shape)
    if name == "transpose":
        return np.transpose(xs[0], params["permutation"])
    if name == "concatenate":
        return np.concatenate(xs, params["dimension"])
    if name == "select_n" and len(xs) == 3 and xs[0].dtype == bool:
        return np.where(xs[0], xs[2], xs[1])
    if name == "convert_element_type":
        return _converted(xs[0], np.dtype(e.outs[0].dtype))
    return None


def _converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """`x` in another dtype; None for floats that no number of the dtype stands for."""
    if x.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not ((x > limits.min) & (x < limits.max)).all():
            return None
    return x.astype(dtype)
