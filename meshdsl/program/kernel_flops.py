"""The FLOPs of a kernel, as a name in JAX's name stacks.

A compiled program says nothing of what its kernels multiply: a custom call has no products and no
cycles. So a kernel whose products are known stands in a scope such as `kernel_flops_8589934592`,
which the compiler keeps with the rest of the name stack.
"""

from __future__ import annotations

import re

_SCOPE = re.compile(r"\bkernel_flops_(\d+)\b")


def flops_scope(flops: int) -> str:
    """The name of the scope of a kernel with so many FLOPs."""
    return f"kernel_flops_{flops}"


def flops_in(scope: str) -> int | None:
    """The FLOPs that the innermost such scope in a name stack states; None if there is none."""
    found = _SCOPE.findall(scope)
    return int(found[-1]) if found else None
