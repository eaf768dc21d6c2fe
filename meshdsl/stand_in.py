"""What is given to ops in the place of a Tensor, and computes some of them in a way of its own.

Every public op asks its operands for one, see `checked`. What stands for a Tensor is a node of a
pytree that is made of Tensors, so that loops and transformations carry it as they carry a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax

from meshdsl.dims import Dim, Dims
from meshdsl.tensor import Parameter, Tensor, is_tensor


class StandIn:
    """Stands for a weight in a model: for a Tensor that is computed where no op has a better way.

    Attributes:
      weight: a Tensor with the dims, the dtype and the role of what this stands for; or what stands
        for one.
      ways: for ops that have a better way, by their names: a function that is called with this, the
        op and the arguments of the call, and returns the result, or None if it does not apply.
    """

    weight: Any

    def of(self, weight: Any) -> StandIn:
        """The same for another weight."""
        raise NotImplementedError

    def as_tensor(self) -> Tensor:
        """The Tensor that this stands for."""
        raise NotImplementedError

    def _cast(self, op: Callable, args: tuple, named: dict[str, Any]) -> StandIn | None:
        """The same of Tensors in another dtype."""
        given = dict(zip(("x", "dtype"), args, strict=False)) | named
        if set(given) != {"x", "dtype"}:
            return None
        return jax.tree.map(lambda t: op(t, given["dtype"]), self, is_leaf=is_tensor)

    ways: Mapping[str, Callable] = MappingProxyType({"cast": _cast})

    def compute(self, op: Callable, args: tuple, named: dict[str, Any]) -> Any:
        """`op(*args, **named)`, where this is one of the arguments."""
        way = self.ways.get(op.__name__)
        result = way(self, op, args, named) if way else None
        if result is not None:
            return result
        return op(*map(as_tensor, args), **{name: as_tensor(x) for name, x in named.items()})

    @property
    def dims(self) -> Dims:
        return self.weight.dims

    @property
    def dtype(self) -> Any:
        return self.weight.dtype

    @property
    def role(self) -> Parameter | None:
        return self.weight.role

    def dim(self, name: str) -> Dim:
        """The dim called `name`."""
        return self.weight.dim(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "weight":
            raise AttributeError(name)
        return getattr(self.as_tensor(), name)


def _operator(name: str) -> Callable:
    return lambda self, *others: getattr(self.as_tensor(), name)(*map(as_tensor, others))


_OPERATORS = "add radd sub rsub mul rmul truediv rtruediv pow rpow neg abs lt le gt ge getitem"
for _name in _OPERATORS.split():
    setattr(StandIn, f"__{_name}__", _operator(f"__{_name}__"))


def as_tensor(x: Any) -> Any:
    """The Tensor that `x` stands for, or `x` itself; of a list or tuple, those of what it has."""
    if isinstance(x, (list, tuple)) and stand_in(tuple(x), {}) is not None:
        found = [as_tensor(each) for each in x]
        return tuple(found) if isinstance(x, tuple) else found
    return x.as_tensor() if isinstance(x, StandIn) else x


def stand_in(args: tuple, named: dict[str, Any]) -> StandIn | None:
    """The first of the arguments, and of what lists among them have, that stands for a Tensor."""
    for x in (*args, *named.values()) if named else args:
        if isinstance(x, StandIn):
            return x
        if isinstance(x, (list, tuple)):
            for each in x:
                if isinstance(each, StandIn):
                    return each
    return None
