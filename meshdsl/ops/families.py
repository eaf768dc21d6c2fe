"""The files of ops, by the heading under which docs/ops.md lists them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from meshdsl.ops import (
    branch,
    calculus,
    checkpoint,
    component,
    conv,
    cross_entropy,
    cumulative,
    custom_gradient,
    distributions,
    einsum,
    functions,
    index,
    local,
    loops,
    over,
    placement,
    pool,
    reduce,
    reshape,
    routed,
    sampling,
    scan,
    scatter,
    selection,
    shift,
    slicing,
    softmax,
    sorting,
    triangle,
)
from meshdsl.ops.attention import attention
from meshdsl.ops.declare import DECLARED, Declaration
from meshdsl.ops.precision import quantize

FAMILIES: dict[str, tuple[ModuleType, ...]] = {
    "Component-wise": (functions, component),
    "Contracting": (einsum, attention, cross_entropy, routed),
    "Few bits": (quantize,),
    "Control flow and calculus": (
        scan,
        loops,
        over,
        branch,
        checkpoint,
        custom_gradient,
        calculus,
        local,
    ),
    "Convolution and pooling": (conv, pool),
    "Indexing, cutting and running along a dim": (index, slicing, shift, cumulative),
    "Order": (sorting, selection),
    "Placement": (placement,),
    "Randomness": (distributions, sampling),
    "Reducing": (reduce, softmax),
    "Scattering, segments and triangles": (scatter, triangle),
    "Shape": (reshape,),
}


def declared(family: str) -> list[Declaration]:
    """The declarations of a family: file by file, and in each file in its own order."""
    return [d for file in FAMILIES[family] for d in DECLARED if d.module == file.__name__]


def named(prefix: str = "") -> dict[str, Callable]:
    """The public functions by name: those of `md`, or for the prefix "random" of `md.random`."""
    found = {}
    for declaration in DECLARED:
        *before, name = declaration.name.split(".")
        if ".".join(before) == prefix:
            found[name] = declaration.function
    return found
