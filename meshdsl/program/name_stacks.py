"""What the lowering tells the tools of a program by names in JAX's name stacks.

- How often each branch of a choice is taken. A program does not say how its choices will fall.
  Where a model knows it, as for layers of which some have a window, the choice stands in a scope
  such as `branch_shares_5_1`: five times out of six the first branch is taken. What is counted in
  the program of one device counts with it.
- The FLOPs of a kernel. A compiled program says nothing of what its kernels multiply: a custom call
  has no products and no cycles. So a kernel whose products are known stands in a scope such as
  `kernel_flops_8589934592`, or `grouped_flops_8589934592` for products of groups of rows, which the
  compiler keeps with the rest of the name stack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

_SHARES = re.compile(r"\bbranch_shares((?:_\d+)+)\b")
_INNER = re.compile(r"\bbranch_\d+_fun\b|\bmd\.\w+\.\d+\b")
_FLOPS = re.compile(r"\b(kernel|grouped)_flops_(\d+)\b")


def shares_scope(weights: Sequence[int]) -> str:
    """The name of the scope of a choice whose branches are taken in these proportions."""
    return "_".join(["branch_shares", *map(str, weights)])


def shares_in(scope: str, count: int) -> tuple[Fraction, ...]:
    """The share of the executions that takes each branch of a choice in this name stack.

    Args:
      count: how many branches there are.

    Returns:
      All of them for each branch, where nothing is said: nobody knows which one is taken.
    """
    found = list(_SHARES.finditer(scope))
    if not found or _INNER.search(scope, found[-1].end()):
        return (Fraction(1),) * count
    weights = [int(each) for each in found[-1][1].strip("_").split("_")]
    if len(weights) != count:
        return (Fraction(1),) * count
    return tuple(Fraction(each, sum(weights)) for each in weights)


class Stated(NamedTuple):
    """What a kernel states: its FLOPs, and whether they are those of products of groups of rows."""

    flops: int
    grouped: bool


def flops_scope(stated: Stated) -> str:
    """The name of the scope of a kernel that states this."""
    return f"{'grouped' if stated.grouped else 'kernel'}_flops_{stated.flops}"


def flops_in(scope: str) -> Stated | None:
    """What the innermost such scope in a name stack states; None if there is none."""
    found = _FLOPS.findall(scope)
    return Stated(int(found[-1][1]), found[-1][0] == "grouped") if found else None
