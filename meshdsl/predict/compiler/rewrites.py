"""What compilers make of a collective that was asked for, as rules that compare two collectives.

A rule takes the compiled collective and a recorded one. It says how the first comes from the
second, in words that are empty where nothing was changed, and None where it does not come from it.
`meshdsl.predict.compiler.collectives` says where each was seen, and `match` tries them in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import jax.numpy as jnp

from meshdsl.program.collective import Collective

Rule = Callable[[Collective, Collective], str | None]

GATHERS = ("all_gather", "psum_scatter")
_PADDED = 2  # padding to whole tiles makes nothing larger than this
_TILE = 4096  # bytes, to which a scalar may be padded


def same(a: Collective, b: Collective) -> bool:
    """Whether both move the same, however often and wherever."""
    return (a.operation, a.axes, a.bytes, a.dtype) == (b.operation, b.axes, b.bytes, b.dtype)


def _as_recorded(compiled: Collective, recorded: Collective) -> str | None:
    return "" if same(compiled, recorded) else None


def _in_other_dtype(compiled: Collective, recorded: Collective) -> str | None:
    """The same elements in another dtype, as where bfloat16 is reduced in float32."""
    a, b = compiled, recorded
    if a.operation != b.operation or a.axes != b.axes or a.dtype == b.dtype:
        return None
    if _item_size(b) * a.bytes != _item_size(a) * b.bytes:
        return None
    ratio = a.bytes / b.bytes
    factor = f"{ratio:g} times the bytes" if ratio > 1 else f"1/{1 / ratio:g} of the bytes"
    return f"in {a.dtype}, not {b.dtype}: {factor}"


def _padded(compiled: Collective, recorded: Collective) -> str | None:
    """More bytes, because a dim was filled up to whole tiles."""
    a, b = compiled, recorded
    if a.operation != b.operation or a.axes != b.axes or a.dtype != b.dtype:
        return None
    if not b.bytes < a.bytes <= _PADDED * b.bytes:
        return None
    return f"{a.bytes:,} bytes instead of {b.bytes:,}: padded"


def _as_all_reduce(compiled: Collective, recorded: Collective, *, padded: int = 1) -> str | None:
    """A sum of arrays of the full size, of which each device uses or fills a part.

    Args:
      padded: by what factor it may be larger than what was recorded.
    """
    a, b = compiled, recorded
    if a.operation != "psum" or b.operation not in (*GATHERS, "all_to_all"):
        return None
    if a.axes != b.axes or a.dtype != b.dtype or not b.bytes <= a.bytes <= padded * b.bytes:
        return None
    return f"an all-reduce of the whole instead of {b.operation}"


def _in_a_tile(compiled: Collective, recorded: Collective) -> str | None:
    """A gather of a few whole numbers of 8 or 16 bits, as those of a wire, on TPUs."""
    a, b = compiled, recorded
    if (a.operation, b.operation) != ("psum", "all_gather") or a.axes != b.axes:
        return None
    few = b.dtype in ("int8", "uint8", "int16", "uint16") and b.bytes < a.bytes <= _TILE
    if not few or not jnp.issubdtype(jnp.dtype(a.dtype), jnp.integer):
        return None
    return f"an all-reduce of {a.bytes:,} bytes instead of {b.operation} of {b.bytes:,}"


def _as_all_to_all(compiled: Collective, recorded: Collective) -> str | None:
    """A scatter between processes on CPUs, which `lowering.collectives` keeps away from gloo."""
    a, b = compiled, recorded
    alike = (a.axes, a.bytes, a.dtype) == (b.axes, b.bytes, b.dtype)
    if not alike or (a.operation, b.operation) != ("all_to_all", "psum_scatter"):
        return None
    return "an all_to_all and a local sum instead of psum_scatter"


def inside_slice(
    between: Collection[str], compiled: Collective, recorded: Collective
) -> str | None:
    """The part of a collective that stays inside of a slice.

    Args:
      between: the axes of the mesh that go from slice to slice.
    """
    a, b = compiled, recorded
    inside = tuple(axis for axis in b.axes if axis not in between)
    if a.operation != b.operation or not a.axes == inside != b.axes:
        return None
    if a.bytes > max(_PADDED * b.bytes, _TILE):
        return None
    return f"the part inside a slice of {b.operation}({', '.join(b.axes)})"


# The rules, the plainest first; those of a group are tried together.
SAME_BYTES: tuple[Rule, ...] = (_as_recorded, _in_other_dtype)
FULL_SIZE: tuple[Rule, ...] = (_as_all_reduce, _as_all_to_all)
MORE_BYTES: tuple[Rule, ...] = (
    _padded,
    partial(_as_all_reduce, padded=_PADDED),
    _in_a_tile,
)


def _item_size(c: Collective) -> int:
    return jnp.dtype(c.dtype).itemsize
