"""Wires: the formats in which terms of a sum may travel between devices, by name.

A sum in few bits is not exact, so it is taken only where somebody asks for it: over the axes of
`value_and_grad(wire=...)`. A wire says how blocks of numbers are encoded before they are sent, and
decoded where they arrive; `lowering.lossy_sums` does the rest. All wires are in one table, those of
meshdsl too (`ops.precision.wires`), and `register_wire` adds others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshdsl.errors import MeshDSLError, nearest, quote

BLOCK = 128  # consecutive elements of the last dim that share what is known of their size
_SHAPES = (4, BLOCK), (3, 5)  # of blocks with which a wire is tried
_PARTS_OF_BYTES = {"int2", "uint2", "int4", "uint4", "float4_e2m1fn"}

Wired = tuple[tuple[str, str], ...]  # axes, each with the name of a wire


class Wire(NamedTuple):
    """A format in which terms of a sum travel, see `register_wire`."""

    name: str
    encode: Callable[[jax.Array, jax.Array], Any]
    decode: Callable[[Any, int], jax.Array]


WIRES: dict[str, Wire] = {}


def register_wire(name: str, encode: Callable, decode: Callable) -> None:
    """Add a format in which `value_and_grad(wire=...)` and `precision.wire` may send gradients.

        def encode(x, largest):  # signs, and how large the numbers are
            return jnp.packbits(x > 0, axis=1), jnp.mean(jnp.abs(x), axis=1, keepdims=True)

        def decode(sent, width):
            signs, size = sent
            return jnp.where(jnp.unpackbits(signs, axis=1, count=width), size, -size)

        md.register_wire("signs", encode, decode)

    Both functions are of plain arrays and are traced by JAX. What they compute of a row must depend
    on that row alone, and `decode` has to make NaN or infinity of a row that had any, because only
    then is a step that went wrong noticed.

    Args:
      name: what settings call it.
      encode: called with `x`, float32 [rows, width], and `largest`, float32 [rows, 1]; returns an
        array, or a pytree of arrays, which travel: each has a position for each row in front. A row
        is a block of 128 consecutive elements of the last dim of a gradient, or a piece of a block;
        `width` may be any number up to 128. `largest` is the largest magnitude in the whole block,
        and infinite where the block has a NaN.
      decode: called with what `encode` returned, of other rows, and with `width`; returns float32
        [rows, width].

    Raises:
      MeshDSLError: the name is taken, or the functions do not fit together.
    """
    where = f"register_wire: {quote(name)}"
    if not name.strip():
        raise MeshDSLError(f"register_wire: the name is a text, not {quote(name)}")
    if name in WIRES:
        raise MeshDSLError(f"{where} is taken; known: {', '.join(map(quote, WIRES))}")
    wire = Wire(name, encode, decode)
    for rows, width in _SHAPES:
        _check(where, wire, rows, width)
    WIRES[name] = wire


def _check(where: str, wire: Wire, rows: int, width: int) -> None:
    """Raise a MeshDSLError unless blocks of this shape come back as they were sent."""
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    sent = jax.eval_shape(wire.encode, array(rows, width), array(rows, 1))
    for leaf in jax.tree.leaves(sent):
        if leaf.shape[:1] != (rows,):
            raise MeshDSLError(
                f"{where}: `encode` gives an array of shape {leaf.shape} for {rows} rows; each "
                "array that travels has a position for each row in front"
            )
        if jnp.dtype(leaf.dtype).name in _PARTS_OF_BYTES:
            raise MeshDSLError(
                f"{where}: `encode` gives {leaf.dtype}, and devices send whole bytes; pack several "
                "numbers into a uint8, or give a dtype of 8 bits"
            )
    if not jax.tree.leaves(sent):
        raise MeshDSLError(f"{where}: `encode` gives no array that could travel")
    found = jax.eval_shape(lambda sent: wire.decode(sent, width), sent)
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
    if (shape, dtype) != ((rows, width), jnp.float32):
        what = "no array" if shape is None else f"{dtype} of shape {shape}"
        raise MeshDSLError(
            f"{where}: `decode` gives {what} for what `encode` made of float32 of shape "
            f"{(rows, width)}; it gives float32 of that shape"
        )


def wired(
    where: str, named: Mapping[str, str] | None, sizes: Mapping[str, int] | None = None
) -> Wired:
    """The axes that `named` names, each with its wire, after checking them.

    Args:
      where: what the message begins with.
      sizes: those of the axes of the mesh, where they are known. Axes of size 1 are left out.

    Raises:
      MeshDSLError: a wire is unknown, or the mesh lacks an axis.
    """
    if named is None:
        return ()
    for axis, name in named.items():
        if not isinstance(name, str) or name not in WIRES:
            raise MeshDSLError(
                f"{where}: gradients are sent over `{axis}` as {_known()}, not {quote(name)}"
                f"{nearest(name, WIRES, far='')}"
            )
        if sizes is not None and axis not in sizes:
            raise MeshDSLError(f"{where}: no axis `{axis}` in the mesh{nearest(axis, sizes)}")
    return tuple((a, name) for a, name in named.items() if sizes is None or sizes[a] > 1)


def check_summed(where: str, wired: Wired, summed: Iterable[str]) -> None:
    """Raise a MeshDSLError for an axis of `wired` that is not among `summed`."""
    for axis, name in wired:
        if axis not in summed:
            raise MeshDSLError(
                f"{where}: no gradient of two or more dims is summed over `{axis}`, so none can "
                f"be sent as {quote(name)}"
            )


def _known() -> str:
    *names, last = map(quote, WIRES)
    return f"{', '.join(names)} or {last}"
