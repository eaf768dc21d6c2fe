"""What Python, NumPy and JAX may ask of a Tensor that is no op: a value, its shape, a truth value.

Outside of a lowering a Tensor is a whole array, so numbers and NumPy arrays come out of it.
Inside of one, and while JAX traces a function, there is no value yet, and asking for it is an
error. Where other arrays have positions a Tensor has names: what goes by position is an error
that says what to write.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError

SHOWN = 100  # elements of the largest Tensor whose values `repr` shows


class Values:
    """The part of `Tensor` that is said in the docstring of this module."""

    __slots__ = ()
    dims: Dims
    stored: Any
    array: Any
    placement: Any
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dims: those of the whole tensor, inside of a lowering too.

        What one device has there is the shape of `array`.
        """
        return tuple([d.size for d in self.dims])

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.dims)

    def item(self):
        """The value of a tensor with one element, as a Python number, outside of a lowering."""
        value = self._value("item")
        if value.size != 1:
            raise MeshDSLError(
                f"item: a Tensor {self._named} has {value.size} elements; np.asarray(t) gives them "
                "all, and ops such as md.sum, md.max or md.slice make one of them"
            )
        return value.item()

    def __float__(self) -> float:
        return float(self._number("float"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def __complex__(self) -> complex:
        return complex(self._number("complex"))

    def __bool__(self) -> bool:
        if self.dims or self.placement is not None:
            raise MeshDSLError(
                f"a Tensor {self._named} has no truth value; use md.cond, or md.where per element. "
                "Outside of a lowering md.all and md.any give one for all elements; to look for a "
                "Tensor in a list, which `in` does by truth values of `==`, use "
                "any(t is u for u in list)"
            )
        return bool(self._value("bool"))

    def __format__(self, spec: str) -> str:
        return format(self._number("format"), spec) if spec else str(self)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(np.asarray(self._value("np.asarray")), dtype=dtype, copy=copy)

    def __array_function__(self, function, types, args, kwargs):
        """A function of NumPy takes Tensors as arrays, not by methods such as `sum` and `max`."""
        arrays = lambda x: np.asarray(x) if isinstance(x, Values) else x
        args, kwargs = jax.tree.map(arrays, (args, kwargs), is_leaf=lambda x: isinstance(x, Values))
        return function(*args, **kwargs)

    @property
    def __jax_array__(self):
        """JAX asks for this before it takes an object for an array, and this says that it is none.

        The operators of JAX's arrays ask too, `array * t`, and go on with ours when what they get
        is no array. So the error is left to what a function of JAX does with it next. Only where
        `jax.grad` and `jax.lax` look at a value they go no further, and their own error would
        mislead.
        """
        found = _NoArray(f"JAX takes arrays, and this is a Tensor {self._named}; {_INSTEAD}")
        if sys._getframe(1).f_code.co_name in ("typeof", "bind"):
            found.refuse()
        return found.pass_on

    def __len__(self) -> int:
        raise self._by_name(
            "len(t), or list(t)",
            't.dim("{0}").size is the size of a dim; md.unstack(t, "{0}") gives parts',
        )

    def __setitem__(self, index, value):
        raise self._by_name(
            "t[...] = x", "a Tensor does not change; md.where and md.scatter make another"
        )

    def __matmul__(self, other):
        raise self._by_name("t @ u", "contract by name: md.einsum(t, u, out=(...))")

    __rmatmul__ = __matmul__

    def _expected_shape(self) -> tuple[int, ...]:
        """The shape of an array that has the dims: inside of a lowering that of a device."""
        return (
            self.placement.scope.local_shape(self.dims, self.placement.axes)
            if self.placement
            else self.shape
        )

    @property
    def _named(self) -> str:
        return dim_algebra.show(self.dims)

    def _number(self, what: str):
        if self.dims:
            raise MeshDSLError(
                f"{what}: a Tensor {self._named} is not one number; md.sum, md.mean and the "
                "like make one of it, np.asarray(t) gives all"
            )
        return self._value(what).item()

    def _value(self, what: str):
        """The whole array, which `what` needs."""
        if self.placement is not None:
            raise MeshDSLError(
                f"{what}: inside of a lowering a Tensor {self._named} has no value yet; return it "
                "from the lowered function and take its value outside, or use ops on it"
            )
        check_shape(what, self)
        array = self.array
        if isinstance(array, Tracer):
            raise MeshDSLError(
                f"{what}: a Tensor {self._named} has no value while JAX traces the function that "
                "it is in (jit, grad, vmap, scan, ...); return it from there, or use ops on it"
            )
        if not isinstance(array, (np.ndarray, np.generic, jax.Array)):
            raise MeshDSLError(
                f"{what}: a Tensor {self._named} has no value: it holds {held(array)}"
            )
        if isinstance(array, jax.Array) and not (
            array.is_fully_addressable or array.is_fully_replicated
        ):
            raise MeshDSLError(
                f"{what}: this process has parts of a Tensor {self._named}; see t.local_shards()"
            )
        return array

    def _by_name(self, what: str, instead: str) -> MeshDSLError:
        instead = instead.format(self.dims[0].name if self.dims else "dim")
        return MeshDSLError(
            f"{what}: the dims of a Tensor {self._named} have names, no order; {instead}"
        )

    def _shown_values(self) -> str:
        """The values of a small Tensor that has some here, to stand at the end of its `repr`."""
        array = self.stored
        if self.placement is not None or isinstance(array, Tracer) or self.size > SHOWN:
            return ""
        if not isinstance(array, (np.ndarray, np.generic, jax.Array)):
            return ""
        if isinstance(array, jax.Array) and (array.is_deleted() or not array.is_fully_addressable):
            return " (deleted)" if array.is_deleted() else ""
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return ""
        text = str(np.asarray(array))
        return f"\n{text}" if "\n" in text else f" {text}"


_INSTEAD = (
    "write md.f(t) for jnp.f(t) or lax.f(t) (md.einsum for products of matrices), md.map(f, t) or "
    "md.local(f, t, out=...) for what md lacks, and t.array where an array is meant: a function "
    "for jax.grad returns loss.array, one for md.value_and_grad the Tensor"
)


class _NoArray:
    """What JAX gets instead of an array: whatever it looks for in it, the error comes."""

    def __init__(self, text: str):
        self._text = text

    def pass_on(self) -> _NoArray:
        return self

    def refuse(self, *_):
        raise MeshDSLError(self._text)

    __getattr__ = __repr__ = __str__ = __format__ = refuse


def held(array) -> str:
    """What a Tensor holds instead of an array, for messages."""
    return "None" if array is None else f"a {type(array).__name__}"


def check_shape(where: str, x) -> None:
    """That the array of a Tensor has the shape that its dims say.

    JAX makes Tensors of whatever a function of their arrays gave, in `jax.tree.map` or
    `jax.vmap`, also of arrays with other dims. Nothing can be said there, so it is said where
    such a Tensor is used.
    """
    expected, found = x._expected_shape(), getattr(x.stored, "shape", None)
    if found != expected:
        raise other_shape(where, x, expected, found)


def other_shape(where: str, x, expected, found) -> MeshDSLError:
    local = " on a device" if x.placement is not None else ""
    holds = f"an array of shape {tuple(found)}" if found is not None else held(x.stored)
    return MeshDSLError(
        f"{where}: a Tensor {dim_algebra.show(x.dims)} needs an array of shape {tuple(expected)}"
        f"{local} and holds {holds}. What maps over the arrays of Tensors (jax.tree.map, jax.vmap) "
        "keeps their dims: change dims by ops of md, map by md.over, or give an array dims of its "
        "own, md.tensor(array, dims)"
    )


def array_of(where: str, x):
    """The array of an operand as one of JAX, with which arithmetic is that of JAX."""
    return of_jax(where, x, x.array)


def of_jax(where: str, x, array):
    """`array`, which is that of `x`, as one of JAX."""
    kind = _KINDS.get(type(array)) or _kind(type(array))
    if kind == "jax":
        return array
    if kind == "host":
        return jax.numpy.asarray(array)
    raise MeshDSLError(
        f"{where}: an operand {dim_algebra.show(x.dims)} has no values: it holds {held(array)}; "
        "give it an array, or call this within jax.eval_shape, jax.jit or a lowered function"
    )


_KINDS: dict[type, str] = {}


def _kind(of: type) -> str:
    jaxes = issubclass(of, (jax.Array, Tracer))
    _KINDS[of] = "jax" if jaxes else "host" if issubclass(of, (np.ndarray, np.generic)) else "none"
    return _KINDS[of]


def canonical(where: str, array, dims: Dims):
    """A NumPy array in the dtype that `jnp.asarray` would give it; it stays on the host."""
    if not (jax.numpy.issubdtype(array.dtype, np.number) or array.dtype == bool):
        shown = dim_algebra.show(dims)
        raise MeshDSLError(
            f"{where}: an array {shown} of {array.dtype} has no numbers and no bools"
        )
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
