"""The two kinds of layers of a transformer: local ones, with a window, and global ones.

They may differ in the base of rotary positions too. A scan runs over layers of both kinds, so a
bool for each layer says which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meshdsl as md
from meshdsl.layers.attended import Rotary, Window
from meshdsl.layers.rotary import angles
from meshdsl.layers.stack import Stack
from meshdsl.models.architecture import Architecture


class Kinds(NamedTuple):
    """The kinds of all layers, and the rotary angles of the positions in each kind.

    Attributes:
      layers: for each layer whether it is local.
      window: the window of local layers.
      far: the rotary angles in global layers; None without rotary positions.
      near: the rotary angles in local layers.
    """

    layers: tuple[bool, ...]
    window: int
    far: Rotary | None
    near: Rotary | None

    @classmethod
    def of(cls, config: Architecture, positions: md.Tensor, reach: Callable) -> Kinds:
        """The kinds of the layers of a model, for tokens at these positions.

        Args:
          reach: gives how many tokens each text has; called if rotary positions depend on it.
        """
        layers, window = config.local_layers, config.window
        if not config.rotary:
            return cls(layers, window, None, None)
        far = angles(
            positions,
            config.rotary_dim,
            config.rotary_base,
            scaling=config.scaling,
            reach=reach() if config.by_text else None,
        )
        if not config.rotary_local_base:
            return cls(layers, window, far, far)
        near = angles(positions, config.rotary_dim, config.rotary_local_base)
        return cls(layers, window, far, near)

    def local(self, stack: Stack, some: slice) -> md.Tensor | None:
        """For each layer of a stack whether it is local; None if all are of one kind.

        Args:
          some: which of all layers the stack has.
        """
        layers = self.layers[some]
        return md.tensor(np.array(layers), (stack.layers,)) if len(set(layers)) > 1 else None

    def options(self, some: slice, local: md.Tensor | None) -> dict[str, Any]:
        """Arguments of attention in a layer of a stack.

        Args:
          some: which of all layers the stack has.
          local: whether the layer is local, an element of `local`; None if all are of one kind.
        """
        layers, rotary = self.layers[some], self.far
        if local is None:
            if not layers[0]:
                return {"rotary": rotary, "window": None}
            return {"rotary": self.near, "window": Window(self.window)}
        if rotary is not None and self.near is not None and rotary is not self.near:
            rotary = tuple(md.where(local, a, b) for a, b in zip(self.near, rotary, strict=True))
        shares = sum(layers), len(layers) - sum(layers)
        return {"rotary": rotary, "window": Window(self.window, local, shares)}
