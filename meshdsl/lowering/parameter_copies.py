"""How a parameter is held while gradients are taken: in which dtypes, and by which of its copies.

By default it is held as it is at rest. Two lines of a layout change that:

`gather = "step"`: a parameter that only `parameters` splits is gathered here, once, and not where it is used.

`gradients = [...]`: where these rules split the gradient further than the parameter is (ZeRO-2), it is held twice: a device's
part, by which it is differentiated, and the copy that is there, which the forward pass uses. To JAX what an op uses is
the part, gathered. That gather never runs, but its transpose, a psum_scatter, does, at each use and in each turn of a loop, so
that no device ever has the whole gradient.
"""

from __future__ import annotations

from meshdsl.lowering import resharding
from meshdsl.tensor import Dtypes, Tensor


def held(t: Tensor, use, sums) -> Tensor:
    """The parameter `t` as the function that is differentiated gets it.

    Args:
      use, sums: see `Dtypes`; those of `t` where they are None.
    """
    dtypes = Dtypes(use or t.dtype, sums or t.dtype)
    rest = t.stored.dtype
    t = t.replace(place=t.place._replace(dtypes=None if dtypes == (rest, rest) else dtypes))
    scope, level = t.place.scope, t.place.level
    if level != "parameter" or scope.layout.spent:
        return t
    at_hand = "value" if scope.layout.gather == "step" else level
    copy, part = scope.at_rest(t.dims, at_hand), scope.at_rest(t.dims, "gradient")
    if copy == part == t.place.axes:
        return t
    whole = _placed(t, copy, at_hand, "gather", "gathered once per step")
    if part == copy and whole.dtype == rest:
        return whole.replace(place=whole.place._replace(level="gradient"))
    by = t if part == t.place.axes else whole
    by = by.replace(place=by.place._replace(dtypes=None))
    by = _placed(by, part, "gradient", "part", "gradients are split so")
    return by.replace(
        array=by.stored.astype(rest), place=by.place._replace(dtypes=t.place.dtypes), whole=whole
    )


def _placed(t: Tensor, split: resharding.Split, level: str, name: str, why: str) -> Tensor:
    """`t` in this split, recorded as an op `name`. Nothing is differentiated by what it was before."""
    if t.place.axes != split:
        scope = t.place.scope
        op = scope.recorder.begin(name, t.dims, split)
        array = resharding.travel(
            t,
            split,
            scope,
            op,
            lambda step: str(scope.rule(t.dims, "optimizer", step.axes[0]) or why),
            constant=True,
        )
        t = t.replace(array=array)
    return t.replace(place=t.place._replace(axes=split, level=level))
