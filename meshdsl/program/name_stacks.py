"""What the lowering tells the tools of a program by names in JAX's name stacks.

- How often each branch of a choice is taken. A program does not say how its choices will fall.
  Where a model knows it, as for layers of which some have a window, the choice stands in a scope
  such as `branch_shares_5_1`: five times out of six the first branch is taken. What is counted in
  the program of one device counts with it.
- The FLOPs of a kernel. A compiled program says nothing of what its kernels multiply: a custom call
  has no products and no cycles. So a kernel whose products are known stands in a scope such as
  `kernel_flops_8589934592`, which the compiler keeps with the rest of the name stack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_SHARES = re.compile(r"\bbranch_shares((?:_\d+)+)\b")
_INNER = re.compile(r"\bbranch_\d+_fun\b|\bmd\.\w+\.\d+\b")
_FLOPS = re.compile(r"\bkernel_flops_(\d+)\b")


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


def flops_scope(flops: int) -> str:
    """The name of the scope of a kernel with so many FLOPs."""
    return f"kernel_flops_{flops}"


def flops_in(scope: str) -> int | None:
    """The FLOPs that the innermost such scope in a name stack states; None if there is none."""
    found = _FLOPS.findall(scope)
    return int(found[-1]) if found else None
