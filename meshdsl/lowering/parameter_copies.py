"""In which form the function that is differentiated gets a parameter: its dtypes, and its copies.

By default a parameter is what it is at rest. Two lines of a layout change that:

`gather = "step"`: a parameter that only the list `parameters` splits is gathered here, once, and
not where it is used.

`gradients = [...]` (ZeRO-2): where these rules split the gradient further than the parameter, it
has two arrays: a device's part, by which the program is differentiated, and the copy that is at
hand, which the forward pass uses. To JAX what an op uses is the part, gathered. That gather is not
computed, because its value is the copy; but its transpose, a psum_scatter, is, at each use and in
each turn of a loop. So no device ever has the whole gradient.
"""

from __future__ import annotations

from meshdsl.lowering import resharding
from meshdsl.lowering.copies import with_copy
from meshdsl.splits.changes import Split
from meshdsl.tensor import Dtypes, Tensor


def to_differentiate_by(t: Tensor, use, sums) -> Tensor:
    """The parameter `t` as the function that is differentiated gets it.

    Args:
      use, sums: see `Dtypes`; the dtype of `t` where they are None.
    """
    dtypes = Dtypes(use or t.dtype, sums or t.dtype)
    rest = t.stored.dtype
    t = t.replace(placement=t.placement._replace(dtypes=None if dtypes == (rest, rest) else dtypes))
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


def _recorded(t: Tensor, split: Split, level: str, name: str, why: str) -> Tensor:
    """`t` in this split, recorded as an op `name`. Nobody takes a derivative of what it was."""
    if t.placement.axes != split:
        scope = t.placement.scope
        op = scope.recorder.begin(name, t.dims, split)
        reason = lambda c: str(scope.rule(t.dims, "optimizer", c.axes[0]) or why)
        t = t.replace(array=resharding.without_gradient(t, split, op, reason))
    return t.replace(placement=t.placement._replace(axes=split, level=level))
