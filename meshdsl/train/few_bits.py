"""Which matrices of a model are multiplied in few bits, and how, by the table `[precision]`.

    [precision]
    matmul = "int8"
    except = ["head.*"]

The model does not change: each of these weights is replaced by one whose products are in few bits,
see `meshdsl.ops.precision.few_bits`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax

from meshdsl.dims import size
from meshdsl.errors import MeshDSLError, quote
from meshdsl.machine import Chip, Target
from meshdsl.ops.precision.few_bits import FewBits
from meshdsl.ops.precision.formats import RECIPES, Recipe, recipe
from meshdsl.ops.precision.scaled import KINDS
from meshdsl.stand_in import StandIn
from meshdsl.tensor import Tensor, is_tensor
from meshdsl.train.trained import matched, name_at, parameters_by_name

AUTO, COMPUTE, CHANNEL, STATIC, BLOCK = "auto", "compute", "channel", "static=", "block="
NEAREST, STOCHASTIC = "nearest", "stochastic"
# Times the rate of bfloat16: below it rounding costs what products gain. With 1.37, on a v6e, a
# step of llama3-8b took 1.06 times as long by the compiler, and with 1.64 it took 0.89.
_WORTH = 1.5
# What `auto` may choose: formats that fit every layout. Where both are as fast, it is the first.
_USUAL = ("fp8", "int8")
# The usual exceptions: errors cost the most there, and products the least.
ALWAYS_WIDE = ("embedding.*", "head.*", "*norm*", "*router*")
# Folded into the key of a step to make the key of rounding; a run folds in numbers of steps.
_ROUNDING = 2**32 - 2


class Formats(NamedTuple):
    """How matrices of a model are multiplied.

    Attributes:
      recipes: by the names of the matrices that are multiplied in few bits.
      largest: the largest magnitude of what is multiplied; None: it is found each time.
      at_random: whether gradients are rounded up or down at random.
    """

    recipes: Mapping[str, Recipe]
    largest: float | None = None
    at_random: bool = False


class _Scales(NamedTuple):
    """What a setting `scales` says: the largest magnitude, or the size of blocks, or nothing."""

    largest: float | None = None
    block: int | None = None


def check_formats(matmul: str | Mapping[str, Any], scales: str, rounding: str) -> None:
    """Raise a MeshDSLError unless each format is known, and the other settings are and have a use.

    Args:
      rounding: of gradients.
    """
    by_pattern = _by_pattern(matmul)
    found = _scales(scales)
    for pattern, name in by_pattern.items():
        if pattern.startswith("!"):
            raise MeshDSLError(
                f"precision.matmul: {quote(pattern)} is no pattern; the format of matrices that "
                f"stay as they are is {quote(COMPUTE)}"
            )
        if name in (COMPUTE, AUTO):
            continue
        low = recipe(f"precision.matmul={matmul}", name)
        if low.fixed and found != _Scales():
            raise MeshDSLError(
                f"precision.scales={quote(scales)}: {name} has scales of its own, for blocks of "
                f"{low.block}; leave `scales` at {quote(CHANNEL)}"
            )
    if set(by_pattern.values()) <= {COMPUTE}:
        free = [name for name, r in RECIPES.items() if not r.fixed]
        for name, value, usual, formats in (
            ("scales", scales, CHANNEL, free),
            ("gradient_rounding", rounding, NEAREST, RECIPES),
        ):
            if value != usual:
                raise MeshDSLError(
                    f"precision.{name}={quote(value)}: is for precision.matmul="
                    f"{' or '.join(formats)}"
                )


def formats_of(precision: Any, model: Any) -> Formats:
    """How the settings of `precision` have the matrices of a model multiplied.

    Args:
      model: a pytree of parameters, or of their descriptions.

    Raises:
      MeshDSLError: a pattern matches no matrix; one of the usual exceptions need not. Or no matrix
        is left that would be multiplied in few bits.
    """
    by_pattern, scales = _by_pattern(precision.matmul), _scales(precision.scales)
    found: dict[str, Recipe] = {}
    if set(by_pattern.values()) <= {COMPUTE, AUTO}:
        return Formats(found)
    parameters = parameters_by_name(model).items()
    names = [name for name, x in parameters if x.role and x.role.ins and x.role.outs]
    for pattern, name in by_pattern.items():
        for each in matched([pattern], names, "precision.matmul"):
            found.pop(each, None)
            if name not in (COMPUTE, AUTO):
                found[each] = RECIPES[name].in_blocks("precision.scales", scales.block)
    has = lambda pattern: any(fnmatchcase(name, pattern) for name in names)
    kept = [p for p in precision.except_ if p not in ALWAYS_WIDE or has(p)]
    wide = matched(kept, names, "precision.except")
    few = {name: recipe for name, recipe in found.items() if name not in wide}
    if found and not few:
        raise MeshDSLError(
            f"precision.except: it names {', '.join(found)}, and these are all that precision."
            "matmul would multiply in few bits"
        )
    return Formats(few, scales.largest, precision.gradient_rounding == STOCHASTIC)


def in_few_bits(model: Any, formats: Formats, key: Any = None) -> Any:
    """`model`, in which the matrices that `formats` names are multiplied in few bits.

    Args:
      key: of this step, where gradients may be rounded at random. The bits are a function of it, of
        the name of a matrix, of which copy it is, and of the index of an element.
    """
    if not formats.recipes:
        return model
    key = jax.random.fold_in(key, _ROUNDING) if formats.at_random and key is not None else None

    def replaced(path: tuple, weight: Any) -> Any:
        name = name_at(path)
        found = formats.recipes.get(name)
        if found is None:
            return weight
        keys = None if key is None else _keys(key, name, weight)
        how = found, formats.largest, keys
        if isinstance(weight, StandIn):
            return weight.of(FewBits(weight.weight, *how))
        return FewBits(weight, *how)

    is_weight = lambda x: is_tensor(x) or isinstance(x, StandIn)
    return jax.tree_util.tree_map_with_path(replaced, model, is_leaf=is_weight)


def _keys(key: Any, name: str, weight: Any) -> Tensor:
    """A key for each copy of a weight."""
    role = weight.role
    copies = tuple(d for d in weight.dims if d.name not in (*role.ins, *role.outs))
    own = jax.random.fold_in(key, zlib.crc32(name.encode()))
    if not copies:
        return Tensor(own, ())
    keys = jax.random.split(own, size(copies)).reshape([d.size for d in copies])
    return Tensor(keys, copies)


def with_formats(
    precision: Any, chip: Chip | None, of_run: Callable[[], Any] | None = None
) -> tuple[Any, str]:
    """`precision` with a format where it says "auto", and which that is and why, in one line.

    It is the format that the chip multiplies fastest, of those that may be chosen; or `compute`,
    where none is much faster than bfloat16. Without "auto" the line is empty.

    Args:
      chip: None where it is not known.
      of_run: gives the settings of a run that goes on, which keeps its format.
    """
    by_pattern, scales = _by_pattern(precision.matmul), _scales(precision.scales)
    if AUTO not in by_pattern.values():
        return precision, ""
    stored = _by_pattern(of_run().precision.matmul) if of_run else {}
    known = {p: stored.get(p, AUTO) for p, name in by_pattern.items() if name == AUTO}
    kept = {p: name for p, name in known.items() if name != AUTO}
    best, why = ", ".join(dict.fromkeys(kept.values())), "as it was when this run began"
    if kept.keys() != known.keys():
        each = [RECIPES[n].in_blocks("precision.scales", scales.block) for n in _USUAL]
        best, why = _fastest(each, chip)
    found = {p: kept.get(p, best) if n == AUTO else n for p, n in by_pattern.items()}
    matmul = found if isinstance(precision.matmul, Mapping) else found["*"]
    settings: dict[str, Any] = {"matmul": matmul}
    if set(found.values()) <= {COMPUTE}:  # no other setting has a use
        settings |= {"scales": CHANNEL, "gradient_rounding": NEAREST}
    return replace(precision, **settings), f"precision.matmul=auto: {best}, {why}"


def _fastest(recipes: Sequence[Recipe], chip: Chip | None) -> tuple[str, str]:
    """The name of the recipe that a chip multiplies fastest, or `compute`; and why."""
    if chip is None or not chip.timed:
        return COMPUTE, "because the rates of the chip are not known"
    rates = {r.name: rate(r, chip) for r in recipes}
    best = max(rates, key=lambda name: rates[name])
    if rates[best] >= _WORTH:
        return best, f"which {chip.name} multiplies at {rates[best]:.3g} times the rate of bfloat16"
    each = ", ".join(f"{name} at {rate:.3g} times its rate" for name, rate in rates.items())
    return COMPUTE, f"because {chip.name} multiplies nothing much faster than bfloat16: {each}"


def rate(recipe: Recipe, chip: Chip) -> float:
    """How many times faster than bfloat16 a chip multiplies by a recipe.

    What is in blocks is multiplied in bfloat16, but for formats that the chip knows.
    """
    if recipe.block and not (recipe.fixed and chip.device_kind in KINDS):
        return 1.0
    return 1 / chip.slowdown(recipe.forward.numbers.name)


def slow_formats(precision: Any, target: Target | None) -> tuple[str, ...]:
    """A line for each format of `precision.matmul` that the chip multiplies hardly any faster."""
    if target is None or not target.chip.timed:
        return ()
    chip, lines, block = target.chip, [], _scales(precision.scales).block
    rates = {name: rate(RECIPES[name], chip) for name in _USUAL}
    best = max(rates, key=lambda name: rates[name])
    for name in sorted({*_by_pattern(precision.matmul).values()} - {COMPUTE, AUTO}):
        own = rate(RECIPES[name].in_blocks("precision.scales", block), chip)
        if own < _WORTH:
            better = f"; {best} at {rates[best]:.3g} times it" if rates[best] >= _WORTH else ""
            lines.append(
                f"precision.matmul: {chip.name} multiplies {name}{' in blocks' if block else ''} "
                f"at {own:.3g} times the rate of bfloat16{better}"
            )
    return tuple(lines)


def _by_pattern(matmul: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return matmul if isinstance(matmul, Mapping) else {"*": matmul}


def _scales(text: str) -> _Scales:
    if text == CHANNEL:
        return _Scales()
    block = text.removeprefix(BLOCK)
    if text.startswith(BLOCK) and block.isdecimal() and int(block):
        return _Scales(block=int(block))
    try:
        largest = float(text.removeprefix(STATIC)) if text.startswith(STATIC) else 0.0
    except ValueError:
        largest = 0.0
    if not 0 < largest < float("inf"):
        raise MeshDSLError(
            f"precision.scales={quote(text)}: expected {CHANNEL}, {BLOCK}N for blocks of N "
            f"elements, or {STATIC}N for the largest magnitude N, a number above 0"
        )
    return _Scales(largest)
