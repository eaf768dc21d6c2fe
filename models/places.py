"""Where the parameters of a model are in the tensors of Hugging Face.

Their files have a matrix for each layer, `[outs, ins]`; here the layers are stacked, and a matrix
has a dim for the heads and one for the features of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

import meshdsl as md
from meshdsl.models.formats import FORMATS, Format


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
      turns: the outs of several parameters take turns: for each of so many of the first outs come
        those of the first parameter, then those of the second.
      pairs: what rotary positions turn together, here the features of the first half and of the
        second, are neighbours in the tensor, along the last of the outs.
      stacked: sizes of dims that come after those of the name, and are dims of the tensor too.
      begins: the number in the tensor's name of the first layer that the parameter has.
    """

    name: str
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    first: int
    width: int
    outs_first: bool
    ones: int = 0
    apart: bool = False
    turns: int = 1
    pairs: bool = False
    stacked: tuple[int, ...] = ()
    begins: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        front = (*((1,) * self.ones), *self.stacked)
        if not self.ins:
            return (*front, self.width)
        if self.apart:
            return (*front, self.width, *self.ins)
        pair = self.width, math.prod(self.ins)
        return (*front, *(pair if self.outs_first else pair[::-1]))

    @property
    def numbered(self) -> int:
        """How many dims of the parameter have a tensor for each of their elements."""
        return self.name.count("{}")

    def tensor(self, numbers: tuple[int, ...]) -> str:
        """The name of the tensor with the elements of these numbers, along the numbered dims."""
        first = [number + self.begins for number in numbers[:1]]
        return self.name.format(*first, *numbers[1:])

    def columns(self) -> np.ndarray:
        """For each of the outs, in their shape, the number of its column in the tensor."""
        count = math.prod(self.outs)
        each = np.arange(self.width).reshape(self.turns, -1)
        each = each[:, self.first : self.first + count // self.turns].reshape(self.outs)
        if not self.pairs:
            return each
        halves = each.reshape(*self.outs[:-1], -1, 2)
        return np.concatenate([halves[..., 0], halves[..., 1]], -1)


def places(style: str, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """Where each parameter of a model is in the files of its style.

    Args:
      parameters: the shapes of the model's parameters by name.

    Raises:
      MeshDSLError: their files of this style have no place for a parameter.
    """
    form = FORMATS[style]
    found = _bare(form, parameters) | _of_experts(form, parameters)
    for rows, above, begins in _rows(form, parameters):
        for name, modules in rows.items():
            for kind in ("weight", "scale", "table", "bias"):
                found |= _together(style, name, [f"{above}{m}.{kind}" for m in modules], parameters)
        if begins:
            for part in [part for part in found if part.startswith(above)]:
                found[part] = found[part]._replace(begins=begins)
    homeless = [name for name in parameters if name not in found]
    if homeless:
        raise md.MeshDSLError(
            f"a {style} of Hugging Face has no place for the parameter `{homeless[0]}`"
        )
    return found


def _rows(
    form: Format, parameters: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[Mapping[str, tuple[str, ...]], str, int]]:
    """Their names of modules with ours, what ours begin with, and the number of the first layer."""
    yield form.tables, "", 0
    begins = 0
    for stack, (prefix, layers) in form.every_stack.items():
        above = f"{stack}.layer."
        yield {f"{prefix}{{}}.{name}": modules for name, modules in layers.items()}, above, begins
        if form.in_a_row:
            begins += next((s[0] for name, s in parameters.items() if name.startswith(above)), 0)


def _bare(form: Format, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """The places of parameters that are of no module."""
    found = {}
    for name, (part, ones) in form.bare.items():
        if part in parameters:
            ins, outs = parameters[part][:-1], parameters[part][-1:]
            found[part] = Place(name, ins, outs, 0, outs[0], False, ones)
    for name, part in form.vectors.items():
        whole = f"{form.stack}.layer.{part}"
        if whole in parameters:
            outs = parameters[whole][1:]
            found[whole] = Place(f"{form.prefix}{{}}.{name}", (), outs, 0, math.prod(outs), True)
    return found


def _of_experts(form: Format, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """The places of the parameters of experts."""
    found = {}
    for name, parts in form.experts.items():
        for i, whole in enumerate(f"{form.stack}.layer.{part}" for part in parts):
            if whole not in parameters:
                continue
            _, experts, *sizes = parameters[whole]
            ins, outs = tuple(sizes[:-1]), tuple(sizes[-1:])
            tensor = f"{form.prefix}{{}}.{name}"
            if "{}" in name:
                found[whole] = Place(tensor, ins, outs, 0, outs[0], True)
            else:  # all experts are in one tensor, in which parameters take turns
                width = len(parts) * outs[0]
                how = {"turns": outs[0], "stacked": (experts,)}
                found[whole] = Place(tensor, ins, outs, i, width, False, **how)
    return found


def _together(
    style: str, name: str, parts: list[str], parameters: Mapping[str, tuple[int, ...]]
) -> dict[str, Place]:
    """The places of parameters of one kind that are in one tensor."""
    form, numbered = FORMATS[style], "{}" in name
    if not any(part in parameters for part in parts):
        return {}
    first, made = 0, []
    for part in parts:
        if part not in parameters:
            raise md.MeshDSLError(
                f"`{part}` is not there, but a {style} of Hugging Face has it together "
                f"with `{parts[0] if part != parts[0] else parts[1]}`"
            )
        shape = parameters[part][1 if numbered else 0 :]
        kind = part.rpartition(".")[2]
        ins, outs = _sides(part, kind, shape)
        # Heads have the outs of one parameter after another each, where the format says so.
        turns = outs[0] if _is_any(name, form.by_head) else 1
        made.append((part, ins, outs, first, turns))
        first += math.prod(outs) // turns
    kind = "bias" if parts[0].endswith(".bias") else "weight"
    outs_first = (form.outs_first and not parts[0].endswith(".table")) or name == "lm_head"
    apart = kind == "weight" and name in form.apart
    return {
        part: Place(
            *(f"{name}.{kind}", ins, outs, begin, first * turns, outs_first),
            apart=apart,
            turns=turns,
            pairs=_is_any(part.rpartition(".")[0], form.pairs),
        )
        for part, ins, outs, begin, turns in made
    }


def _is_any(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a module, called by its path, is one of those."""
    return any(name.endswith(f".{module}") for module in modules)


def _sides(name: str, kind: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The dims that a parameter of one layer contracts, and its others."""
    if kind in ("scale", "bias"):
        return (), shape
    back = name.endswith(("attention.out.weight", ".down.weight", "source.out.weight"))
    back = back or name == "patches.weight"
    return (shape[:-1], shape[-1:]) if back else (shape[:1], shape[1:])
