"""Which parameters are matrices: weight decay and muon ask.

It is not guessed from their ranks: a parameter Tensor says which of its dims it contracts
(`role.ins`), so a weight that is stacked over a `layers` dim is still known to be a matrix.
"""

from __future__ import annotations

from typing import Any

import jax
from optax.contrib import MuonDimensionNumbers

from meshdsl.tensor import Tensor, is_tensor


def is_matrix(parameter: Tensor) -> bool:
    """Whether the parameter is one that an einsum contracts with its input."""
    return bool(parameter.role and parameter.role.ins)


def matrices(parameters: Any) -> Any:
    """A tree prefix of `parameters`: whether each Tensor is a matrix."""
    return jax.tree.map(is_matrix, parameters, is_leaf=is_tensor)


def matrix_of(parameter: Tensor) -> tuple[str, ...]:
    """The names of the dims that are rows or columns of a parameter's matrices.

    The dims that a weight contracts are its rows, the dims that it makes are its columns, and over
    all others its matrices are stacked.
    """
    assert parameter.role is not None
    return (*parameter.role.ins, *parameter.role.outs)


def numbers_of(parameter: Tensor) -> MuonDimensionNumbers:
    """The positions of rows and of columns among the dims of a parameter that is a matrix."""
    assert parameter.role is not None
    position = {dim.name: index for index, dim in enumerate(parameter.dims)}
    ins, outs = parameter.role.ins, parameter.role.outs
    return MuonDimensionNumbers(
        tuple(position[name] for name in ins), tuple(position[name] for name in outs)
    )
