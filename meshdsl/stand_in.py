"""What is given to ops in the place of a Tensor, and computes some of them in a way of its own.

Every public op asks its operands for one, see `checked`. What stands for a Tensor is a node of a
pytree that is made of Tensors, so that loops and transformations carry it as they carry a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshdsl.tensor import Tensor


class StandIn:
    """Stands for a Tensor that is computed where an op has no better way."""

    def as_tensor(self) -> Tensor:
        """The Tensor that this stands for."""
        raise NotImplementedError

    def compute(self, op: Callable, args: tuple, named: dict[str, Any]) -> Any:
        """`op(*args, **named)`, where this is one of the arguments."""
        return op(*map(as_tensor, args), **{name: as_tensor(x) for name, x in named.items()})


def as_tensor(x: Any) -> Any:
    """The Tensor that `x` stands for, or `x` itself; of a list or tuple, those of its elements."""
    if isinstance(x, (list, tuple)) and stand_in(tuple(x), {}) is not None:
        return [as_tensor(each) for each in x]
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
