"""The rule of a pipeline: how it cuts rows into microbatches, and which stage has them outside."""

from __future__ import annotations

from itertools import takewhile

import jax.numpy as jnp

from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, either
from meshdsl.layout import Rule
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.scope import Scope
from meshdsl.ops.bodies import leaves_of
from meshdsl.splits.changes import Split
from meshdsl.splits.pipeline import Schedule
from meshdsl.tensor import is_tensor


def rule_of(dim: Dim, carry, scope: Scope) -> Rule | None:
    """The rule by which a scan over `dim` is a pipeline; None if the scan is a plain loop.

    It is a loop if no rule with microbatches splits `dim`, or if no Tensor of the carry has the dim
    that the rule cuts into microbatches.
    """
    rule = next((r for r in scope.layout.taken((dim,)).values() if r.microbatches), None)
    if rule is None or rule.microbatches is None:
        return None
    name, _ = rule.microbatches
    has = any(d.name == name for t in leaves_of(carry) if is_tensor(t) for d in t.dims)
    return rule if has and scope.parts(axes_of_stages(dim, scope)) > 1 else None


def axes_of_stages(dim: Dim, scope: Scope) -> tuple[str, ...]:
    """The axes over which the stages of a pipeline along `dim` lie."""
    taken = scope.layout.taken((dim,))
    return tuple(axis for axis in scope.split((dim,))[0] if taken[axis].microbatches)


def check_gathers_no_layers(dim: Dim, scope: Scope | None) -> None:
    """Raise a MeshDSLError where a loop over the layers of a model would gather all of them."""
    taken = {} if scope is None else scope.layout.taken((dim,))
    for axis, rule in taken.items():
        if not rule.microbatches and scope is not None and scope.parts((axis,)) > 1:
            rest = f'"{dim.name} -> {axis}"'
            raise MeshDSLError(
                f"{rule}: the layers run one after another, so each device would gather the "
                f"parameters of all {dim.size}; write {{ rule = {rest}, microbatches = "
                f"{{ batch = 16 }} }} for a pipeline, or put {rest} in the list `parameters`"
            )


def home_of(rule: Rule, carry, scope: Scope) -> tuple[str, ...]:
    """The axes that split the dim of the microbatches when these are cut from the carry.

    The law may split this dim over different axes in different leaves of the carry. The home is the
    longest run of axes with which all of these splits begin.
    """
    assert rule.microbatches is not None
    name, _ = rule.microbatches
    splits = [
        axes
        for x in leaves_of(carry)
        if is_tensor(x)
        for d, axes in zip(x.dims, scope.split(x.dims), strict=True)
        if d.name == name
    ]
    alike = takewhile(lambda axes: len(set(axes)) == 1, zip(*splits, strict=False))
    return tuple(axes[0] for axes in alike)


def brought_home(x, rule: Rule, home: tuple[str, ...], scope: Scope, op):
    """A leaf of the carry at home: on every stage, and split by the law over the other axes.

    Args:
      home: the axes that split the dim of the microbatches.
    """
    if not is_tensor(x):
        return collectives.vary(jnp.asarray(x), scope.in_mesh_order(scope.spent))
    assert rule.microbatches is not None
    cut = [d.name == rule.microbatches[0] for d in x.dims]
    law = zip(cut, scope.split(x.dims), strict=True)
    split = tuple(home if is_cut else axes for is_cut, axes in law)
    varies = scope.of_mesh(scope.spent.union(*split))
    return resharding.reshard(x, split, scope, op, lambda _: str(rule), varies=varies)


def schedule_of(axes, rule: Rule, carry, scope: Scope) -> Schedule:
    """The schedule. If a device has fewer rows than there are microbatches, each gets one row.

    Raises:
      MeshDSLError: the rows of a device do not divide into microbatches; or there are several
        rounds, and the number of microbatches is no multiple of that of stages.
    """
    assert rule.microbatches is not None
    stages, (name, count) = scope.parts(axes), rule.microbatches
    if rule.rounds > 1 and count % stages:
        near = max(stages, count // stages * stages)
        raise MeshDSLError(
            f"{rule}: with rounds, microbatches are a multiple of the {stages} stages, such as "
            f"{near} or {near + stages}, not {count}"
        )
    leaves = [t for t in leaves_of(carry) if is_tensor(t)]
    cut = {d: t.placement.axes[i] for t in leaves for i, d in enumerate(t.dims) if d.name == name}
    if len(cut) > 1:
        raise MeshDSLError(
            f"{rule}: the carry has several dims `{name}`, {' and '.join(map(str, cut))}, and "
            "one is cut into microbatches"
        )
    ((batch, split),) = cut.items()
    rows = scope.part(batch, split)
    if batch.name in scope.layout.orders or rows * scope.parts(split) != batch.size:
        raise MeshDSLError(
            f"{rule}: `{name}`={batch.size} is cut into microbatches, so it divides over "
            f"{' x '.join(f'`{a}`={scope.sizes[a]}' for a in split)}, in natural order"
        )
    if rows > count and rows % count:
        legal = [str(n) for n in range(1, rows + 1) if rows % n == 0]
        raise MeshDSLError(
            f"{rule}: a device has {rows} of {batch}, which do not divide into {count} "
            f"microbatches; use {either(legal[-8:])}, or another batch"
        )
    early = rule.schedule == "early" and scope.rest is not None
    return Schedule(stages, min(count, rows), rule.rounds, early=early)


def is_shared(
    rule: Rule,
    dims: Dims,
    outside: Split,
    home: tuple[str, ...],
    axes: tuple[str, ...],
    scope: Scope,
) -> bool:
    """Whether the stages share the rows of a leaf of the carry outside of the pipeline.

    A leaf without rows counts as shared.

    Args:
      dims: the dims of the leaf.
      outside: the split of the leaf outside of the pipeline.
      home: the axes that split the rows when these are cut.
      axes: the axes over which the stages lie.
    """
    assert rule.microbatches is not None
    name, _ = rule.microbatches
    if all(d.name != name for d in dims):
        return True
    inside = dict(zip(dims, scope.split(dims), strict=True))
    handed_out = tuple((*a, *axes) if d.name == name else a for d, a in inside.items())
    return outside == handed_out and all(inside[d] == home for d in dims if d.name == name)
