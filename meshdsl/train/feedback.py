"""What sums of gradients in few bits have dropped, kept from step to step: `precision.feedback`.

Each device along the wired axes has dropped something else, so what is kept of a parameter has a
dim for these devices beside the parameter's own. It is split over the wired axes along that dim,
and else as the optimizer's state is: by a rule that stands below those of the layout.

Seide et al., 2014, "1-bit stochastic gradient descent"; Karimireddy et al., 2019, "Error feedback
fixes SignSGD and other gradient compression schemes".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import jax.numpy as jnp

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.lowering.wires import Wired
from meshdsl.tensor import Tensor
from meshdsl.train.trained import parameters_by_name

SENDERS = "wire_senders"
_WHERE = "precision.feedback"


def with_senders(layout: Layout, wired: Wired) -> Layout:
    """`layout` with the rule for what is kept."""
    axes = ", ".join(axis for axis, _ in wired)
    return replace(layout, optimizer=[*layout.optimizer, f"{SENDERS} -> {axes}"])


def nothing_dropped(trained: Any, wired: Wired, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """What is kept before the first step, by the names of parameters: zeros."""
    count = prod(sizes[axis] for axis, _ in wired)
    return {
        name: Tensor(jnp.zeros((count, *x.array.shape)), (Dim(SENDERS, count), *x.dims))
        for name, x in parameters_by_name(trained).items()
        if len(x.dims) > 1
    }


def check(trained: Any, layout: Layout, wired: Wired, sizes: Mapping[str, int]) -> None:
    """Raise a MeshDSLError unless what is dropped can be kept."""
    if len({name for _, name in wired}) > 1:
        names = ", ".join(f"{axis} = {name}" for axis, name in wired)
        raise MeshDSLError(f"{_WHERE}: is for one format over all axes, not for {names}")
    if layout.sum != "step":
        raise MeshDSLError(
            f'{_WHERE}: gradients are summed once per step for it; leave out sum = "{layout.sum}" '
            f"in {layout.name}"
        )
    for name, x in parameters_by_name(trained).items():
        split = layout.at_rest(x.dims, sizes, "optimizer")
        for dim, axes in split.items():
            if both := [axis for axis, _ in wired if axis in axes]:
                raise MeshDSLError(
                    f"{_WHERE}: the optimizer's state of `{name}` is split over `{both[0]}`, by "
                    f"its `{dim.name}`; feedback is for axes over which a gradient is summed as a "
                    "whole, as in hybrid-fsdp"
                )
