"""The indices of a `gather` or a `scatter`: which column of them is for which position."""

from __future__ import annotations

from typing import NamedTuple

from meshdsl.plain_jax.program import Equation, Value
from meshdsl.plain_jax.static_masks import Affine, Definitions

# How scatters put updates, by primitive.
SCATTERS = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter-sub": "add",  # of the negative updates
    "scatter-max": "max",
    "scatter-min": "min",
}


class Column(NamedTuple):
    """One of the numbers that make up an index.

    Attributes:
      number: its place in an index.
      position: the position of the operand that it counts along.
      window: how many elements are taken from it on.
      size: the elements along the position.
    """

    number: int
    position: int
    window: int
    size: int


class Indexing(NamedTuple):
    """How one equation takes indices.

    Attributes:
      columns: those that are computed.
      together: for each position of the operand that goes together with one of the indices that.
      windows: for each position of the operand that of the result, or of the updates, where it
        stands, with all of its elements or some.
      batch: for each position of the indices, but the last, that of the result or the updates.
    """

    columns: list[Column]
    together: dict[int, int]
    windows: dict[int, int]
    batch: list[int]


def indexing(e: Equation) -> Indexing:
    """How a `gather` or a `scatter` takes its indices."""
    how, shape = e.params["dimension_numbers"], e.ins[0].shape
    if e.name == "gather":
        other, positions = e.outs[0], how.start_index_map
        inside, gone = how.offset_dims, how.collapsed_slice_dims
        batching = how.start_indices_batching_dims
    else:
        other, positions = e.ins[2], how.scatter_dims_to_operand_dims
        inside, gone = how.update_window_dims, how.inserted_window_dims
        batching = how.scatter_indices_batching_dims
    gone = (*gone, *how.operand_batching_dims)
    windows = dict(zip([i for i in range(len(shape)) if i not in gone], inside, strict=True))
    together = dict(zip(how.operand_batching_dims, batching, strict=True))
    together |= e.notes.get("aligned", {})
    size = lambda i: other.shape[windows[i]] if i in windows else 1
    columns = [
        Column(k, i, size(i), shape[i]) for k, i in enumerate(positions) if i not in together
    ]
    batch = [i for i in range(len(other.shape)) if i not in inside]
    return Indexing(columns, together, windows, batch)


def aligned(e: Equation, definitions: Definitions) -> dict[int, int]:
    """Positions of the operand whose index is that of a position of the indices.

    As in `x[jnp.arange(rows), ids]`, where each row looks into itself.
    """
    ids, found, how = e.ins[1], {}, indexing(e)
    for c in how.columns:
        column = _column(ids, c.number, definitions)
        what = None if column is None or c.window != 1 else definitions.read(column)
        if not isinstance(what, Affine) or what.constant or len(what.by_position) != 1:
            continue
        ((position, factor),) = what.by_position
        taken = position in (*found.values(), *how.together.values())
        if factor == 1 and c.size == ids.shape[position] and not taken:
            found[c.position] = position
    return found


def _column(ids: Value, number: int, definitions: Definitions) -> Value | None:
    """What makes up one column of indices; None where that cannot be told."""
    if ids.shape[-1:] == (1,):
        return ids
    e = definitions.by(ids, "concatenate")
    if e is None or e.params["dimension"] != len(ids.shape) - 1:
        return None
    alone = all(v.shape[-1] == 1 for v in e.ins)
    return e.ins[number] if alone else None
