"""Which matrices of a model are multiplied in few bits, and how, by the table `[precision]`.

    [precision]
    matmul = "int8"
    except = ["head.*"]

The model does not change: each of these weights is replaced by one whose products are in few bits,
see `meshdsl.ops.precision.few_bits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax

from meshdsl.errors import MeshDSLError, quote
from meshdsl.machine import Target
from meshdsl.ops.precision.few_bits import FewBits
from meshdsl.ops.precision.formats import RECIPES, Recipe, recipe
from meshdsl.stand_in import StandIn
from meshdsl.tensor import is_tensor
from meshdsl.train.trained import matched, name_at, parameters_by_name

COMPUTE, CHANNEL, STATIC = "compute", "channel", "static="
_WORTH = 1.2  # times the rate of bfloat16: below it rounding costs about what products gain
# The usual exceptions: errors cost the most there, and products the least.
ALWAYS_WIDE = ("embedding.*", "head.*", "*norm*", "*router*")


class Formats(NamedTuple):
    """How matrices of a model are multiplied.

    Attributes:
      recipes: by the names of the matrices that are multiplied in few bits.
      largest: the largest magnitude of what is multiplied; None: it is found each time.
    """

    recipes: Mapping[str, Recipe]
    largest: float | None


def check_formats(matmul: str | Mapping[str, Any], scales: str) -> None:
    """Raise a MeshDSLError unless each format is known, and the scales are and have a use."""
    by_pattern = _by_pattern(matmul)
    for pattern, name in by_pattern.items():
        if pattern.startswith("!"):
            raise MeshDSLError(
                f"precision.matmul: {quote(pattern)} is no pattern; the format of matrices that "
                f"stay as they are is {quote(COMPUTE)}"
            )
        if name != COMPUTE:
            recipe(f"precision.matmul={matmul}", name)
    if _largest(scales) is not None and set(by_pattern.values()) <= {COMPUTE}:
        raise MeshDSLError(
            f"precision.scales={quote(scales)}: is for precision.matmul={' or '.join(RECIPES)}"
        )


def formats_of(precision: Any, model: Any) -> Formats:
    """How the settings of `precision` have the matrices of a model multiplied.

    Args:
      model: a pytree of parameters, or of their descriptions.

    Raises:
      MeshDSLError: a pattern matches no matrix; one of the usual exceptions need not.
    """
    by_pattern = _by_pattern(precision.matmul)
    found: dict[str, Recipe] = {}
    if set(by_pattern.values()) <= {COMPUTE}:
        return Formats(found, None)
    parameters = parameters_by_name(model).items()
    names = [name for name, x in parameters if x.role and x.role.ins and x.role.outs]
    for pattern, name in by_pattern.items():
        for each in matched([pattern], names, "precision.matmul"):
            found.pop(each, None)
            if name != COMPUTE:
                found[each] = RECIPES[name]
    has = lambda pattern: any(fnmatchcase(name, pattern) for name in names)
    kept = [p for p in precision.except_ if p not in ALWAYS_WIDE or has(p)]
    wide = matched(kept, names, "precision.except")
    found = {name: recipe for name, recipe in found.items() if name not in wide}
    return Formats(found, _largest(precision.scales))


def in_few_bits(model: Any, formats: Formats) -> Any:
    """`model`, in which the matrices that `formats` names are multiplied in few bits."""
    if not formats.recipes:
        return model

    def replaced(path: tuple, weight: Any) -> Any:
        found = formats.recipes.get(name_at(path))
        if found is None:
            return weight
        if isinstance(weight, StandIn):
            return weight.of(FewBits(weight.weight, found, formats.largest))
        return FewBits(weight, found, formats.largest)

    is_weight = lambda x: is_tensor(x) or isinstance(x, StandIn)
    return jax.tree_util.tree_map_with_path(replaced, model, is_leaf=is_weight)


def slow_formats(precision: Any, target: Target | None) -> tuple[str, ...]:
    """A line for each format of `precision.matmul` that the chip multiplies hardly any faster."""
    if target is None or not target.chip.timed:
        return ()
    chip, lines = target.chip, []
    rates = {name: 1 / chip.slowdown(r.forward.dtype.name) for name, r in RECIPES.items()}
    best = max(rates, key=lambda name: rates[name])
    for name in sorted({n for n in _by_pattern(precision.matmul).values() if n != COMPUTE}):
        if rates[name] < _WORTH:
            better = f"; {best} at {rates[best]:.3g} times it" if rates[best] >= _WORTH else ""
            lines.append(
                f"precision.matmul: {chip.name} multiplies {name} at {rates[name]:.3g} times the "
                f"rate of bfloat16{better}"
            )
    return tuple(lines)


def _by_pattern(matmul: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return matmul if isinstance(matmul, Mapping) else {"*": matmul}


def _largest(scales: str) -> float | None:
    """The largest magnitude that `scales` states; None if it is to be found."""
    if scales == CHANNEL:
        return None
    try:
        largest = float(scales.removeprefix(STATIC)) if scales.startswith(STATIC) else 0.0
    except ValueError:
        largest = 0.0
    if not 0 < largest < float("inf"):
        raise MeshDSLError(
            f"precision.scales={quote(scales)}: expected {CHANNEL}, or {STATIC}N for the largest "
            "magnitude N, a number above 0"
        )
    return largest
