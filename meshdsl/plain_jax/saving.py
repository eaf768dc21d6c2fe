"""What a policy of `jax.checkpoint` keeps for the backward pass, found before names are inferred.

A policy is asked for each equation of the body, as JAX would ask it. What it keeps is a save point
of `md.checkpoint`. So any policy holds, of names, of products or one of the user's own, and nothing
that was gathered from other devices is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.core import ShapedArray

from meshdsl.errors import MeshDSLError
from meshdsl.plain_jax.program import REMATERIALISED, Equation, Program
from meshdsl.plain_jax.source import shown

KEPT, OFFLOADED = "from_jax, kept", "from_jax, offloaded"

# Policies of JAX that `md.checkpoint` has itself.
_KNOWN = {
    jax.checkpoint_policies.nothing_saveable: "full",
    jax.checkpoint_policies.dots_saveable: "dots",
    jax.checkpoint_policies.everything_saveable: "gathers",
}


class Saving(NamedTuple):
    """How a body is recomputed, as `md.checkpoint` takes it.

    Attributes:
      policy: that of `md.checkpoint`.
      save, offload: names of save points.
    """

    policy: str = "full"
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()


def mark(program: Program) -> None:
    """Ask the policies in a program and in its bodies, and note what each equation is to them.

    Raises:
      MeshDSLError: a policy cannot be asked, or answers what is not known.
    """
    for e in program.equations:
        if e.name in REMATERIALISED:
            policy = e.params.get("policy")
            e.notes["policy"] = _KNOWN.get(policy, "full")
            if policy is not None and policy not in _KNOWN:
                for inner in _recomputed(e.bodies[0]):
                    _ask(policy, inner, e)
        for body in e.bodies:
            mark(body)


def saving(e: Equation) -> Saving:
    """How the body of a rematerialisation is recomputed."""
    points = {KEPT: [], OFFLOADED: []}
    for inner in _recomputed(e.bodies[0]):
        where = inner.notes.get("saved")
        if where is not None and point_of(inner) not in points[where]:
            points[where].append(point_of(inner))
    return Saving(e.notes["policy"], tuple(points[KEPT]), tuple(points[OFFLOADED]))


def point_of(e: Equation) -> str:
    """The name of the save point that an equation is: its own, if the user has named it."""
    return e.params["name"] if e.name == "name" else e.notes["saved"]


def _recomputed(program: Program) -> Iterator[Equation]:
    """The equations that one rematerialisation is for."""
    for e in program.equations:
        if e.name not in REMATERIALISED:
            if not e.bodies:
                yield e
            for body in e.bodies:
                yield from _recomputed(body)


def _ask(policy: Callable, inner: Equation, e: Equation) -> None:
    if inner.primitive is None or not any(v.shape for v in inner.outs):
        return
    avals = [ShapedArray(v.shape, v.dtype) for v in inner.ins]
    what = f"from_jax: the policy of `jax.checkpoint` at {shown(e.lines or inner.lines)}"
    try:
        said = policy(inner.primitive, *avals, **inner.params)
    except Exception as error:
        raise MeshDSLError(
            f"{what} fails for `{inner.name}`: {type(error).__name__}: {error}"
        ) from error
    kind = _kind(said)
    if kind is None:
        raise MeshDSLError(
            f"{what} says {said!r} of `{inner.name}`; known are True, False and what "
            "jax.checkpoint_policies say"
        )
    if kind:
        inner.notes["saved"] = kind


def _kind(said: Any) -> str | None:
    """The answer of a policy: a save point, nothing (an empty text), or None if it is unknown."""
    if isinstance(said, bool):
        return KEPT if said else ""
    name = type(said).__name__
    return {"SaveableType": KEPT, "RecomputeType": "", "Offloadable": OFFLOADED}.get(name)
