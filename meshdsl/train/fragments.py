"""Fragments: the parts of a model that workers exchange at different times.

A stack of layers is cut along its dim: of four fragments each has a quarter of the layers, one
after the other. A parameter that is in no stack, such as an embedding, is in one fragment as a
whole, the one that is smallest by then. Which fragment a parameter is in depends on the model and
the number of fragments alone, and not on the layout.

Douillard et al., 2025, "Streaming DiLoCo with overlapping communication".
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.trained import parameters_by_name

_CUT = "layers_exchanged"  # the dim of a part of a stack; no rule of a layout speaks of it


class Part(NamedTuple):
    """The part of a parameter that is in a fragment: so many elements of its first dim."""

    start: int
    size: int

    def of(self, x: Tensor, dim: Dim) -> Tensor:
        """This part of `x`, inside of a lowering.

        Args:
          dim: the first one of the parameter.
        """
        return x if self.size == dim.size else md.slice(x, dim, self.start, Dim(_CUT, self.size))

    def spread(self, array: jax.Array, size: int) -> jax.Array:
        """`array`, of this part, with zeros in the place of the others of a dim of this size."""
        around = (self.start, size - self.start - self.size)
        return jnp.pad(array, [around, *[(0, 0)] * (array.ndim - 1)]) if any(around) else array

    def chosen(self, new: jax.Array, old: jax.Array, at: int = 0) -> jax.Array:
        """`new` in this part, and `old` in the others.

        Args:
          at: the position of the first dim of the parameter in these arrays.
        """
        if new.ndim <= at or self.size == (size := new.shape[at]):
            return new
        index = np.arange(size)
        inside = (index >= self.start) & (index < self.start + self.size)
        return jnp.where(inside.reshape(-1, *[1] * (new.ndim - at - 1)), new, old)


# For each parameter that is in a fragment, by its name, the part of it.
Fragment = Mapping[str, Part]


def fragments_of(trained: Any, count: int) -> list[Fragment]:
    """So many fragments, of about equal size, that have all parameters between them.

    Raises:
      MeshDSLError: there are fewer parameters and layers than fragments.
    """
    by_name = parameters_by_name(trained)
    stacks = {name for x in by_name.values() if (name := _stack(x))}
    found: list[dict[str, Part]] = [{} for _ in range(count)]
    sizes = [0] * count
    alone = []
    for name, x in by_name.items():
        if not (x.dims and x.dims[0].name in stacks):
            alone.append(name)
            continue
        layers = x.dims[0].size
        for i in range(count):
            start, stop = layers * i // count, layers * (i + 1) // count
            if stop > start:
                found[i][name] = Part(start, stop - start)
                sizes[i] += (stop - start) * _size(x) // layers
    for name in sorted(alone, key=lambda name: -_size(by_name[name])):
        i = sizes.index(min(sizes))
        found[i][name] = _all_of(by_name[name])
        sizes[i] += _size(by_name[name])
    if not all(found):
        raise MeshDSLError(
            f"local.fragments={count}: the model has layers and parameters for "
            f"{sum(map(bool, found))} only"
        )
    return list(found)


def _stack(x: Tensor) -> str:
    """The name of the dim along which matrices are stacked; empty if `x` is no such parameter."""
    if not (x.role and x.role.ins) or x.dims[0].name in (*x.role.ins, *x.role.outs):
        return ""
    return x.dims[0].name


def _all_of(x: Tensor) -> Part:
    return Part(0, x.dims[0].size if x.dims else 1)


def _size(x: Tensor) -> int:
    return prod(dim.size for dim in x.dims)
