"""Where our parameters are in the tensors of published files.

Their files have a tensor for each layer, and most matrices are `[outs, ins]`. Our parameters have a
dim of layers, and a dim for the heads and one for the features of a head. A tensor of theirs may
have several of our parameters, one beside another or taking turns.
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
    """Where one of our parameters is in their files.

    Attributes:
      name: the name of the tensor, with `{}` for the number of the layer if there is a tensor for
        each layer, and a second `{}` if there is one for each expert. For each `{}` the parameter
        has a dim in front.
      ins: the sizes of the parameter's dims that are contracted; empty if it is no matrix.
      outs: the sizes of its other dims.
      first: the position of the parameter's outs in the tensor, which may have the outs of other
        parameters too.
      width: the number of all outs of the tensor.
      outs_first: whether the tensor is `[outs, ins]`. If not, it is `[ins, outs]`.
      ones: how many dims of size 1 the tensor has in front.
      apart: whether the tensor has each dim of `ins` as a dim of its own.
      turns: into how many groups the tensor's outs are cut, each of which has outs of every
        parameter: for example for each head those of the keys and then those of the values. 1 if
        the parameters lie one after another.
      pairs: how many of the last features of `outs` rotary positions turn, if the order differs:
        the two features of a pair are neighbours in the tensor; in our parameter one is in the
        first half of the features and one in the second.
      stacked: the sizes of dims that the tensor has too, after those of the name.
      begins: the number of the parameter's first layer in the tensor's name.
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
        """How many dims of the parameter, in front, have a tensor for each of their elements."""
        return self.name.count("{}")

    def tensor(self, numbers: tuple[int, ...]) -> str:
        """The name of the tensor for these elements of the numbered dims."""
        first = [number + self.begins for number in numbers[:1]]
        return self.name.format(*first, *numbers[1:])

    def columns(self) -> np.ndarray:
        """The number of the column in the tensor of each of the outs; in the shape of `outs`."""
        count = math.prod(self.outs)
        each = np.arange(self.width).reshape(self.turns, -1)
        each = each[:, self.first : self.first + count // self.turns].reshape(self.outs)
        if not self.pairs:
            return each
        turned, others = each[..., : self.pairs], each[..., self.pairs :]
        return np.concatenate([turned[..., ::2], turned[..., 1::2], others], -1)


def places(style: str, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """The place of each parameter of a model in files of its style.

    Args:
      parameters: the shapes of the model's parameters, by name.

    Raises:
      MeshDSLError: files of this style have no place for a parameter.
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
    """Their names of modules, each with ours; the beginning of our names; the first layer's number.

    There is one such row for the modules outside of layers, and one for each stack of layers.
    """
    yield adapter.tables, "", 0
    begins: dict[str, int] = {}  # where the next layers of a prefix begin
    for stack, prefix, layers in adapter.stacks(parameters):
        above, first = f"{stack}.layer.", begins.get(prefix, 0)
        yield {f"{prefix}{{}}.{name}": modules for name, modules in layers.items()}, above, first
        count = next((s[0] for name, s in parameters.items() if name.startswith(above)), 0)
        begins[prefix] = first + count


def _bare(adapter: Adapter, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    """The places of parameters that are not of a module."""
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
                found[whole] = Place(
                    tensor, ins, outs, i, width, False, turns=outs[0], stacked=(experts,)
                )
    return found


def _together(
    adapter: Adapter, name: str, parts: list[str], parameters: Mapping[str, tuple[int, ...]]
) -> dict[str, Place]:
    """The places of several parameters of one kind (weight, scale, ...) in one tensor."""
    if not any(part in parameters for part in parts):
        return {}
    first, rows = 0, []
    for part in parts:
        if part not in parameters:
            raise md.MeshDSLError(
                f"`{part}` is not there, but a {adapter.name} of Hugging Face has it together "
                f"with `{parts[0] if part != parts[0] else parts[1]}`"
            )
        ins, outs = _sides(part, parameters[part][name.count("{}") :])
        # If the adapter says so, each head has the outs of one parameter after those of another.
        turns = outs[0] if name.endswith(adapter.by_head) else 1
        rows.append((part, ins, outs, first, turns))
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
        for part, ins, outs, begin, turns in rows
    }


def _turned(module: str, adapter: Adapter, outs: tuple[int, ...]) -> int:
    """How many of the last outs rotary positions turn, if their pairs are in another order."""
    parts = [part for name, part in adapter.pairs.items() if module.endswith(f".{name}")]
    return int(outs[-1] * parts[0]) if parts else 0


def _sides(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The sizes of the dims of one layer's parameter: those that are contracted, and the others."""
    if name.endswith((".scale", ".bias")):
        return (), shape
    back = name == "patches.weight" or name.endswith((".out.weight", ".down.weight"))
    return (shape[:-1], shape[-1:]) if back else (shape[:1], shape[1:])
