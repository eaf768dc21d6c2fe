"""Collectives: what they do to the places of elements."""

from __future__ import annotations

from collections.abc import Sequence

from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Label, Part, Value, cut, fresh, relabelled

Axes = Sequence[tuple[Label, int]]  # with their sizes, major first


def given_out(value: Value, dim: int, axes: Axes) -> Value:
    """Each device along `axes` keeps its part of a local dim.

    Raises:
      NotProved: the parts of the dim do not fit the axes, or devices along one differ already.
    """
    axes = [(axis, size) for axis, size in axes if size > 1]
    rest = value.shape[dim]
    for axis, size in axes:
        if rest % size:
            raise NotProved(f"{value.shape[dim]} indices do not divide over `{axis}`")
        rest //= size
    value, runs = cut(value, dim, [*(size for _, size in axes), rest])
    names = {}
    for (axis, _), run in zip(axes, runs, strict=False):
        if len(run) != 1:
            raise NotProved(f"what devices along `{axis}` keep consists of several parts")
        if run[0].label is not None:
            names[run[0].label] = axis
    if twice := [axis for axis in names.values() if axis in value.labels]:
        raise NotProved(f"devices along `{twice[0]}` differ, and each keeps another part")
    dims = [runs[-1] if d == dim else parts for d, parts in enumerate(value.dims)]
    return relabelled(Value(value.term, value.parts, tuple(dims)), names)


def gathered(value: Value, dim: int, axes: Axes) -> Value:
    """What the devices along `axes` have, put together along a local dim."""
    value, front = _held(value, axes)
    return value.at((*front, *p) if d == dim else p for d, p in enumerate(value.dims))


def exchanged(value: Value, cut_dim: int, joined_dim: int, axes: Axes) -> Value:
    """An all_to_all: each device gets its part of a dim from all, put together along another."""
    value, front = _held(value, axes)
    value = given_out(value, cut_dim, axes)
    return value.at((*front, *p) if d == joined_dim else p for d, p in enumerate(value.dims))


def _held(value: Value, axes: Axes) -> tuple[Value, list[Part]]:
    """`value` with parts of its own in place of axes, and these parts, none of which has a dim."""
    names = {axis: fresh() for axis, size in axes if axis in value.labels}
    front = [Part(size, names.get(axis)) for axis, size in axes if size > 1]
    return relabelled(value, names), front
