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
from meshdsl.models.families import ADAPTERS
from meshdsl.models.families.adapter import Adapter


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
      pairs: of so many of the last of the outs, those that rotary positions turn together are
        neighbours in the tensor; here they are features of the first half and of the second.
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
    pairs: int = 0
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
        turned, others = each[..., : self.pairs], each[..., self.pairs :]
        return np.concatenate([turned[..., ::2], turned[..., 1::2], others], -1)


def places(style: str, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """Where each parameter of a model is in the files of its style.

    Args:
      parameters: the shapes of the model's parameters by name.

    Raises:
      MeshDSLError: their files of this style have no place for a parameter.
    """
    adapter = ADAPTERS[style]
    found = _bare(adapter, parameters) | _of_experts(adapter, parameters)
    for rows, above, begins in _rows(adapter, parameters):
        for name, modules in rows.items():
            for kind in ("weight", "scale", "table", "bias"):
                parts = [f"{above}{module}.{kind}" for module in modules]
                found |= _together(adapter, name, parts, parameters)
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
    adapter: Adapter, parameters: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[Mapping[str, tuple[str, ...]], str, int]]:
    """Their names of modules with ours, what ours begin with, and the number of the first layer."""
    yield adapter.tables, "", 0
    begins: dict[str, int] = {}  # where the next layers of a prefix begin
    for stack, prefix, layers in adapter.stacks(parameters):
        above, first = f"{stack}.layer.", begins.get(prefix, 0)
        yield {f"{prefix}{{}}.{name}": modules for name, modules in layers.items()}, above, first
        count = next((s[0] for name, s in parameters.items() if name.startswith(above)), 0)
        begins[prefix] = first + count


def _bare(adapter: Adapter, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """The places of parameters that are of no module."""
    found = {}
    for name, (part, ones) in adapter.bare.items():
        if part in parameters:
            ins, outs = parameters[part][:-1], parameters[part][-1:]
            found[part] = Place(name, ins, outs, 0, outs[0], False, ones)
    for name, part in adapter.vectors.items():
        whole = f"{adapter.stack}.layer.{part}"
        if whole in parameters:
            outs = parameters[whole][1:]
            found[whole] = Place(f"{adapter.prefix}{{}}.{name}", (), outs, 0, math.prod(outs), True)
    return found


def _of_experts(adapter: Adapter, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """The places of the parameters of experts."""
    found = {}
    for name, parts in adapter.experts.items():
        for i, whole in enumerate(f"{adapter.stack}.layer.{part}" for part in parts):
            if whole not in parameters:
                continue
            _, experts, *sizes = parameters[whole]
            ins, outs = tuple(sizes[:-1]), tuple(sizes[-1:])
            tensor = f"{adapter.prefix}{{}}.{name}"
            if "{}" in name:
                found[whole] = Place(tensor, ins, outs, 0, outs[0], True)
            else:  # all experts are in one tensor, in which parameters take turns
                width = len(parts) * outs[0]
                how = {"turns": outs[0], "stacked": (experts,)}
                found[whole] = Place(tensor, ins, outs, i, width, False, **how)
    return found


def _together(
    adapter: Adapter, name: str, parts: list[str], parameters: Mapping[str, tuple[int, ...]]
) -> dict[str, Place]:
    """The places of parameters of one kind that are in one tensor."""
    if not any(part in parameters for part in parts):
        return {}
    first, made = 0, []
    for part in parts:
        if part not in parameters:
            raise md.MeshDSLError(
                f"`{part}` is not there, but a {adapter.name} of Hugging Face has it together "
                f"with `{parts[0] if part != parts[0] else parts[1]}`"
            )
        ins, outs = _sides(part, parameters[part][name.count("{}") :])
        # Heads have the outs of one parameter after another each, where the adapter says so.
        turns = outs[0] if name.endswith(adapter.by_head) else 1
        made.append((part, ins, outs, first, turns))
        first += math.prod(outs) // turns
    kind = "bias" if parts[0].endswith(".bias") else "weight"
    outs_first = (adapter.outs_first and not parts[0].endswith(".table")) or name == "lm_head"
    apart = kind == "weight" and name in adapter.apart
    return {
        part: Place(
            *(f"{name}.{kind}", ins, outs, begin, first * turns, outs_first),
            apart=apart,
            turns=turns,
            pairs=_turned(part.rpartition(".")[0], adapter, outs),
        )
        for part, ins, outs, begin, turns in made
    }


def _turned(module: str, adapter: Adapter, outs: tuple[int, ...]) -> int:
    """How many of the last outs rotary positions turn, where those are in another order."""
    parts = [part for name, part in adapter.pairs.items() if module.endswith(f".{name}")]
    return int(outs[-1] * parts[0]) if parts else 0


def _sides(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The dims that a parameter of one layer contracts, and its others."""
    if name.endswith((".scale", ".bias")):
        return (), shape
    back = name == "patches.weight" or name.endswith((".out.weight", ".down.weight"))
    return (shape[:-1], shape[-1:]) if back else (shape[:1], shape[1:])
