"""Scope: what the tensors of one lowering share. Tensors carry it; there is no ambient state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import contextmanager

from meshdsl.dims import Dims
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout, Rule
from meshdsl.plan.record import Recorder


class Scope:
    """The layout, the sizes of the mesh axes (in mesh order) and the recorder of one traced program."""

    def __init__(self, layout: Layout, sizes: Mapping[str, int], name: str):
        self.layout = layout
        self.sizes = dict(sizes)
        self.recorder = Recorder(name)
        self.uses: dict[int, frozenset[str]] | None = None  # see `looking_for_uses`
        self._splits: dict = {}

    def split(self, dims: Dims, level: str = "value") -> tuple[tuple[str, ...], ...]:
        """For each of `dims` the axes that split it by the law; a dim that does not divide is an error."""
        key = (dims, level)
        found = self._splits.get(key)
        if found is None:
            self.layout.check_sizes(dims, self.sizes, level)
            split = self.layout.split(dims, level)
            found = self._splits[key] = tuple(split.get(d, ()) for d in dims)
        return found

    def rule(self, dims: Dims, level: str, axis: str) -> Rule | None:
        """The rule that gives `axis` to one of `dims`."""
        return self.layout.taken(dims, level).get(axis)

    def parts(self, axes: Iterable[str]) -> int:
        return math.prod(self.sizes[a] for a in axes)

    def in_mesh_order(self, axes: Iterable[str]) -> tuple[str, ...]:
        axes = set(axes)
        return tuple(a for a in self.sizes if a in axes)

    @contextmanager
    def looking_for_uses(self):
        """Trace without recording, and note for each parameter the axes over which every op that uses it varies."""
        recorder, self.recorder, self.uses = self.recorder, Recorder(self.recorder.name), {}
        try:
            yield self.uses
        finally:
            self.recorder, self.uses = recorder, None

    def note_use(self, origin: Iterable[int], axes: Iterable[str]) -> None:
        if self.uses is not None:
            for i in origin:
                self.uses[i] = self.uses.get(i, frozenset(axes)) & frozenset(axes)


def common(name: str, tensors) -> Scope | None:
    """The scope that the tensors share, or None when none of them lives in a lowering."""
    scope = None
    for t in tensors:
        if t.place is not None and t.place.scope is not scope:
            if scope is not None:
                raise MeshDSLError(f"{name}: the operands come from two different lowerings")
            scope = t.place.scope
    return scope
