"""Where the parameters of a model are in the tensors of Hugging Face.

Their files have a matrix for each layer, `[outs, ins]`; here the layers are stacked, and a matrix
has a dim for the heads and one for the features of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import meshdsl as md
from meshdsl.models.formats import FORMATS


class Place(NamedTuple):
    """Where a parameter is in their files.

    Attributes:
      name: of the tensor, with `{}` for the number of the layer where there is one for each, and
        another for that of the expert. So many dims come first in the parameter.
      ins: the sizes of the dims that a matrix contracts; empty where the tensor is no matrix.
      outs: the sizes of its other dims.
      first: where its outs begin in the tensor, which may have those of other parameters as well.
      width: all outs of the tensor.
      outs_first: the tensor is `[outs, ins]`.
      ones: how many dims of size 1 the tensor has in front.
      apart: each dim of the ins is one of the tensor.
    """

    name: str
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    first: int
    width: int
    outs_first: bool
    ones: int = 0
    apart: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        ones = (1,) * self.ones
        if not self.ins:
            return (*ones, self.width)
        if self.apart:
            return (*ones, self.width, *self.ins)
        pair = self.width, math.prod(self.ins)
        return (*ones, *(pair if self.outs_first else pair[::-1]))


def places(style: str, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """Where each parameter of a model is in the files of its style.

    Args:
      parameters: the shapes of the model's parameters by name.

    Raises:
      MeshDSLError: their files of this style have no place for a parameter.
    """
    form, found = FORMATS[style], {}
    rows = [(name, "", modules) for name, modules in form.tables.items()]
    for stack, (prefix, layers) in form.every_stack.items():
        above = f"{stack}.layer."
        rows += [(f"{prefix}{{}}.{name}", above, each) for name, each in layers.items()]
    for name, (part, ones) in form.bare.items():
        if part in parameters:
            ins, outs = parameters[part][:-1], parameters[part][-1:]
            found[part] = Place(name, ins, outs, 0, outs[0], False, ones)
    for name, part in form.experts.items():
        whole = f"{form.stack}.layer.{part}"
        if whole in parameters:
            ins, outs = parameters[whole][2:3], parameters[whole][3:]
            found[whole] = Place(f"{form.prefix}{{}}.{name}", ins, outs, 0, outs[0], True)
    for name, above, modules in rows:
        for kind in ("weight", "scale", "table", "bias"):
            parts = [f"{above}{each}.{kind}" for each in modules]
            if not any(part in parameters for part in parts):
                continue
            first, made = 0, []
            for part in parts:
                if part not in parameters:
                    raise md.MeshDSLError(
                        f"`{part}` is not there, but a {style} of Hugging Face has it together "
                        f"with `{parts[0] if part != parts[0] else parts[1]}`"
                    )
                shape = parameters[part][1 if above else 0 :]
                ins, outs = _sides(part, kind, shape)
                made.append((part, ins, outs, first))
                first += math.prod(outs)
            spelled = f"{name}.{'bias' if kind == 'bias' else 'weight'}"
            outs_first = (form.outs_first and kind != "table") or name == "lm_head"
            apart = kind == "weight" and name in form.apart
            for part, ins, outs, begin in made:
                place = Place(spelled, ins, outs, begin, first, outs_first, apart=apart)
                found[part] = place
    homeless = [name for name in parameters if name not in found]
    if homeless:
        raise md.MeshDSLError(
            f"a {style} of Hugging Face has no place for the parameter `{homeless[0]}`"
        )
    return found


def _sides(name: str, kind: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The dims that a parameter of one layer contracts, and its others."""
    if kind in ("scale", "bias"):
        return (), shape
    back = name.endswith(("attention.out.weight", ".down.weight", "source.out.weight"))
    back = back or name == "patches.weight"
    return (shape[:-1], shape[-1:]) if back else (shape[:1], shape[1:])
