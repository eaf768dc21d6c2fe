"""Collectives: what they do to the places of elements."""

from __future__ import annotations

from collections.abc import Sequence

from meshdsl.proof.labels import (
    Label,
    Major,
    Minor,
    Part,
    Parts,
    Sent,
    axis_of,
    fresh,
    labelled,
    size_of,
)
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, cut, relabelled

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
        value, part = _in_one(value, run)
        if part is None:
            raise NotProved(f"what devices along `{axis}` keep consists of several parts")
        if part.label is not None:
            names[part.label] = axis
    if twice := [axis for axis in names.values() if axis in value.labels]:
        raise NotProved(f"devices along `{twice[0]}` differ, and each keeps another part")
    dims = [runs[-1] if d == dim else parts for d, parts in enumerate(value.dims)]
    return relabelled(Value(value.term, value.parts, tuple(dims)), names)


def _in_one(value: Value, run: Parts) -> tuple[Value, Part | None]:
    """`value` with one part in place of neighbouring ones; None if they are no neighbours."""
    if len(run) == 1:
        return value, run[0]
    if any(isinstance(part.label, Minor) for part in run):
        return value, None
    count = len(run)
    for dim, parts in enumerate(value.parts):
        for i in range(len(parts) - count + 1):
            if parts[i : i + count] == run:
                one = Part(size_of(run), fresh())
                dims = list(value.parts)
                dims[dim] = (*parts[:i], one, *parts[i + count :])
                return Value(value.term, tuple(dims), value.dims), one
    return value, None


def gathered(value: Value, dim: int, axes: Axes) -> Value:
    """What the devices along `axes` have, put together along a local dim."""
    value, front = _held(value, axes)
    return value.at((*front, *p) if d == dim else p for d, p in enumerate(value.dims))


def exchanged(value: Value, cut_dim: int, joined_dim: int, axes: Axes) -> Value:
    """An all_to_all: each device gets its part of a dim from all, put together along another."""
    value, front = _held(value, axes)
    value = given_out(value, cut_dim, axes)
    return value.at((*front, *p) if d == joined_dim else p for d, p in enumerate(value.dims))


def sent(value: Value, axis: str, sources: Sequence[int]) -> Value:
    """What each device along an axis gets from another one, if each sends to one.

    Args:
      sources: for each place along the axis the place that something comes from.

    Raises:
      NotProved: it is of a round that lies in another order on the device that sends it.
    """
    local = labelled(part for dim in value.dims for part in dim)
    names: dict[Label, Label] = {}
    for label, size in value.labels.items():
        if isinstance(label, Minor) and label.axis == axis:
            if label not in local:
                raise NotProved(f"rounds that lie in another order along `{axis}` are sent on")
            names[label] = label._replace(table=tuple(label.table[source] for source in sources))
        elif axis_of(label) == axis and not isinstance(label, Major):
            old = label.table if isinstance(label, Sent) else range(len(sources))
            names[label] = moved_label(axis, [old[source] for source in sources], size)
    return relabelled(value, names)


def moved_label(axis: str, table: Sequence[int], size: int) -> Label:
    """The label of a part of this size of which devices along an axis have these indices."""
    return axis if list(table) == list(range(size)) else Sent(axis, tuple(table))


def of_all_devices(value: Value, axes: Axes) -> Value:
    """A value of which no order along axes matters, without what was sent along these.

    Raises:
      NotProved: it has more than one index along an axis.
    """
    names: dict[Label, Label] = {}
    for label, size in value.labels.items():
        if isinstance(label, Major) and axis_of(label) in dict(axes):
            raise NotProved(f"what lies in another order along `{axis_of(label)}` is added up")
        if isinstance(label, Sent) and label.axis in dict(axes):
            alone = [axis_of(other) for other in value.labels].count(label.axis) == 1
            if not alone or sorted(label.table) != list(range(size)):
                raise NotProved(f"what was sent along `{label.axis}` meets what is there")
            names[label] = label.axis
    return relabelled(value, names)


def _held(value: Value, axes: Axes) -> tuple[Value, list[Part]]:
    """`value` with parts of its own in place of axes, and these parts, none of which has a dim."""
    for label in value.labels:
        if isinstance(label, (Sent, Major)) and axis_of(label) in dict(axes):
            raise NotProved(f"what was sent along `{axis_of(label)}` is put together")
    names: dict[Label, Label] = {axis: fresh() for axis, size in axes if axis in value.labels}
    front = [Part(size, names.get(axis)) for axis, size in axes if size > 1]
    return relabelled(value, names), front
