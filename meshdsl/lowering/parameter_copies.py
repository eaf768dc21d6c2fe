"""The form in which a differentiated function gets a parameter: its dtypes, and its copies.

By default the function gets a parameter as it is at rest. Two lines of a layout change that:

`gather = "step"`: a parameter that only the list `parameters` splits is gathered here, once, and
not by each op that uses it.

`gradients = [...]` (ZeRO-2): where these rules split the gradient further than the parameter, the
parameter has two arrays: a device's part, by which the program is differentiated, and a copy, which
is less split and which the forward pass uses. To JAX an op seems to gather the part. The gather
itself is not computed, because its result is the copy. Its transpose is computed, a psum_scatter,
at each use and in each turn of a loop. So no device ever has the whole gradient.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.lowering import resharding
from meshdsl.lowering.scope import with_copy
from meshdsl.lowering.wires import Wired
from meshdsl.splits.changes import Split
from meshdsl.tensor import Dtypes, Tensor, is_tensor


def to_differentiate_by(t: Tensor, use, sums, wire: Wired = ()) -> Tensor:
    """The parameter `t` in the form in which a differentiated function gets it.

    Args:
      use, sums: see `Dtypes`; None for the dtype of `t`.
      wire: the axes over which gradients are summed in few bits. Gradients with fewer than two dims
        are not: they are small, and their sums matter.
    """
    dtypes = Dtypes(use or t.dtype, sums or t.dtype)
    rest = t.stored.dtype
    placement = t.placement._replace(
        dtypes=None if dtypes == Dtypes(rest, rest) else dtypes,
        wire=wire if len(t.dims) > 1 else (),
    )
    t = t.replace(placement=placement)
    scope, level = t.placement.scope, t.placement.level
    if level != "parameters" or scope.spent:
        return t
    at_hand = "rules" if scope.layout.gather == "step" else level
    for_use, part = scope.at_rest(t.dims, at_hand), scope.at_rest(t.dims, "gradients")
    if for_use == part == t.placement.axes:
        return t
    copy = _recorded(t, for_use, at_hand, "gather", "gathered once per step")
    if part == for_use and copy.dtype == rest:
        return copy.replace(placement=copy.placement._replace(level="gradients"))
    by = t if part == t.placement.axes else copy
    by = by.replace(placement=by.placement._replace(dtypes=None))
    by = _recorded(by, part, "gradients", "part", "gradients are split so")
    placement = by.placement._replace(dtypes=t.placement.dtypes)
    return with_copy(by.replace(array=by.stored.astype(rest), placement=placement), copy)


def for_use(parameters: Any, use: str) -> Any:
    """Parameters in the form in which a function gets them that is not differentiated by them.

    Args:
      parameters: a pytree of parameters and arrays; arrays stay as they are.
      use: the dtype in which ops take the parameters, and in which these are gathered.
    """
    return jax.tree.map(
        lambda t: _to_use(t, jnp.dtype(use)) if is_tensor(t) else t, parameters, is_leaf=is_tensor
    )


def _to_use(t: Tensor, use: np.dtype) -> Tensor:
    dtypes = None if t.dtype == use else Dtypes(use, use)
    t = t.replace(placement=t.placement._replace(dtypes=dtypes))
    scope, level = t.placement.scope, t.placement.level
    if level != "parameters" or scope.layout.gather != "step":
        return t
    copy = _recorded(t, scope.at_rest(t.dims, "rules"), "rules", "gather", "gathered once per step")
    return copy.replace(placement=copy.placement._replace(level="gradients"))


def _recorded(t: Tensor, split: Split, level: str, name: str, why: str) -> Tensor:
    """`t` in this split, recorded as an op `name`; the move has no derivative."""
    if t.placement.axes != split:
        scope = t.placement.scope
        op = scope.recorder.begin(name, t.dims, split)
        reason = lambda c: str(scope.rule(t.dims, "optimizer", c.axes[0]) or why)
        t = t.replace(array=resharding.without_gradient(t, split, op, reason))
    return t.replace(placement=t.placement._replace(axes=split, level=level))
