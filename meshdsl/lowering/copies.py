"""The copy of a parameter that is at hand, and is used in the place of moving the parameter itself.

Under ZeRO-2 a parameter has two arrays while gradients are taken, see `parameter_copies`: a
device's part, by which the program is differentiated, and a copy that is less split. The scope of
the lowering keeps the copy, under the array of the part.
"""

from __future__ import annotations

from meshdsl.tensor import Tensor


def copy_of(x: Tensor) -> Tensor | None:
    """The copy that is at hand of the parameter `x`; None where there is none."""
    if x.placement is None or x.placement.level != "gradients":
        return None
    _, copy = x.placement.scope.copies.get(id(x.stored), (None, None))
    return copy


def with_copy(x: Tensor, copy: Tensor | None = None) -> Tensor:
    """`x`, of which `copy` is at hand from then on, unless that is None."""
    if copy is not None:
        x.placement.scope.copies[id(x.stored)] = (
            x.stored,
            copy,
        )  # it must live as long as its id counts
    return x
