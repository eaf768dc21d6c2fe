"""The dims of a loop whose devices hand on what they carry, and numbers that count along them."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshdsl.proof.forms.sums import linear
from meshdsl.proof.labels import Part, Parts, fresh, size_of
from meshdsl.proof.moves import Axes
from meshdsl.proof.terms import NotProved, Terms
from meshdsl.proof.values import Value


def parts_of(count: int, devices: int) -> Parts:
    """A dim of items: a part for the devices that may share them, and others of prime sizes."""
    shared = count % devices == 0 and devices > 1
    found, rest = ([devices], count // devices) if shared else ([], count)
    for prime in range(2, rest + 1):
        while rest % prime == 0:
            found.append(prime)
            rest //= prime
    return tuple(Part(size, fresh()) for size in found)


def axes_of(parts: Parts) -> Axes:
    return [(label, size) for size, label in parts if label is not None]


def counted(
    terms: Terms, table: np.ndarray, dtype: Any, turns: Parts, device: Part, items: Parts
) -> Value:
    """Numbers that are known at each turn of each item, as what counts these.

    Args:
      table: the numbers, with a dim for the turns, which are `turns` and then the devices, and one
        for the items.

    Raises:
      NotProved: they count something else.
    """
    begin, dims = table.flat[0], (turns, (device,), items)
    first = Value(terms.constant(begin, dtype), (), ())
    if (table == begin).all():
        return first
    shape = tuple(map(size_of, dims))
    if table.dtype == bool or table.size != np.prod(shape):
        raise NotProved("numbers do not count turns and items")
    table, pairs, each = (table.astype(int) - int(begin)).reshape(shape), [(1, first)], 0
    for dim, parts in enumerate(dims):
        if shape[dim] > 1:
            step = int(np.moveaxis(table, dim, 0)[1].flat[0])
            places = [-1 if d == dim else 1 for d in range(3)]
            each = each + step * np.arange(shape[dim]).reshape(places)
            pairs.append((step, Value(terms.iota(shape[dim]), (parts,), ())))
    if (table != each).any():
        raise NotProved("numbers do not count turns and items")
    return linear(terms, pairs, ())
